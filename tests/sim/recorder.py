"""The Flight Recorder of a simulated rank: a ring of records, and the dumps that torch makes of it.

The recorders of NCCL and Gloo differ in almost everything except the format. What NCCL's recorder
shows of an op that its watchdog has not yet looked at depends on the time of the dump.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from frd.flight.entry import Status
from frd_agent import tap
from tests.sim.ops import Group, Op

if TYPE_CHECKING:
    from tests.sim.hooks import HookRecorder
    from tests.sim.ranks import Meeting, SimRank

HANDLERS: Final = {tap.GENERIC: "fr_trace_json", tap.NCCL: "dump_nccl_trace_json"}
_TEARS_NS: Final = 300_000
"""How long Gloo's entries lag behind its counters."""
_TIMEOUT_MS: Final = 600_000
_ENTRY: Final = (
    b'{"record_id":%d,"pg_id":%d,"collective_seq_id":%d,"p2p_seq_id":%d,"op_id":%d,'
    b'"time_created_ns":%d,"state":"%b","time_discovered_started_ns":%d,'
    b'"time_discovered_completed_ns":%d,"retired":%b,%b%b}'
)


class Seat:
    """One rank's counters in one group."""

    __slots__ = (
        "completed", "enqueued", "freed_at", "group", "is_known", "messages", "op_id", "p2p_seq",
        "pg_id", "recorder", "seq", "started",
    )  # fmt: skip

    def __init__(self, group: Group, pg_id: int, recorder: Recorder | HookRecorder) -> None:
        self.group = group
        self.pg_id = pg_id
        self.recorder = recorder
        self.seq = 0
        self.p2p_seq = 0
        self.op_id = -1 if group.backend == "nccl2" else 0
        self.messages: dict[tuple[int, int], int] = {}
        """Sends or receives so far, by sender and receiver."""
        self.enqueued = self.started = self.completed = -1
        """As `pg_status` has them."""
        self.freed_at = 0
        """True time when the last op there ended."""
        self.is_known = False
        """The recorder has recorded something of this group."""


class Record:
    """One op of one rank, from enqueueing on, and its entry in the ring."""

    __slots__ = (
        "came_at", "completed_ns", "created_ns", "device_ns", "done_at", "meeting", "number", "op",
        "op_id", "p2p_seq", "rank", "ready_at", "record_id", "seat", "seq", "started_ns", "text",
    )  # fmt: skip

    def __init__(self, rank: SimRank, seat: Seat, op: Op, created_ns: int, device_ns: int) -> None:
        self.rank = rank
        self.seat = seat
        self.op = op
        self.created_ns = created_ns
        self.came_at = 0
        """`created_ns` in true time."""
        self.device_ns = device_ns
        self.record_id = 0
        self.seq = seat.seq
        self.p2p_seq = seat.p2p_seq
        self.op_id = seat.op_id
        self.number = seat.enqueued
        """Its number in `pg_status`."""
        self.meeting: Meeting | None = None
        self.ready_at = 0
        """True time when the device starts it; 0 while ops are before it."""
        self.done_at = 0
        """True time when it was complete."""
        self.started_ns = 0
        self.completed_ns = 0
        """When the watchdog noticed; the entry does not change afterwards."""
        self.text = b""


