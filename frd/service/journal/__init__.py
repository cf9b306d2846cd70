"""The journal: accepted input is recorded, so that what the service concluded can be replayed.

Entry points: `writer` (a separate thread) and `replay.replay`. Storage is `frd.store.journal`.
"""
