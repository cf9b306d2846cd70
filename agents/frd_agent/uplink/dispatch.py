"""What to send next on a stream: the agent's side of the protocol, without I/O.

Rows are sent first, because a watermark claims that all rows before it have been sent, and then
phases, because with a watermark the phases up to its time are known, too. Statuses are last,
because the status of a rank that ended must follow its rows. Memory samples have the lowest
priority, unless they are urgent. That the agent was asked to stop precedes everything: it may be
killed a moment later. A restarted service knows nothing: it gets open collectives whose
rows an earlier service process acknowledged as a replay, before the rows that still wait. Nothing
queues up here: unsent data stays in the outbox and in the current state, within their bounds.

What may wait is sent in rounds. A service that sets a pace (`Pace`) gets fewer of them while all is
well, and nothing later that a hang or a mismatch is found by: with rows that are sent go the
watermarks that belong to them, and a round is due as soon as a rank is known to wait. Rounds keep
the phase that they have by chance, or all agents of a job would report at the same moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from frd.model import EntryColumns, NodeRawNs
from frd.wire.messages import AgentEvent, Pace
from frd_agent.memory.samples import Samples
from frd_agent.uplink.current_state import CurrentState, Wait
from frd_agent.uplink.dictionary import About, Dictionary, StreamIndexes
from frd_agent.uplink.outbox import BATCH_ROWS, Outbox, chosen

_ROUND_NS: Final = 900_000_000
"""Between two rounds, without a pace or while a rank waits; the taps publish once a second."""
_ROUND_WAITING_NS: Final = 400_000_000
"""While a stall may be imminent."""
_LONGEST_ROUND_NS: Final = 10_000_000_000


@dataclass(slots=True, eq=False)
class Dispatch:
    dictionary: Dictionary
    outbox: Outbox
    current: CurrentState
    samples: Samples
    in_flight: Callable[[], Iterable[EntryColumns]]
    """Gives the open collectives of every rank, JOINED flags set."""
    others: Callable[[], Iterable[Dispatch]] = tuple
    """All that use the same dictionary."""
    _indexes: StreamIndexes = field(init=False)
    _replays: deque[EntryColumns] = field(default_factory=deque)
    _pace_ns: int | None = None
    _round_at_ns: int | None = None
    """When the last round was sent; None: the stream has had none."""
    _waited: bool = False
    """Some rank was known to wait then."""
    _sent_rows: bool = False
    """Since everything that was due was sent."""

    def __post_init__(self) -> None:
        self._indexes = StreamIndexes(self.dictionary)

    @property
    def must_reopen(self) -> bool:
        """The stream is near its limit of declarations."""
        return self._indexes.full

    @property
    def is_paced(self) -> bool:
        """The service has set a pace, so it takes bundles."""
        return self._pace_ns is not None

    def open(self, *, knows_nothing: bool) -> None:
        """A new stream, to a service that has restarted (`knows_nothing`) or not."""
        self._pace_ns = self._round_at_ns = None
        if self._indexes.full:
            using = {self, *self.others()}
            self.dictionary.keep_signatures({i for one in using for i in one._used_signatures()})
        self._indexes = StreamIndexes(self.dictionary)
        self._send_all_again(replay=knows_nothing)

    def resync(self) -> None:
        """The service asks for everything again, on this stream."""
        self._send_all_again(replay=True)

    def ack(self, revisions: dict[int, int]) -> None:
        """`revisions` are by stream index."""
        ranks = {self._indexes.rank_of(index): revision for index, revision in revisions.items()}
        self.outbox.ack({rank: n for rank, n in ranks.items() if rank is not None})

    def adopt(self, pace: Pace, now_ns: NodeRawNs) -> None:
        """A round that is overdue by the new pace comes when it would have come by that pace."""
        pace_ns = min(max(pace.round_ms * 1_000_000, _ROUND_NS), _LONGEST_ROUND_NS)
        if self._round_at_ns is not None:
            self._round_at_ns += (now_ns - self._round_at_ns) // pace_ns * pace_ns
        self._pace_ns = pace_ns

    def is_due(self, now_ns: NodeRawNs) -> bool:
        """There is something to send, or a round is due."""
        return self.current.has_news or self.outbox.has_unsent or self.round_in_ns(now_ns) <= 0

    def round_in_ns(self, now_ns: NodeRawNs) -> int:
        """Until the next round, by what is known now."""
        if self._round_at_ns is None:
            return 0
        wait, pace_ns = self.current.wait(now_ns, surely=self.is_paced), self._pace_ns
        if wait is not Wait.NO and not self._waited and pace_ns is not None:
            return 0
        round_ns = _ROUND_WAITING_NS if wait is Wait.NEW else _ROUND_NS
        if wait is Wait.NO and pace_ns is not None:
            round_ns = pace_ns // 2 if self._sent_rows else pace_ns
        return self._round_at_ns + round_ns - now_ns

    def rank_of(self, stream_index: int) -> int | None:
        return self._indexes.rank_of(stream_index)

    def translate(self, event: About) -> list[AgentEvent]:
        return list(self._indexes.translate(event))

    def next(self, now_ns: NodeRawNs, *, hurry: bool = False) -> list[AgentEvent]:
        """The next messages, in order; empty if nothing is due. `hurry`: everything is."""
        event: About | None
        if (leaving := self.current.next_leaving()) is not None:
            return self.translate(leaving)
        if self._replays:
            event = self._replays.popleft()
        else:
            event = (
                self.outbox.next_batch()
                or self.samples.next_events()
                or self.current.next_channels()
            )
        if isinstance(event, EntryColumns):
            self._sent_rows = self.is_paced
        is_round = event is None and (hurry or self.round_in_ns(now_ns) <= 0)
        if event is None and (is_round or self._sent_rows or self.current.has_news):
            current = self.current
            event = current.next_phases() or current.next_watermarks() or current.next_statuses()
        if event is None and (is_round or self.samples.urgent):
            event = self.samples.next_batch()
        if event is not None:
            return self.translate(event)
        self._sent_rows = False
        if is_round:
            self._round_at_ns = now_ns
            self._waited = self.current.wait(now_ns, surely=True) is not Wait.NO
        return []

    def _used_signatures(self) -> set[int]:
        """Of rows that wait or may have to be sent again, and of sends in flight."""
        batches = (*self.in_flight(), *self._replays)
        used = self.outbox.used_signatures() | self.current.used_signatures()
        return used.union(*(b.signature.tolist() for b in batches))

    def _send_all_again(self, *, replay: bool) -> None:
        self.outbox.rewind()
        self.current.rewind()
        self.samples.rewind()
        self._replays.clear()
        if replay:
            for batch in self.in_flight():
                rows = self._acknowledged(batch)
                for start in range(0, len(rows), BATCH_ROWS):
                    self._replays.append(chosen(rows, slice(start, start + BATCH_ROWS)))

    def _acknowledged(self, batch: EntryColumns) -> EntryColumns:
        """Without the collectives whose JOINED row still waits: the row will report them."""
        waiting = self.outbox.first_joined(batch.rank)
        keep = [
            row
            for row, (group, seq) in enumerate(
                zip(batch.group.tolist(), batch.seq.tolist(), strict=True)
            )
            if seq < waiting.get(group, seq + 1)
        ]
        return replace(chosen(batch, keep), first_revision=0)
