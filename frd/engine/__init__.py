"""Matching and first cause: pure code that receives rows and times, and returns findings.

The engine reads no clock, opens nothing and draws no random numbers, so a journal replays to the
same findings. Time is an argument everywhere.

Entry points: `engine.Engine` (all attempts), `attempt.Attempt` (what is known of one),
`policy.Policy` (thresholds), `views` (what people see). Below them, each package knows nothing of
the ones after it: `clocks`, `state` and `matching`, `findings`, `losses`, then the detectors
`hangs`, `stragglers`, `memory` and `clock_faults`, which read one `tick.Tick` of an attempt.
"""
