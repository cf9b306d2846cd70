"""Memory over time: which series rise, which rank rose first, and the texts about it.

Entry point: `attempt_memory.Memory`, for jobs that run and for recordings. `walk` finds where
series leave what is usual of them. `decisions` compares the ranks, as far as `coverage` shows what
they did; `report` says what people should know of all rises. `incidents` and `leaks` make findings
of those that alarm: an `incident` is what must be remembered of them, `rise` has its figures, and
`detector` and `text` turn it into claims.
"""
