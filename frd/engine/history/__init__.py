"""What an attempt has done lately, for pictures: no verdict depends on it.

Entry points: `recent_entries.RecentEntries`, which keeps the entry rows that were applied last;
`recent_ops.RecentOpsReader`, which makes ops with aligned times of them; and
`group_map.group_map`, the state of each rank in each group. The latter two read copies, in whatever
thread.
"""
