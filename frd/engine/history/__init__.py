"""What people see of an attempt: its state, and what it has done lately. No verdict depends on it.

Entry points: `status_view`, of which metrics and HTTP show ranks and groups;
`recent_ops.RecentEntries`, which keeps the entry rows that were applied last, and
`recent_ops.AttemptHistory`, which makes ops with aligned times of them, and the state of each
rank in each group. All read a `StateAt`, in whatever thread.
"""
