"""Hangs: from a snapshot to the first cause; `docs/how-it-decides.md` explains the model.

`ops_in_flight` says what each rank waits in, `unrecorded` in what no recorder shows, `facts` what
its telemetry proves, `wait_graph` which rank waits for which, `root_causes` where the graph ends,
`diagnosis` which incident that is, `attribution` which rank, reason and confidence. `detector`
decides when to look, for hangs and for lost ranks (`frd.engine.losses`), and turns diagnoses into
claims.
"""
