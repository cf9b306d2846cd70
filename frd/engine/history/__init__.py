"""What an attempt has done lately, for pictures: no verdict depends on it.

Entry points: `recent_entries.RecentEntries`, which keeps the entry rows that were applied last, and
`attempt_history.AttemptHistory`, which makes ops with aligned times of them, and the state of each
rank in each group. It reads a `StateAt`, in whatever thread.
"""
