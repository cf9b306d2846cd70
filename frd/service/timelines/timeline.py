"""A timeline as a value: lanes, bars, gaps and curves, with absolute times; how two are merged.

Times are UTC in ns where it is stored or shown. `timelines` bounds its size.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from functools import partial
from typing import Final, TypeVar

import msgspec

from frd.decodable import decodable
from frd.model import AlignedNs

MAX_LATENESS: Final = 512
"""Ops over which the lateness of ranks is kept."""
MOMENT_NS: Final = 100_000_000
MAX_MOMENTS: Final = 900
"""Values of a memory curve: half an hour, one every two seconds."""
_NEAR: Final = 10
"""Moments: half of the time between two values."""
_MAX_BYTES: Final = 64 * 1024 * 1024
"""Of a stored timeline, unpacked."""

_TIMES: Final = ("at", "enqueued", "started", "ended_from", "ended", "since", "until")
"""Names of the fields that are times."""
_Timed = TypeVar("_Timed", bound=msgspec.Struct)


class Lane(msgspec.Struct, frozen=True, array_like=True):
    rank: int
    node: str
    role: str
    """``suspect``, ``witness``, ``waiting``, ``member`` of the collective's group, or ``other``."""
    uncertainty_ns: int | None
    """None: the clock is not known."""


class _Op(msgspec.Struct, frozen=True, array_like=True):
    """One op of one rank."""

    rank: int
    group: str
    """Its id."""
    seq: int
    op: str

    @property
    def key(self) -> tuple[int, str, int]:
        return self.rank, self.group, self.seq


class Bar(_Op, frozen=True, array_like=True):
    """It has joined the op."""

    enqueued: int
    started: int
    """0 unknown."""
    ended_from: int
    ended: int
    """It ended at `ended_from` at the earliest, at `ended` at the latest; 0: it is open."""
    failed: bool


class Gap(_Op, frozen=True, array_like=True):
    """It has not joined the op, and others wait in it."""

    since: int
    until: int | None


class Curve(msgspec.Struct, frozen=True, array_like=True):
    """The memory of one rank over time."""

    rank: int
    kind: str
    device: str
    capacity: int
    values: dict[int, int]
    """Bytes, by time in units of `MOMENT_NS`."""

    @property
    def key(self) -> tuple[int, str, str]:
        return self.rank, self.kind, self.device


class Late(msgspec.Struct, frozen=True, array_like=True):
    """When a rank enqueued a collective, compared with the first rank that did."""

    rank: int
    group: str
    """Its id."""
    seq: int
    at: int
    """When the first rank did."""
    late_ns: int

    @property
    def op(self) -> tuple[str, int]:
        return self.group, self.seq


class Reached(msgspec.Struct, frozen=True, array_like=True):
    """How far a rank has come in a group."""

    rank: int
    group: str
    joined: int
    """The highest seq that it has enqueued."""
    completed: int
    """It has completed this op and all before it."""


@decodable
class Timeline(msgspec.Struct, frozen=True):
    """What is known at one time."""

    at: int
    lanes: tuple[Lane, ...] = ()
    """In the order in which they are drawn."""
    groups: dict[str, str] = {}
    """Labels by group id."""
    bars: tuple[Bar, ...] = ()
    """Sorted by rank, then by enqueue."""
    gaps: tuple[Gap, ...] = ()
    curves: tuple[Curve, ...] = ()
    lateness: tuple[Late, ...] = ()
    all_ranks: int = 0
    """Ranks of the attempt, most of which may have no lane."""
    utc_ahead_ns: int = 0
    """What `later` has added to its times."""
    reached: tuple[Reached, ...] = ()
    """Not stored."""

    @property
    def has_unknown_ends(self) -> bool:
        """Of some ops it is only known by when they had ended, as of Gloo's."""
        return any(bar.ended_from < bar.ended for bar in self.bars)

    def of(self, ranks: Collection[int]) -> Timeline:
        """The lanes of these ranks, in their order here."""
        chosen = frozenset(ranks)
        return msgspec.structs.replace(
            self,
            lanes=tuple(lane for lane in self.lanes if lane.rank in chosen),
            bars=tuple(bar for bar in self.bars if bar.rank in chosen),
            gaps=tuple(gap for gap in self.gaps if gap.rank in chosen),
        )

    def later(self, ns: int) -> Timeline:
        """All times so much later; 0, which says unknown, stays 0."""
        if not ns:
            return self
        move, moments = partial(_later, ns), round(ns / MOMENT_NS)
        values = [{at + moments: value for at, value in c.values.items()} for c in self.curves]
        curves = zip(self.curves, values, strict=True)
        return msgspec.structs.replace(
            move(self),
            bars=tuple(map(move, self.bars)),
            gaps=tuple(map(move, self.gaps)),
            lateness=tuple(map(move, self.lateness)),
            curves=tuple(msgspec.structs.replace(curve, values=of) for curve, of in curves),
            utc_ahead_ns=self.utc_ahead_ns + ns,
        )

    def encode(self) -> bytes:
        stored = msgspec.structs.replace(self, reached=())
        return zlib.compress(msgspec.json.encode(stored), level=3)

    @classmethod
    def decode(cls, data: bytes) -> Timeline:
        """The inverse of `encode`.

        Raises:
            ValueError: `data` is something else.
        """
        try:
            text = zlib.decompressobj().decompress(data, _MAX_BYTES)
            return msgspec.json.decode(text, type=cls)
        except (zlib.error, msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"not a timeline: {error}") from None


