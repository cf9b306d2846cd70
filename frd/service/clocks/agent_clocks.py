"""The clocks of all agents, as far as the service has learned them.

Every agent session has its own clock: two agents of one host may have different time namespaces,
and a malicious agent affects only its own clock. A session has a stream for each of its jobs, all
with one clock. Pings go to `frd.engine.clocks.estimator`; this
module decides which of its alignments is *in use*: the session's rows are aligned with it, the
engine gets its uncertainty, and the journal keeps it, so that a replay aligns in the same way. An
alignment stays in use while it is good enough, so that clocks cost the journal almost nothing.

`frd.service.clocks.pings` reads the network; nothing here waits.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from frd.decodable import decodable
from frd.engine.clocks.alignment import FAR_NS, HORIZON_NS, Alignment, growth_ns
from frd.engine.clocks.estimator import Exchange, NodeClock, OffsetEstimate
from frd.engine.clocks.wall_readings import WallReadings
from frd.engine.matching.lateness import ClockHint
from frd.errors import StoreError
from frd.model import AlignedNs, NodeRawNs
from frd.service.clocks.real_time import RealTime
from frd.service.clocks.view import ClockView
from frd.wire.clock import Readings
from frd.wire.messages import Hello, Watermarks

_ROUGH_NS: Final = 1_000_000
"""An estimate without bounds is not changed for less."""
_LONGEST_NS: Final = 60_000_000_000
_GREETED_SLACK_NS: Final = 1_000_000
"""The two times of a Hello were read so close to each other."""
_FORGET_NS: Final = 600_000_000_000
MAX_GONE: Final = 4_096
"""Sessions without a stream whose clocks are kept, should they come back."""

SessionKey: TypeAlias = tuple[str, str]
"""Boot id and session."""


# -- one clock -----------------------------------------------------------------------------------
decodable(Alignment)

_MARGIN: Final = 8
"""The claimed uncertainty exceeds the needed one by one part in so many."""

log = logging.getLogger(__name__)


class AgentClock:
    """The clock of one agent session."""

    def __init__(self, name: str, first: Alignment, now: RealTime) -> None:
        self.name = name
        self._now = now
        self.learned = NodeClock()
        self.wall = WallReadings()
        self.used = first
        self.exchanged_at = AlignedNs(0)
        """When the last exchange was learned of."""
        self.gone_at = AlignedNs(0)
        """When its last stream went; 0 while one is open."""
        self.read_at = 0
        """Node raw time of the newest reading."""
        self.concluded_at = first.now_ns
        """When its clock was estimated last."""
        self._claim_ns = claim_ns(first)
        self._newest: OffsetEstimate | None = None
        self._uses: dict[int, Callable[[Alignment], None]] = {}
        """By stream of the session that is open. They keep the streams and all their ranks."""
        self._last: tuple[object, Exchange | None] = (None, None)
        """The last exchange that counts, and its clock stream."""

    @property
    def is_connected(self) -> bool:
        return bool(self._uses)

    def connected(self, stream: int, use: Callable[[Alignment], None]) -> None:
        """`use` gets every alignment that comes into use while `stream` lasts."""
        self._uses[stream] = use
        self.gone_at = AlignedNs(0)

    def disconnected(self, stream: int, now: AlignedNs) -> None:
        if self._uses.pop(stream, None) is not None and not self._uses:
            self.gone_at = now

    def is_overtaken(self, stream: object, exchange: Exchange) -> bool:
        """Another clock stream of the session has brought a later exchange: they must come in the
        order of sending. An agent pings on each of its connections, because each may go to another
        replica of the service, and on one of those to the same as often as that asks."""
        of, last = self._last
        if last is None or of is stream:
            return False
        return any(now <= before for now, before in zip(exchange, last, strict=True))

    def took(self, stream: object, exchange: Exchange) -> None:
        """The exchange counts."""
        self.exchanged_at, self._last = self._now(), (stream, exchange)

    def conclude(self, horizon_ns: int, *, force: bool = False) -> None:
        """Estimate again, because of a message or because time has passed; use another alignment if
        the one in use is not good enough for the next `horizon_ns`, or always with `force`."""
        if self.learned.is_unheard:
            return
        raw = self._now.raw()
        newest, self.concluded_at = self.learned.newest(raw), self._now.at(raw)
        self._log_change(newest)
        self._newest = newest
        aligned_ns = self._now.at(newest.at_ns + newest.offset_ns)
        if not force and self._is_good_enough(newest, aligned_ns, horizon_ns):
            return
        self.used = align(newest, self._now.at, horizon_ns)
        self._claim_ns = claim_ns(self.used)
        for use in list(self._uses.values()):
            use(self.used)

    def _is_good_enough(
        self, newest: OffsetEstimate, aligned_ns: AlignedNs, horizon_ns: int
    ) -> bool:
        """The alignment in use is still good enough: its claim holds, and is not much larger than
        needed."""
        used, claimed = self.used, self._claim_ns
        if used.reason != newest.reason:
            return False
        if self.concluded_at - used.now_ns > _LONGEST_NS:
            return False
        moved = abs(used.one_to_aligned(newest.at_ns) - aligned_ns)
        if claimed is None:
            return moved <= _ROUGH_NS
        needed = newest.half_ns + growth_ns(horizon_ns, newest.growth_ppm, newest.rate)
        return needed + moved <= claimed <= 2 * needed

    def _log_change(self, newest: OffsetEstimate) -> None:
        before = self._newest
        if before is None or newest.reason == before.reason:
            return
        if newest.reason:
            moved_s = (newest.offset_ns - before.offset_at(newest.at_ns)) / 1e9
            why = f"unsynchronized: {newest.reason}; its offset moved by {moved_s:+.3f} s"
            log.warning("clock of %s: %s", self.name, why)
        elif before.half_ns:  # the first time is no news
            log.info("clock of %s: synchronized: ± %.6f s", self.name, newest.half_ns / 1e9)

    def view(self, now: AlignedNs) -> ClockView:
        used = self.used
        raw_ns = used.at_ns + now - used.aligned_ns
        ahead = self.wall.ahead(raw_ns)
        if ahead is not None:
            ahead = (ahead[0] - self._now.ahead_ns, ahead[1])
        rate = self._newest.rate if self._newest else 0.0
        return ClockView(now, used, raw_ns, ahead, rate, self.exchanged_at, self.wall.steps)


# -- all clocks ----------------------------------------------------------------------------------


class AgentClocks:
    """Rows are aligned to `now`, whose raw clock stamps pings."""

    def __init__(self, now: RealTime) -> None:
        self.refused: Counter[str] = Counter()
        """Refused timestamps and refused streams, by reason."""
        self.horizon_ns = HORIZON_NS
        """For how long alignments are made."""
        self._now = now
        self._clocks: dict[SessionKey, AgentClock] = {}

    def connected(
        self,
        key: SessionKey,
        name: str,
        first: Alignment,
        stream: int,
        use: Callable[[Alignment], None],
    ) -> AgentClock:
        """The clock of a session that has said hello on `stream`; see `AgentClock.connected`.

        `first` is the alignment to begin with, if the session is new.
        """
        clock = self._clocks.get(key)
        if clock is None:
            clock = self._clocks[key] = AgentClock(name, first, self._now)
        clock.connected(stream, use)
        return clock

    def find(self, key: SessionKey) -> AgentClock | None:
        """The clock of a session that is connected."""
        clock = self._clocks.get(key)
        return clock if clock is not None and clock.is_connected else None

    def greeted(self, clock: AgentClock, hello: Hello) -> None:
        """The first message of a stream has both clocks of the node."""
        if hello.sent_at_ns:
            self._read_node(clock, [hello.sent_raw_ns], [hello.sent_at_ns], [_GREETED_SLACK_NS])

    def heard(self, clock: AgentClock, marks: Watermarks) -> None:
        """A message of the main stream: without pings the only evidence of the clock, with pings
        one more reading of the wall clock."""
        raw = marks.sent_raw_ns
        if marks.sent_at_ns:
            self._read_node(clock, [raw], [marks.sent_at_ns], [marks.sent_slack_ns])
        if not clock.exchanged_at:
            clock.learned.one_way(raw, self._now.raw())
            clock.conclude(self.horizon_ns)

    def learn(
        self,
        clock: AgentClock,
        readings: Readings,
        exchange: Exchange | None,
        stream: object = None,
    ) -> None:
        """What one ping on a clock stream brought: readings of the node, and the end of an earlier
        exchange."""
        columns = readings.raw_ns, readings.real_ns, readings.slack_ns
        has_stepped = self._read_node(clock, *(column.tolist() for column in columns))
        if exchange is not None and not clock.is_overtaken(stream, exchange):
            refusal = clock.learned.exchange(exchange)
            if refusal is not None:
                self.refused[refusal.value] += 1
            else:
                clock.took(stream, exchange)
        last = clock.wall.last
        if not clock.exchanged_at and len(readings.raw_ns) and last is not None:
            clock.learned.one_way(NodeRawNs(last[0]), self._now.raw())
        clock.conclude(self.horizon_ns, force=has_stepped)

    def _read_node(
        self, clock: AgentClock, raws: list[int], reals: list[int], slacks: list[int]
    ) -> bool:
        """Readings come on two streams, so the newest may be here already; True if they show a
        step of the wall clock."""
        new, steps = bisect_right(raws, clock.read_at), clock.wall.steps
        if new == len(raws):
            return False
        refusal = clock.wall.read(raws[new:], reals[new:], slacks[new:])
        if refusal is None:
            clock.read_at = raws[-1]
        else:
            self.refused[refusal.value] += 1
        return clock.wall.steps != steps

    def compare(self, early: AgentClock, late: AgentClock, nodes: int, hint: ClockHint) -> None:
        """Apply a hint: a rank of `early` completed a collective that a rank of `late` joined last.
        The attempt has `nodes` clocks."""
        at = self._now.raw_at(hint.at)
        for clock, peer, least_ns, most_ns in (
            (early, late.name, hint.early_least_ns, None),
            (late, early.name, None, hint.late_most_ns),
        ):
            if not clock.learned.constrain(peer, nodes - 1, at, least_ns, most_ns):
                clock.conclude(self.horizon_ns)

    def ping_every(self, pause_s: float) -> None:
        """Agents ping about so often."""
        self.horizon_ns = round(pause_s * HORIZON_NS)

    def refresh(self) -> None:
        """Estimate silent clocks again: their uncertainty grows with time."""
        now = self._now()
        for clock in self._clocks.values():
            if clock.is_connected and now - clock.concluded_at > clock.used.horizon_ns:
                clock.conclude(self.horizon_ns)

    def forget(self, now: AlignedNs) -> None:
        """Drop sessions that are gone for long, or too many."""
        gone = [(clock.gone_at, key) for key, clock in self._clocks.items() if clock.gone_at]
        gone.sort(reverse=True)
        for at, key in gone[:MAX_GONE]:
            if now - at > _FORGET_NS:
                del self._clocks[key]
        for _, key in gone[MAX_GONE:]:
            del self._clocks[key]


def guess(sent_at: int, received_at: AlignedNs) -> Alignment:
    """The alignment that a single message allows, without bounds."""
    return Alignment(
        reason="no exchange yet",
        now_ns=received_at,
        at_ns=sent_at,
        aligned_ns=received_at,
        rate=0.0,
        half_ns=0,
    )


def align(
    newest: OffsetEstimate, at: Callable[[int], AlignedNs], horizon_ns: int = HORIZON_NS
) -> Alignment:
    """From a node's raw clock over the service's to aligned time; `at` leads from there."""
    aligned_ns = at(newest.at_ns + newest.offset_ns)
    return Alignment(
        newest.reason,
        at(newest.now_ns),
        newest.at_ns,
        AlignedNs(min(max(aligned_ns, newest.at_ns - FAR_NS), newest.at_ns + FAR_NS)),
        newest.rate,
        newest.half_ns,
        newest.growth_ppm,
        horizon_ns,
    )


def claim_ns(alignment: Alignment) -> int | None:
    """Uncertainty claimed for present times, valid while the alignment is in use; None: none."""
    at_ns, now_ns = alignment.at_ns, alignment.at_ns + alignment.now_ns - alignment.aligned_ns
    needed = alignment.uncertainty_ns(max(now_ns, at_ns) + alignment.horizon_ns)
    return None if needed is None else needed * (_MARGIN + 1) // _MARGIN


def encode(alignment: Alignment) -> bytes:
    return msgspec.msgpack.encode(alignment)


def decode(data: bytes) -> Alignment:
    """
    Raises:
        StoreError: `data` is not what `encode` gives.
    """
    try:
        return msgspec.msgpack.decode(data, type=Alignment)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(
            f"journal: alignment: {error}: a foreign file, or one of a newer frd"
        ) from None
