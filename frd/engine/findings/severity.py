"""How urgent a finding is: whether somebody should be told, or be woken.

A job that stands still for a while may be in ordinary life: a checkpoint, an evaluation, a launcher
that ends one rank after another. So a finding about ranks that wait or are gone has two stages: a
warning when it opens, critical once it has lasted. Memory that has run out is critical at once. All
other findings stay warnings, because the job goes on.
"""

from __future__ import annotations

from typing import assert_never

from frd.model import Kind, Severity


def severity_of(kind: Kind, lasted_s: float, critical_after_s: float) -> Severity:
    """The severity of a finding that has been open for `lasted_s`."""
    match kind:
        case Kind.STALL | Kind.ORDER | Kind.MISMATCH | Kind.RANK_LOST:
            return Severity.CRITICAL if lasted_s >= critical_after_s else Severity.WARNING
        case Kind.OOM:
            return Severity.CRITICAL
        case Kind.STRAGGLER | Kind.MEMORY_SPIKE | Kind.TELEMETRY_GAP | Kind.CLOCK_UNSYNCHRONIZED:
            return Severity.WARNING
        case _:
            assert_never(kind)
