"""What is known of one attempt: ranks, groups, watermarks and P2P ops in flight, as columns.

Entry points: `tables` (the columns themselves), `attempt_tables` (all tables of an attempt),
`entry_batch.EntryRows` and `watermarks.WatermarkRows` (what `Attempt.observe_*` takes),
`session_clocks` (questions about clocks), `snapshot` (an immutable view of one time, the detectors'
input), `status_view` (the same for metrics and HTTP). State imports no matching and no detector.
"""