def _later(ns: int, one: _Timed) -> _Timed:
    times = {name: at + ns for name in _TIMES if (at := getattr(one, name, None))}
    return msgspec.structs.replace(one, **times)


def merged(kept: Timeline, live: Timeline) -> Timeline:
    """`kept`, with what `live` knows later and what is new in it."""
    bars = {bar.key: bar for bar in live.bars}
    reached = {(one.rank, one.group): one for one in live.reached}
    for bar in kept.bars:
        known = bars.get(bar.key)
        if known is not None:
            bars[bar.key] = _surer(bar, known)
            continue
        bars[bar.key] = bar
        now = reached.get((bar.rank, bar.group))
        if not bar.ended and now is not None and now.completed >= bar.seq:
            # The engine no longer has the row that ended it.
            bars[bar.key] = msgspec.structs.replace(bar, ended_from=bar.enqueued, ended=live.at)
    lanes = {lane.rank: lane for lane in (*kept.lanes, *live.lanes)}
    return msgspec.structs.replace(
        live,
        lanes=tuple(lanes.values()),
        groups={**kept.groups, **live.groups},
        bars=tuple(sorted(bars.values(), key=lambda bar: (bar.rank, bar.enqueued))),
        gaps=_joined(_gaps(kept, live), bars.values()),
        curves=tuple(_curves(kept.curves, live.curves)),
        lateness=_lateness((*kept.lateness, *live.lateness)),
        all_ranks=max(kept.all_ranks, live.all_ranks),
    )


def _surer(one: Bar, other: Bar) -> Bar:
    """The one whose end is known, or known better."""
    if not (one.ended and other.ended):
        return one if one.ended else other
    return min(one, other, key=lambda bar: bar.ended - bar.ended_from)


def _gaps(kept: Timeline, live: Timeline) -> list[Gap]:
    """Those of both. One that `live` does not have is over if the rank has joined the op."""
    gaps = {gap.key: gap for gap in live.gaps}
    reached = {(one.rank, one.group): one.joined for one in live.reached}
    joined = {bar.key: bar.enqueued for bar in live.bars}
    for gap in kept.gaps:
        until = gap.until
        if until is None and reached.get((gap.rank, gap.group), -1) >= gap.seq:
            until = joined.get(gap.key, live.at)
        gaps[gap.key] = msgspec.structs.replace(gap, until=until)
    return list(gaps.values())


def closed(timeline: Timeline, at: AlignedNs) -> Timeline:
    """The finding has closed: what was missing is missing no longer."""
    return msgspec.structs.replace(timeline, gaps=_joined(timeline.gaps, timeline.bars, at))


def _joined(gaps: Iterable[Gap], bars: Iterable[Bar], at: int | None = None) -> tuple[Gap, ...]:
    """`gaps`, each up to when its rank joined the op; those of ops that it never joined, up to
    `at`."""
    joined = {bar.key: bar.enqueued for bar in bars}
    return tuple(
        gap
        if gap.until is not None
        else msgspec.structs.replace(gap, until=joined.get(gap.key, at))
        for gap in gaps
    )


def _curves(kept: Iterable[Curve], live: Iterable[Curve]) -> Iterable[Curve]:
    curves = {curve.key: curve for curve in kept}
    for curve in live:
        known = curves.get(curve.key)
        # The times of one value differ a little from look to look.
        first = min(curve.values, default=0)
        earlier = known.values if known else {}
        values = {moment: value for moment, value in earlier.items() if moment < first - _NEAR}
        values |= curve.values or earlier
        for moment in sorted(values)[:-MAX_MOMENTS]:
            del values[moment]
        curves[curve.key] = msgspec.structs.replace(curve, values=values)
    return curves.values()


def _lateness(rows: Iterable[Late]) -> tuple[Late, ...]:
    known = {(late.rank, late.op): late for late in rows}
    at = {late.op: late.at for late in known.values()}
    last = frozenset(sorted(at, key=lambda op: (at[op], op))[-MAX_LATENESS:])
    return tuple(late for late in known.values() if late.op in last)
