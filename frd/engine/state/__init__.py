"""What is known of one attempt: ranks, groups, watermarks and P2P ops in flight, as columns.

Entry points: `tables` (the columns themselves), `snapshot` (an immutable view of one moment,
which the detectors judge), `status_view` (the same for people). State knows nothing of hangs,
stragglers or memory.
"""
