"""Memory over time: which series rise, which rank rose first, and the texts about it.

Entry point: `attempt_memory.Memory`. Samples wait in `inbox` until a tick. `series`, `baseline` and
`trend` compute for all series together what is normal and what rises. `onset`, `rise`, `incidents`
and `leaks` decide which of the few that rise are incidents; an `incident` is what must be
remembered of them. `detector` and `text` turn incidents into claims.

`decisions` compares the rises of ranks (`rank_rise`) of a live job or of a recording, alarming or
not, as time goes on, and `report` says what was decided.
"""
