"""The journal: accepted input is recorded, so that the findings of the service can be replayed.

Entry points: `log` (the protocol), `writer` (on the local disk, in a separate thread), `payloads`
(of records) and `replay.replay`. Storage is `frd.store.journal`.
"""
