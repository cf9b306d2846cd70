"""The recorder that torch 2.15 fills by hooks, for backends without a recorder, such as nccl2.

It has the form of the others, and shows less (`tests/golden/nccl2`). Its counters are numbers of
ops, sends included. No op is ever `started`. torch's handler shows the ops without an end; only a
handler of the tap shows all. When an op ends depends on the form:

- ``late``: the backend pushes completion when it finds it: a watchdog looks once a second, and
  nccl2 also when the rank issues its next op. So the time of an end is an upper bound. The parts of
  a batch of sends have ended as soon as they are issued, and nothing shows the end of the batch.
- ``issue``: no completion is pushed. An op is retired when it is issued, and never completed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from frd.flight.entry import Status
from frd_agent import tap
from tests.sim.recorder import Record, Seat, config_of, format_entry, written

BACKEND: Final = "nccl2"
FORMS: Final = ("late", "issue")


class HookRecorder:
    """The recorder of one backend in one rank."""

    def __init__(self, ring: int, form: str) -> None:
        self.number = tap.HOOKED
        self.recorded = 0
        """Entries of collectives since the start."""
        self.recorded_p2p = 0
        self.seats: list[Seat] = []
        self._form = form
        self._ring: deque[Record] = deque(maxlen=ring)
        self._next_id = 0

    def write(self, record: Record) -> None:
        """An op is issued."""
        record.record_id = self._next_id
        self._next_id += 1
        record.seat.is_known = True
        self._ring.append(record)
        if record.op.dst >= 0:
            self.recorded_p2p += 1
        else:
            self.recorded += 1
        if self._form == "issue":
            record.seat.completed = record.number
        elif record.op.is_part:
            retire(record, record.created_ns)

    def reset(self) -> None:
        self._ring.clear()
        self._next_id = 0

    def status(self, now: int, head: Record | None) -> dict[int, Status]:
        """`pg_status`, as the watchdog knows it."""
        return {
            seat.pg_id: Status(seat.enqueued, -1, seat.completed)
            for seat in self.seats
            if seat.is_known
        }

    def dump_active(self) -> bytes:
        """The ops without a time of completion."""
        return self._written(record for record in self._ring if not record.completed_ns)

    def dump_whole(self) -> bytes:
        return self._written(self._ring)

    def _written(self, records: Iterable[Record]) -> bytes:
        config = b",".join(seat.group.config or config_of(seat.group) for seat in self.seats)
        entries = [record.text or self._entry(record) for record in records]
        return written(b'""', config, self.status(0, None), entries)

    def _entry(self, record: Record) -> bytes:
        if self._form == "late":
            return format_entry(record, b"scheduled", 0, 0, False, b"")
        record.text = format_entry(record, b"scheduled", 0, 0, True, b"")
        return record.text


def retire(record: Record, at_ns: int, *, durations: bool = False) -> None:
    """The op is found to have ended; of several found together, the last one counts."""
    took = b'"duration_ms":%.3f,' % ((record.done_at - record.ready_at) / 1e6) if durations else b""
    record.completed_ns = record.started_ns = at_ns
    record.seat.completed = record.number
    record.text = format_entry(record, b"completed", at_ns, at_ns, True, took)
