"""The journal: accepted input is recorded, so that the findings of the service can be replayed.

Entry points: `writer` (a separate thread), `payloads` (of records) and `replay.replay`. Storage is
`frd.store.journal`.
"""
