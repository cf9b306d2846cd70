"""The journal: accepted input is recorded, so that the findings of the service can be replayed.

Entry points: `writer.Log` (the protocol), `writer` (a process's journal on the local disk, and
the parts of its cells), `payloads` (of records) and `replay.replay`. Storage is
`frd.store.journal`.
"""
