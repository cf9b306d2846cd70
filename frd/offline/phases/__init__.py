"""Phases of a program (epoch, forward, eval): when each began and ended on each rank.

One table has the spans of phase events in telemetry and of annotations in traces of I/O. It answers
in which phase a rank was in an interval, and how sure that is; and how much memory each phase
gained. Times are those of the host's clock.

Entry points: `table.build_phases`, `table.PhaseTable`; `marks.PhaseMark` is what goes in,
`answer.PhaseAnswer` and `rank_phases.PhaseGain` are what comes out.
"""
