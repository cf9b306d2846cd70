"""What is said of rises: one line each, and one for the whole recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from frd.engine.findings import text
from frd.engine.memory.text import duration, size, whose
from frd.forms import clock_text
from frd.model import SeriesKind
from frd.offline.memory.rises.decision import Outcome
from frd.offline.memory.rises.rise import Rise


def with_text(rise: Rise, outcome: Outcome, follows: int | None) -> Rise:
    """The rise with its line; `follows` is the rank of which it may be a consequence."""
    kind = "host memory" if rise.series is SeriesKind.HOST_USED else "memory"
    parts = [f"{kind} of {text.ranks(rise.ranks)} {_how(rise, outcome, follows)}: {_figures(rise)}"]
    if outcome is Outcome.UNDECIDED:
        parts.append(_too_early(rise))
    elif outcome is Outcome.FIRST:
        if rise.next_rank is not None:
            parts.append(_lead(rise))
        parts.append(whose(rise.attribution))
    parts.append(rise.phase.text)
    if rise.fell_back:
        parts.append("it fell back")
    if rise.unknown and outcome is Outcome.FIRST and follows is None:
        parts.append(f"{text.ranks(rise.unknown)}: may have risen as early, or earlier")
    return replace(rise, text="; ".join(filter(None, parts)))


def _how(rise: Rise, outcome: Outcome, follows: int | None) -> str:
    match outcome:
        case Outcome.FIRST if follows is not None:
            return f"rose after that of rank {follows}"
        case Outcome.FIRST if len(rise.ranks) > 1:
            return "rose first, too close together to say which of them"
        case Outcome.FIRST:
            return "rose first"
        case Outcome.TOGETHER:
            return "rose together, no single rank is the cause"
        case Outcome.STARTING:
            return "rose together from the beginning on: the job was starting"
        case Outcome.BEGAN_BEFORE:
            return "rose already when the recording began"
        case Outcome.UNDECIDED:
            return "rose"
        case _:
            assert_never(outcome)


def _figures(rise: Rise) -> str:
    return f"+{size(rise.bytes)} in {duration(rise.took_s)} at {clock_text(rise.onset[1])}"


def _lead(rise: Rise) -> str:
    lead = duration(rise.lead_ns / 1e9) if rise.lead_ns >= 1e8 else "just"
    return f"{lead} before rank {rise.next_rank}"


def _too_early(rise: Rise) -> str:
    if rise.unknown:
        others = text.ranks(rise.unknown)
        return (
            f"too early to say whether it was first: the recording does not show what {others} did"
        )
    return "too early to say whether it was first: the recording ends too soon after it"


def verdict_text(
    rises: Sequence[Rise], min_rise: int, warmup_s: float = 0.0, *, several: bool = False
) -> str:
    """The answer for a recording without trouble; of `several` jobs it names the job."""
    named = [rise for rise in rises if rise.suspects]
    open_ones = [rise for rise in rises if not rise.suspects and not rise.common_cause]
    if found := (named or open_ones or rises):
        name = f"{found[0].job}: " if several else ""
        alone = "" if named or open_ones else "; no rank's memory rose alone"
        return f"{name}{found[0].text}{alone}"
    after = f" after the first {warmup_s:g} s" if warmup_s else ""
    return f"no rank's memory rose by more than {size(min_rise)}{after}"
