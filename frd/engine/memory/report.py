"""What people should know of decisions about memory: one `Rise` each, with its line of text.

The same for a job that runs and for a recording; figures of a rise that goes on are as of the call.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import islice
from typing import Final, assert_never

from frd.engine.findings import text
from frd.engine.memory.decisions import COMMON, COMPARABLE, NEARLY_ALL, Decision, Outcome
from frd.engine.memory.text import duration, size, whose
from frd.engine.memory.walk.levels import REVEALED_NS, SECOND, WINDOW_NS
from frd.engine.memory.walk.rank_rise import FOREVER, RankRise
from frd.engine.views import Rise, RiseSuspect
from frd.forms import clock_text
from frd.model import Confidence

_LEAST_LEAD_NS: Final = SECOND // 10
"""A shorter lead is in the text without a number: samples are not closer."""

Parts = Sequence[Decision]
"""A rise that went on after pauses (a staircase) is one rise."""


def report(
    decisions: Iterable[Decision], ranks: int, now: int, uncertain: Set[int] = frozenset()
) -> Iterator[tuple[Rise, RankRise]]:
    """By onset, each with the rise of its first rank.

    Args:
        decisions: all that are made, and those that are not yet; in any order.
        ranks: how many are watched.
        now: of the newest sample, aligned ns.
        uncertain: ranks whose memory is not known, or not when.
    """
    ordered = sorted(decisions, key=lambda one: (one.lo, one.limit))
    onsets = [one.lo for one in ordered]
    merged = _merged(ordered, now)
    for place, parts in enumerate(merged):
        one = parts[0]
        near = slice(
            bisect_left(onsets, one.lo - REVEALED_NS), bisect_right(onsets, one.limit + REVEALED_NS)
        )
        soon = {rank for other in ordered[near] if other.latest > one.lo for rank in other.ranks}
        others = ranks - len(one.ranks)
        others_follow = others > 0 and len(soon - one.ranks) >= NEARLY_ALL * others
        first = min(one.rises, key=lambda rise: rise.hi)
        following = _next(one, islice(merged, place + 1, None))
        is_sure = not (others_follow or uncertain)
        rise = _rise(parts, first, following, uncertain, now, _suspects(parts, is_sure))
        yield replace(rise, text=_text(rise, one)), first
        if one.outcome in COMMON and (left := _left_behind(one, now)) is not None:
            yield left


def _left_behind(one: Decision, now: int) -> tuple[Rise, RankRise] | None:
    """All rose together, and one rank went on for long after the others had stopped: it has left
    them behind since then."""
    *others, last = sorted(one.rises, key=lambda rise: rise.end)
    gains = [rise.gain for rise in others if rise.rank != last.rank]
    if not gains or others[-1].end == FOREVER or min(last.end, now) - others[-1].end < REVEALED_NS:
        return None
    lead = last.gain - max(gains)
    if lead < COMPARABLE * last.gain:
        return None
    began = others[0].end, others[-1].end
    rise = Rise(
        ranks=(last.rank,),
        suspects=(RiseSuspect(last.rank, Confidence.MEDIUM),),
        series=last.kind,
        device=last.device,
        onset=began,
        end_ns=min(last.end, now),
        bytes=lead,
        took_s=max(last.grown - began[0], 0) / SECOND,
        peak_bytes=last.peak,
        fell_back=last.back < FOREVER,
        alarming=last.alarming_at < FOREVER,
        common_cause=False,
        next_rank=None,
        lead_ns=0,
        unknown=(),
        attribution=last.attribution,
        text="",
    )
    kind = "host memory" if last.on_host else "memory"
    how = f"went on to rise when that of {text.ranks(sorted(one.ranks - {last.rank}))} had stopped"
    parts = (f"{kind} of rank {last.rank} {how}: {_figures(rise)}", whose(rise.attribution))
    return replace(rise, text="; ".join(filter(None, parts))), last


def _merged(ordered: Iterable[Decision], now: int) -> list[list[Decision]]:
    merged: list[list[Decision]] = []
    latest: dict[frozenset[int], list[Decision]] = {}
    for one in ordered:
        ranks = frozenset(one.ranks)
        if (before := latest.get(ranks)) is not None and _goes_on(before, one, now):
            before.append(one)
            continue
        latest[ranks] = [one]
        merged.append(latest[ranks])
    return merged


def _goes_on(parts: Parts, one: Decision, now: int) -> bool:
    if parts[0].outcome not in (one.outcome, Outcome.BEGAN_BEFORE):
        return False
    if one.outcome not in (Outcome.FIRST, Outcome.TOGETHER):
        return False
    places = {rise.rank: (rise.on_host, rise.device) for rise in parts[0].rises}
    if any((rise.on_host, rise.device) != places[rise.rank] for rise in one.rises):
        return False  # Host memory does not go on in a device.
    fell_back = any(rise.back < FOREVER for rise in parts[-1].rises)
    return one.lo - _ended(parts, now) <= (REVEALED_NS if fell_back else WINDOW_NS)


def _ended(parts: Parts, now: int) -> int:
    return max(
        now if rise.end == FOREVER else rise.end if rise.back == FOREVER else rise.back
        for rise in parts[-1].rises
    )


def _rise(
    parts: Parts,
    first: RankRise,
    following: RankRise | None,
    uncertain: Set[int],
    now: int,
    suspects: tuple[RiseSuspect, ...],
) -> Rise:
    """Without its text."""
    one = parts[0]
    of_first = [rise for part in parts for rise in part.rises if rise.rank == first.rank]
    peak, last = max(rise.peak for rise in of_first), of_first[-1]
    unknown = {*one.doubtful, *one.silent, *uncertain} - one.ranks
    return Rise(
        ranks=tuple(sorted(one.ranks)),
        suspects=suspects,
        series=first.kind,
        device=first.device,
        onset=(one.lo, one.limit),
        end_ns=_ended(parts, now),
        bytes=peak - first.high,
        took_s=max(last.grown - first.lo, 0) / SECOND,
        peak_bytes=peak,
        fell_back=last.back < FOREVER,
        alarming=_is_alarming(parts),
        common_cause=one.outcome in COMMON,
        next_rank=following.rank if following is not None else None,
        lead_ns=max(following.lo - one.limit, 0) if following is not None else 0,
        unknown=() if one.outcome in COMMON else tuple(sorted(unknown)),
        attribution=first.attribution,
        text="",
    )


def _is_alarming(parts: Parts) -> bool:
    return any(rise.alarming_at < FOREVER for part in parts for rise in part.rises)


def _suspects(parts: Parts, is_sure: bool) -> tuple[RiseSuspect, ...]:
    one = parts[0]
    match one.outcome:
        case Outcome.FIRST:
            confidence = _confidence(one, is_sure)
        case Outcome.EARLIEST:
            confidence = Confidence.LOW
        case _:
            return ()
    return tuple(RiseSuspect(rank, confidence) for rank in dict.fromkeys(_ranks(one)))


def _confidence(one: Decision, is_sure: bool) -> Confidence:
    """High is a promise: this rank rose first, and no other can have risen as early."""
    if one.follows or len(one.ranks) > 2:
        return Confidence.LOW
    is_sure = is_sure and not (one.doubtful or one.silent or one.raised)
    is_sure = is_sure and len(one.ranks) == 1 and one.rises[0].is_certain
    return Confidence.HIGH if is_sure else Confidence.MEDIUM


def _ranks(one: Decision) -> Iterator[int]:
    return (rise.rank for rise in one.rises)


def _next(one: Decision, later: Iterable[Parts]) -> RankRise | None:
    """The first rise of a rank that is not in this decision; `later` is in order of onset."""
    found: RankRise | None = None
    for other in later:
        if found is not None and other[0].lo >= found.lo:
            break
        for rise in other[0].rises:
            is_after = rise.lo >= one.limit and rise.rank not in one.ranks
            if is_after and (found is None or rise.lo < found.lo):
                found = rise
    return found


# -- text ----------------------------------------------------------------------------------------


def _text(rise: Rise, one: Decision) -> str:
    kind = "host memory" if one.rises[0].on_host else "memory"
    parts = [f"{kind} of {text.ranks(rise.ranks)} {_how(one)}: {_figures(rise)}"]
    if one.outcome is Outcome.UNDECIDED:
        parts.append(_too_early(rise))
    elif rise.suspects:
        if rise.next_rank is not None:
            lead = "just"
            if rise.lead_ns >= _LEAST_LEAD_NS:
                lead = duration(rise.lead_ns / SECOND)
            parts.append(f"{lead} before rank {rise.next_rank}")
        parts.append(whose(rise.attribution))
    if rise.fell_back:
        parts.append("it fell back")
    if rise.unknown and one.outcome is Outcome.FIRST and one.cause is None:
        parts.append(f"{text.ranks(rise.unknown)}: may have risen as early, or earlier")
    return "; ".join(filter(None, parts))


def _figures(rise: Rise) -> str:
    return f"+{size(rise.bytes)} in {duration(rise.took_s)} at {clock_text(rise.onset[1])}"


def _how(one: Decision) -> str:
    match one.outcome:
        case Outcome.FIRST if one.cause is not None:
            return f"rose after that of rank {one.cause}"
        case Outcome.FIRST if len(one.ranks) > 1:
            return "rose first, too close together to say which of them"
        case Outcome.FIRST:
            return "rose first"
        case Outcome.TOGETHER if len(one.ranks) == 1:
            return f"rose too, by far less than that of rank {one.cause}"
        case Outcome.TOGETHER:
            return "rose together, no single rank is the cause"
        case Outcome.STARTING:
            return "rose together from the beginning on: the job was starting"
        case Outcome.BEGAN_BEFORE:
            return "rose already when the recording began"
        case Outcome.UNDECIDED:
            return "rose"
        case Outcome.EARLIEST:
            return "rose first, as far as the recording shows"
        case _:
            assert_never(one.outcome)


def _too_early(rise: Rise) -> str:
    why = "the recording ends too soon after it"
    if rise.unknown:
        why = f"the recording does not show what {text.ranks(rise.unknown)} did"
    return f"too early to say whether it was first: {why}"
