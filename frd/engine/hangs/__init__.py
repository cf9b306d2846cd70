"""Hangs and lost ranks: from a snapshot to the first cause.

`ops_in_flight` says what each rank waits in, `rank_evidence` what its telemetry proves,
`wait_graph` (of `wait_nodes`) which rank waits for which, `root_causes` where the graph ends,
`diagnosis` which incident that is, `attribution` which rank, reason and confidence. `exits` and
`lost_ranks` judge processes that ended. `claims` turns both into claims, and `detector` decides
when to look.
"""
