"""The clocks of all agents, as far as the service has learned them.

Every agent session has its own clock: two agents of one host may have different time namespaces,
and a malicious agent affects only its own clock. Pings go to `frd.engine.clocks.estimator`; this
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

from frd.engine.clocks.alignment import FAR_NS, GROWTH_PPM, Alignment
from frd.engine.clocks.estimator import Exchange, NodeClock, OffsetEstimate, ServiceTable
from frd.engine.clocks.realtime_table import RealtimeTable
from frd.engine.matching.clock_hints import ClockHint
from frd.errors import StoreError
from frd.model import AlignedNs, NodeNs, ServiceRawNs
from frd.service.clocks.view import ClockView
from frd.wire.clock import Readings
from frd.wire.messages import Watermarks

HORIZON_NS: Final = 1_500_000_000
"""An alignment in use must hold for so long: until another ping has come."""
_MARGIN: Final = 8
"""The claimed uncertainty exceeds the needed one by one part in so many."""
_ROUGH_NS: Final = 1_000_000
"""An estimate without bounds is not changed for less."""
_LONGEST_NS: Final = 60_000_000_000
_READ_EVERY_NS: Final = 250_000_000
_FORGET_NS: Final = 600_000_000_000
MAX_GONE: Final = 4_096
"""Sessions without a stream whose clocks are kept, should they come back."""

SessionKey: TypeAlias = tuple[str, str]
"""Boot id and session."""

log = logging.getLogger(__name__)


# -- what is in use ------------------------------------------------------------------------------


def guess(sent_at: NodeNs, received_at: AlignedNs) -> Alignment:
    """The alignment that a single message allows, without bounds."""
    return Alignment(
        reason="no exchange yet",
        now_ns=received_at,
        at_ns=sent_at,
        line_ns=received_at - sent_at,
        rate=0.0,
        line_from_ns=-FAR_NS,
        drift_ppm=0.0,
        age_s=0.0,
        segments=(),
    )


def claim_ns(alignment: Alignment) -> int | None:
    """Uncertainty claimed for present times, valid while the alignment is in use; None: none."""
    now = max(alignment.now_ns - alignment.offset_ns, alignment.at_ns)
    bounds = [alignment.uncertainty_ns(now + later) for later in (0, HORIZON_NS)]
    needed = [bound for bound in bounds if bound is not None]
    return max(needed) * (_MARGIN + 1) // _MARGIN if len(needed) == len(bounds) else None


def _needed_ns(newest: OffsetEstimate) -> int:
    """The uncertainty that would have to be claimed now."""
    later = newest.now_ns - newest.offset_ns - newest.at_ns + HORIZON_NS
    return newest.half_ns + abs(later) * GROWTH_PPM // 1_000_000


def encode(alignment: Alignment) -> bytes:
    return msgspec.msgpack.encode(alignment)


def decode(data: bytes) -> Alignment:
    """Also reads earlier journals, in which the state of the clock comes before the reason.

    Raises:
        StoreError: `data` is not what `encode` gives.
    """
    try:
        match msgspec.msgpack.decode(data):
            case ["synchronized" | "unsynchronized", *fields] | fields:
                return msgspec.convert(fields, Alignment)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(
            f"journal: alignment: {error}: a foreign file, or one of a newer frd"
        ) from None


# -- one clock -----------------------------------------------------------------------------------


class AgentClock:
    """The clock of one agent session."""

    def __init__(self, name: str, first: Alignment) -> None:
        self.name = name
        self.learned = NodeClock()
        self.used = first
        self.exchanged_at = AlignedNs(0)
        """When the last exchange was learned of."""
        self.gone_at = AlignedNs(0)
        """When its stream went; 0 while it is open."""
        self.read_at = 0
        """Node raw time of the newest reading."""
        self._claim_ns = claim_ns(first)
        node_ns = first.now_ns - first.line_ns
        self._newest = OffsetEstimate(
            first.reason, first.now_ns, node_ns, first.line_ns, 0, 0.0, 0.0
        )
        self._stream = 0
        self._use: Callable[[Alignment], None] | None = None

    @property
    def is_connected(self) -> bool:
        return self._stream > 0

    def connected(self, stream: int, use: Callable[[Alignment], None]) -> None:
        """`use` gets every alignment that comes into use while `stream` lasts."""
        self._stream, self._use = stream, use
        self.gone_at = AlignedNs(0)

    def disconnected(self, stream: int, now: AlignedNs) -> None:
        if stream == self._stream:  # else a newer stream of the session has taken its place
            self._stream, self._use = 0, None  # which would keep the stream and all its ranks
            self.gone_at = now

    def is_older(self, now: AlignedNs, age_ns: int) -> bool:
        """The newest estimate is older than `age_ns`."""
        return now - self._newest.now_ns > age_ns

    def conclude(self, raw: ServiceRawNs, table: ServiceTable) -> None:
        """Estimate again, because of a message or because time has passed; use another alignment if
        the one in use is no longer good enough."""
        before, newest = self._newest, self.learned.newest(raw, table)
        self._newest = newest
        if newest.reason != before.reason:
            self._log_change(before, newest)
        if self._is_good_enough(newest):
            return
        self.used = self.learned.alignment(raw, table)
        self._claim_ns = claim_ns(self.used)
        if self._use is not None:
            self._use(self.used)

    def _is_good_enough(self, newest: OffsetEstimate) -> bool:
        """The alignment in use is still good enough: its claim holds, and is not much larger than
        needed."""
        used, claimed = self.used, self._claim_ns
        if used.reason != newest.reason or newest.now_ns - used.now_ns > _LONGEST_NS:
            return False
        moved = abs(used.one_to_aligned(newest.at_ns) - newest.at_ns - newest.offset_ns)
        if claimed is None:  # of a clock that was just set back, times may be of before or after
            may_be_bounded = not newest.reason and newest.now_ns - used.now_ns >= HORIZON_NS
            return moved <= _ROUGH_NS and not may_be_bounded
        needed = _needed_ns(newest)
        return needed + moved <= claimed <= 2 * needed

    def _log_change(self, before: OffsetEstimate, newest: OffsetEstimate) -> None:
        offset_s, moved_s = newest.offset_ns / 1e9, (newest.offset_ns - before.offset_ns) / 1e9
        if newest.reason:
            why = f"unsynchronized: {newest.reason}; its offset moved by {moved_s:+.3f} s"
            log.warning("clock of %s: %s", self.name, why)
        elif self.used.segments:  # the first time is no news
            within_s = newest.half_ns / 1e9
            log.info("clock of %s: synchronized: %+.6f s ± %.6f s", self.name, offset_s, within_s)

    def view(self, now: AlignedNs) -> ClockView:
        return ClockView(self._newest, now, self.exchanged_at, self.learned.steps)


# -- all clocks ----------------------------------------------------------------------------------


class AgentClocks:
    """`now` is the clock that rows are aligned to, `raw` the one that pings are stamped with."""

    def __init__(self, now: Callable[[], AlignedNs], raw: Callable[[], ServiceRawNs]) -> None:
        self.refused: Counter[str] = Counter()
        """Refused timestamps and refused streams, by reason."""
        self._now = now
        self._raw = raw
        self._clocks: dict[SessionKey, AgentClock] = {}
        self._table: ServiceTable = RealtimeTable(_READ_EVERY_NS)
        self._read()

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
            clock = self._clocks[key] = AgentClock(name, first)
        clock.connected(stream, use)
        return clock

    def find(self, key: SessionKey) -> AgentClock | None:
        """The clock of a session that is connected."""
        clock = self._clocks.get(key)
        return clock if clock is not None and clock.is_connected else None

    def heard(self, clock: AgentClock, marks: Watermarks, received_at: AlignedNs) -> None:
        """A message of the main stream: without pings the only evidence of the clock, with pings
        one more reading of it."""
        if not clock.exchanged_at:
            clock.learned.one_way(marks.sent_at_ns, received_at)
        raw = marks.sent_raw_ns
        if raw is not None:
            self._read_node(clock, [raw], [marks.sent_at_ns], [marks.sent_slack_ns])
        if raw is not None or not clock.exchanged_at:
            clock.conclude(self._read(), self._table)

    def learn(self, clock: AgentClock, readings: Readings, exchange: Exchange | None) -> None:
        """What one ping brought: readings of the node, and the end of an earlier exchange."""
        columns = readings.raw_ns, readings.real_ns, readings.slack_ns
        self._read_node(clock, *(column.tolist() for column in columns))
        if exchange is not None:
            refusal = clock.learned.exchange(exchange)
            if refusal is not None:
                self.refused[refusal.value] += 1
            else:
                clock.exchanged_at = self._now()
        clock.conclude(self._read(), self._table)

    def _read_node(
        self, clock: AgentClock, raws: list[int], reals: list[int], slacks: list[int]
    ) -> None:
        """Readings come on two streams, so the newest may be here already."""
        new = bisect_right(raws, clock.read_at)
        if new == len(raws):
            return
        refusal = clock.learned.readings(raws[new:], reals[new:], slacks[new:])
        if refusal is None:
            clock.read_at = raws[-1]
        else:
            self.refused[refusal.value] += 1

    def compare(self, early: AgentClock, late: AgentClock, nodes: int, hint: ClockHint) -> None:
        """Apply a hint: a rank of `early` completed a collective that a rank of `late` joined last.
        The attempt has `nodes` clocks."""
        for clock, peer, least_ns, most_ns in (
            (early, late.name, hint.early_least_ns, None),
            (late, early.name, None, hint.late_most_ns),
        ):
            if not clock.learned.constrain(peer, nodes - 1, hint.at, least_ns, most_ns):
                clock.conclude(self._read(), self._table)

    def refresh(self) -> None:
        """Estimate silent clocks again: their uncertainty grows with time."""
        raw, now = self._read(), self._now()
        for clock in self._clocks.values():
            if clock.is_connected and clock.is_older(now, HORIZON_NS):
                clock.conclude(raw, self._table)

    def forget(self, now: AlignedNs) -> None:
        """Drop sessions that are gone for long, or too many."""
        gone = [(clock.gone_at, key) for key, clock in self._clocks.items() if clock.gone_at]
        gone.sort(reverse=True)
        for at, key in gone[:MAX_GONE]:
            if now - at > _FORGET_NS:
                del self._clocks[key]
        for _, key in gone[MAX_GONE:]:
            del self._clocks[key]

    def _read(self) -> ServiceRawNs:
        """The service's own two clocks."""
        before, real, after = self._raw(), self._now(), self._raw()
        middle = ServiceRawNs(before + (after - before) // 2)
        self._table.read(middle, real, after - middle)
        return middle
