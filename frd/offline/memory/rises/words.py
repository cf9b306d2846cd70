"""What is said of rises: one line each, and one for the whole recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from frd.engine.findings import text
from frd.engine.memory.rise import Attribution
from frd.engine.memory.text import duration, size, whose
from frd.forms import clock_text
from frd.offline.memory.rises.rise import Rise


def with_text(rise: Rise, *, starting: bool, undecided: bool, follows: int | None) -> Rise:
    """The rise with its line; `follows` is the rank of which it may be a consequence."""
    who = f"memory of {text.ranks(rise.ranks)}"
    if rise.common_cause:
        what = "rose together from the beginning on: the job was starting"
        what = what if starting else "rose together, no single rank is the cause"
    elif undecided:
        what = "rose"
    elif follows is not None:
        what = f"rose after that of rank {follows}"
    elif len(rise.ranks) > 1:
        what = "rose first, too close together to say which of them"
    else:
        what = "rose first"
    parts = [f"{who} {what}: {_figures(rise)}"]
    if undecided:
        parts.append(_too_early(rise))
    elif rise.next_rank is not None and not rise.common_cause:
        parts.append(_lead(rise))
    if rise.attribution not in (Attribution.UNKNOWN, Attribution.HOST) and not rise.common_cause:
        parts.append(whose(rise.attribution))
    parts.append(rise.phase.text)
    if rise.fell_back:
        parts.append("it fell back")
    if rise.unknown and not undecided:
        parts.append(f"{text.ranks(rise.unknown)}: may have risen as early, or earlier")
    return replace(rise, text="; ".join(filter(None, parts)))


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


def verdict_text(rises: Sequence[Rise], min_rise: int) -> str:
    """The answer for a recording without trouble."""
    named = [rise for rise in rises if rise.suspects]
    open_ones = [rise for rise in rises if not rise.suspects and not rise.common_cause]
    if found := (named or open_ones):
        return found[0].text
    if rises:
        return f"{rises[0].text}; no rank's memory rose alone"
    return f"no rank's memory rose by more than {size(min_rise)}"
