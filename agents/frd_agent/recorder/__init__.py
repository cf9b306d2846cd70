"""Flight Recorder dumps of one rank: requested, compared, turned into transitions.

Entry points: `recorders.Recorders` (asks), `transitions` (what is new, each change reported
exactly once).
"""