class Recorder:
    """One recorder of one rank."""

    def __init__(self, number: int, ring: int, *, timing: bool) -> None:
        self.number = number
        self.timing = timing
        self.recorded = 0
        """Entries of collectives since the start."""
        self.recorded_p2p = 0
        self._is_gloo = number == tap.GENERIC
        self._ring: deque[Record] = deque(maxlen=ring)
        self._next_id = 0
        self.seats: list[Seat] = []

    def write(self, record: Record) -> None:
        record.record_id = self._next_id
        self._next_id += 1
        record.seat.is_known = True
        self._ring.append(record)
        if record.op.dst >= 0:
            self.recorded_p2p += 1
        else:
            self.recorded += 1

    def reset(self) -> None:
        """As torchft does at every quorum."""
        self._ring.clear()
        self._next_id = 0

    def status(self, now: int, head: Record | None) -> dict[int, Status]:
        """`pg_status`; `head` is the op on the device."""
        at_work = head.seat if self.timing and head and 0 < head.ready_at <= now else None
        return {
            seat.pg_id: Status(
                seat.enqueued,
                head.number if head is not None and seat is at_work else seat.started,
                seat.completed,
            )
            for seat in self.seats
            if seat.is_known
        }

    def dump(self, now: int, wall_ns: int, head: Record | None) -> bytes:
        """The ring, as torch's handler writes it at `now`."""
        entry = self._gloo_entry if self._is_gloo else self._entry
        entries = [record.text or entry(record, now, wall_ns) for record in self._shown(now)]
        version = b'""' if self._is_gloo else b'"2.27.5"'
        return written(version, self._config(), self.status(now, head), entries)

    def _shown(self, now: int) -> Iterable[Record]:
        """Gloo counts an op, and writes its entry a little later."""
        if self._is_gloo and len(self._ring) > 1 and self._ring[-1].ready_at > now - _TEARS_NS:
            return itertools.islice(self._ring, len(self._ring) - 1)
        return self._ring

    def _config(self) -> bytes:
        if self._is_gloo:  # written before the group knows its name
            return b'"":{"name":"","desc":"","ranks":"[]"}' if self.seats else b""
        return b",".join(seat.group.config or config_of(seat.group) for seat in self.seats)

    def _gloo_entry(self, record: Record, now: int, wall_ns: int) -> bytes:
        """Of the end, Gloo records only `retired`, a little later than the counters."""
        is_retired = 0 < record.done_at < now - _TEARS_NS
        text = format_entry(record, b"scheduled", 0, 0, is_retired, b"")
        if is_retired:
            record.text = text
        return text

    def _entry(self, record: Record, now: int, wall_ns: int) -> bytes:
        if record.op.is_part:  # the last entry has the end of the whole batch
            record.text = format_entry(record, b"scheduled", 0, 0, False, b"")
            return record.text
        started_ns = record.started_ns
        if self.timing and not started_ns and 0 < record.ready_at <= now:
            started_ns = wall_ns
        if not record.done_at:
            state = b"started" if started_ns else b"scheduled"
            return format_entry(record, state, started_ns, 0, False, b"")
        took = b""
        if self.timing:
            took = b'"duration_ms":%.3f,' % ((record.done_at - record.ready_at) / 1e6)
        is_retired = bool(record.completed_ns)
        completed_ns = record.completed_ns or wall_ns
        text = format_entry(record, b"completed", started_ns, completed_ns, is_retired, took)
        if is_retired:
            record.text = text
        return text


def written(
    version: bytes, config: bytes, status: Mapping[int, Status], entries: Sequence[bytes]
) -> bytes:
    """A dump; `version` and `config` are parts of its text. It has no entries if there are none."""
    counters = {
        str(pg_id): {
            "last_enqueued_collective": str(of.enqueued),
            "last_started_collective": str(of.started),
            "last_completed_collective": str(of.completed),
        }
        for pg_id, of in status.items()
    }
    whole = b'{"version":"2.10","comm_lib_version":%b,"nccl_comm_state":{},"pg_config":{%b}'
    parts = [whole % (version, config), b',"pg_status":', msgspec.json.encode(counters)]
    if entries:
        parts += [b',"entries":[', b",".join(entries), b"]"]
    return b"".join((*parts, b"}"))


def format_entry(
    record: Record, state: bytes, started_ns: int, completed_ns: int, retired: bool, took: bytes
) -> bytes:
    op, seat = record.op, record.seat
    return _ENTRY % (
        record.record_id, seat.pg_id, record.seq, record.p2p_seq, record.op_id, record.created_ns,
        state, started_ns, completed_ns, b"true" if retired else b"false", took,
        op.text or _text_of(op),
    )  # fmt: skip


def _text_of(op: Op) -> bytes:
    """The text that all entries of `op` share."""
    group = op.group
    name = f"{group.backend}:{op.name}"
    if op.name in ("send", "recv"):
        src, dst = group.ranks.index(op.src), group.ranks.index(op.dst)
        name += f" {src}->{dst}" if op.is_send else f" {dst}<-{src}"
    fields = {
        "process_group": (group.name, group.desc),
        "profiling_name": name,
        "input_sizes": op.inputs,
        "input_dtypes": [op.dtype] * len(op.inputs),
        "output_sizes": op.outputs,
        "output_dtypes": [op.dtype] * len(op.outputs),
        "is_p2p": op.is_p2p and not op.parts,  # the end of a batch is not, since torch 2.11
        "timeout_ms": _TIMEOUT_MS,
        "thread_id": "140000000000000",
        "thread_name": "python",
    }
    op.text = msgspec.json.encode(fields)[1:-1]
    return op.text


def config_of(group: Group) -> bytes:
    of = {"name": group.name, "desc": group.desc, "ranks": str(list(group.ranks))}
    group.config = msgspec.json.encode({group.name: of})[1:-1]
    return group.config
