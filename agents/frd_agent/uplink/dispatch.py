"""What to send next on a stream: the agent's side of the protocol, without I/O.

Rows are sent first, because a watermark claims that all rows before it have been sent, and then
phases, because with a watermark the phases up to its time are known, too. Statuses are last,
because the status of a rank that ended must follow its rows. Memory samples have the lowest
priority, unless they are urgent. That the agent was asked to stop precedes everything: it may be
killed a moment later. A restarted service knows nothing: it gets open collectives whose
rows an earlier service process acknowledged as a replay, before the rows that still wait. Nothing
queues up here: unsent data stays in the outbox and in the current state, within their bounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from frd.model import EntryColumns, NodeRawNs
from frd.wire.messages import AgentEvent
from frd_agent.memory.samples import Samples
from frd_agent.uplink.current_state import CurrentState
from frd_agent.uplink.dictionary import Dictionary
from frd_agent.uplink.outbox import BATCH_ROWS, Outbox, chosen
from frd_agent.uplink.stream_indexes import About, StreamIndexes

_ROUND_S: Final = 0.9
"""Between two rounds of watermarks; the taps publish once a second."""
_ROUND_WAITING_S: Final = 0.4


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

    def __post_init__(self) -> None:
        self._indexes = StreamIndexes(self.dictionary)

    @property
    def must_reopen(self) -> bool:
        """The stream is near its limit of declarations."""
        return self._indexes.full

    def open(self, *, knows_nothing: bool) -> None:
        """A new stream, to a service that has restarted (`knows_nothing`) or not."""
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

    def round_s(self, now_ns: NodeRawNs) -> float:
        """The interval between rounds of watermarks: shorter while a stall may be imminent."""
        return _ROUND_WAITING_S if self.current.someone_waits(now_ns) else _ROUND_S

    def rank_of(self, stream_index: int) -> int | None:
        return self._indexes.rank_of(stream_index)

    def translate(self, event: About) -> list[AgentEvent]:
        return list(self._indexes.translate(event))

    def next(self, *, watermarks_due: bool) -> list[AgentEvent]:
        """The next messages, in order; empty if nothing is due."""
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
        if event is None and (watermarks_due or self.current.has_news):
            current = self.current
            event = current.next_phases() or current.next_watermarks() or current.next_statuses()
        if event is None and (watermarks_due or self.samples.urgent):
            event = self.samples.next_batch()
        return [] if event is None else self.translate(event)

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
