"""What the costliest messages that the service accepts cost it, and what it refuses.

In one process without gRPC: a session takes one message of each kind at the limits of
`frd.wire.limits`, applies it, and its engine flushes what waits. Then messages of a MiB whose items
are as many as fit: they are refused. Each is measured in its own process, best of three by time;
memory is what the process grows by.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

import numpy as np

from bench.report import show
from frd.engine.engine import Engine
from frd.engine.policy import Policy
from frd.errors import WireError
from frd.model import (
    MAX_WORLD_SIZE,
    AlignedNs,
    AttemptKey,
    ChannelColumns,
    EntryColumns,
    ExitInfo,
    ExitKind,
    GroupInfo,
    MemoryColumns,
    MemoryEvent,
    MemoryEventKind,
    NodeNs,
    NodeRawNs,
    PhaseSpan,
    RankInfo,
    RankPhases,
    RankState,
    RankStatus,
    SeriesInfo,
    SeriesKind,
    Signature,
    WatermarkColumns,
)
from frd.service.ingest.session import Session
from frd.service.ingest.shared import Shared
from frd.wire.codec import encode_agent
from frd.wire.limits import LIMITS, MAX_MEMBERS, check_message
from frd.wire.messages import (
    MAX_MESSAGE_BYTES,
    MAX_PHASE_NAMES,
    MAX_PHASES,
    PROTOCOL,
    AgentEvent,
    AttemptDecl,
    Declare,
    GroupDecl,
    Hello,
    MemoryEvents,
    RankDecl,
    SeriesDecl,
    SignatureDecl,
    Statuses,
    Watermarks,
)

NOW: Final = 1_790_000_000_000_000_000
GROUPS: Final = 200
"""Declared before, each with all ranks."""
RANKS: Final = 64
SERIES: Final = 64
ROWS_BYTES: Final = MAX_MESSAGE_BYTES - 1024


def most(name: str) -> int:
    return LIMITS[name].in_all


def times(count: int) -> Any:
    return np.arange(NOW, NOW + count, dtype=np.int64)


def known() -> list[AgentEvent]:
    """What the stream has declared before."""
    everyone = tuple(range(RANKS))
    return [
        Hello(PROTOCOL, "bench", "n", "b", "s", NodeNs(NOW), NodeRawNs(NOW)),
        Declare(
            attempts=(AttemptDecl(0, AttemptKey("bench", 0), MAX_WORLD_SIZE),),
            ranks=tuple(RankDecl(i, 0, RankInfo(i, 0, "n", "b", 1 + i)) for i in range(RANKS)),
            groups=tuple(GroupDecl(i, 0, GroupInfo(str(i), "", everyone)) for i in range(GROUPS)),
            signatures=(SignatureDecl(0, Signature("nccl", "all_reduce")),),
            series=tuple(SeriesDecl(i, SeriesInfo(i, SeriesKind.HOST_USED)) for i in range(SERIES)),
        ),
    ]


# -- messages at the limits ----------------------------------------------------------------------


def statuses() -> AgentEvent:
    gone = ExitInfo(ExitKind.EXCEPTION, 0, 1, "E" * 900, "W" * 900, "N" * 900)
    return Statuses(
        tuple(
            RankStatus(i % RANKS, RankState.EXITED, NodeRawNs(NOW + i), "d" * 900, i, gone, NOW + i)
            for i in range(most("statuses.statuses"))
        )
    )


def phases() -> AgentEvent:
    path = tuple(f"phase {i}" for i in range(MAX_PHASE_NAMES))
    return Statuses(
        (),
        tuple(
            RankPhases(
                i,
                tuple(
                    PhaseSpan(path, NodeRawNs(NOW + j), NodeRawNs(NOW + j + 1))
                    for j in range(MAX_PHASES)
                ),
            )
            for i in range(most("statuses.phases"))
        ),
    )


def attempts() -> AgentEvent:
    return Declare(
        attempts=tuple(
            AttemptDecl(i, AttemptKey("bench", i), 0) for i in range(1, most("declare.attempts"))
        )
    )


def ranks() -> AgentEvent:
    last = RANKS + most("declare.ranks")
    names = ("nccl", "gloo", "mpi", "ucc"), tuple(f"GPU-{i}" for i in range(4))
    return Declare(
        ranks=tuple(
            RankDecl(i, 0, RankInfo(i, 0, "n", "b", i, 0, "2.9", *names))
            for i in range(RANKS, last)
        )
    )


def groups(count: int, members: int, step: int = 1) -> AgentEvent:
    return Declare(
        groups=tuple(
            GroupDecl(GROUPS + i, 0, GroupInfo(f"g{i}", "", tuple(range(i, i + members, step))))
            for i in range(count)
        )
    )


def scattered() -> AgentEvent:
    """About as many runs as fit."""
    members = tuple(i for i in range(128_000) if i % 3)
    return Declare(groups=(GroupDecl(GROUPS, 0, GroupInfo("g", "", members)),))


def signatures(count: int, tensors: int, dims: int) -> AgentEvent:
    names = ("Float",) * tensors

    def op(number: int) -> Signature:
        sizes = ((number + 200,) * dims,) * tensors
        return Signature("nccl", "op", sizes, sizes, names, names)

    return Declare(signatures=tuple(SignatureDecl(1 + i, op(i)) for i in range(count)))


def series() -> AgentEvent:
    return Declare(
        series=tuple(
            SeriesDecl(SERIES + i, SeriesInfo(i % RANKS, SeriesKind.DEVICE_USED, f"GPU-{i}"))
            for i in range(most("declare.series"))
        )
    )


def memory_events() -> AgentEvent:
    return MemoryEvents(
        tuple(
            MemoryEvent(i % RANKS, MemoryEventKind.OOM, NodeRawNs(NOW + i), "", 1, "d" * 900)
            for i in range(most("memory_events.events"))
        )
    )


def entries() -> AgentEvent:
    """In turn in all groups."""
    at: Any = np.arange(ROWS_BYTES // 41)
    return EntryColumns(
        rank=0,
        first_revision=1,
        group=at % GROUPS,
        seq=at // GROUPS,
        signature=np.zeros(len(at), np.uint32),
        flags=np.full(len(at), 5, np.uint8),
        created_ns=times(len(at)),
        started_ns=np.zeros(len(at), np.int64),
        completed_ns=times(len(at)) + 1,
    )


def watermarks() -> AgentEvent:
    """All pairs of rank and group, again and again."""
    at: Any = np.arange(ROWS_BYTES // 40)
    none: Any = np.zeros(0, np.int64)
    columns = WatermarkColumns(
        rank=at % RANKS,
        group=at // RANKS % GROUPS,
        enqueued=at,
        started=at,
        completed=at,
        head_created_ns=times(len(at)),
        seen_rank=none,
        as_of_ns=none,
    )
    return Watermarks(0, columns, NodeNs(NOW), NodeRawNs(NOW))


def channels() -> AgentEvent:
    at: Any = np.arange(ROWS_BYTES // 37)
    one: Any = np.ones(len(at), np.int64)
    none: Any = np.zeros(len(at), np.int64)
    return ChannelColumns(0, at % GROUPS, at, one, one, times(len(at)), none, none, none, NOW)


def memory(moments: int) -> AgentEvent:
    values = np.arange(SERIES * moments, dtype=np.int64).reshape(SERIES, moments)
    at = times(moments)
    return MemoryColumns(np.arange(SERIES), np.full(SERIES, 1 << 40), at, at + 1, values)


ACCEPTED: Final[dict[str, Callable[[], AgentEvent]]] = {
    "statuses": statuses,
    "phases": phases,
    "attempts": attempts,
    "ranks": ranks,
    "groups_small": lambda: groups(1_000, 8),
    "groups_members": lambda: groups(1_000, MAX_MEMBERS // 1_000),
    "group_large": lambda: groups(1, MAX_MEMBERS),
    "group_of_runs": scattered,
    "signatures": lambda: signatures(1_000, 1, 4),
    "signatures_shapes": lambda: signatures(4, 1_024, 4),
    "signatures_dims": lambda: signatures(2, 512, 64),
    "series": series,
    "memory_events": memory_events,
    "entries": entries,
    "watermarks": watermarks,
    "channels": channels,
    "memory": lambda: memory(ROWS_BYTES // 8 // (SERIES + 2) - 2),
}


# -- more than that ------------------------------------------------------------------------------


def field(number: int, body: bytes) -> bytes:
    """A field of bytes, on the wire."""
    size, sized = len(body), bytearray([number << 3 | 2])
    while size > 127:
        sized.append(size & 127 | 128)
        size >>= 7
    return bytes([*sized, size]) + body


_FIT: Final = MAX_MESSAGE_BYTES - 64
REFUSED: Final[dict[str, Callable[[], bytes]]] = {
    "empty_statuses": lambda: field(6, b"\x0a\x00" * (_FIT // 2)),
    "empty_shapes": lambda: field(2, field(4, b"\x22\x00" * (_FIT // 2))),
    "packed_dims": lambda: field(2, field(4, field(4, field(1, b"\x01" * _FIT)))),
    "dims": lambda: field(2, field(4, field(4, b"\x08\x01" * (_FIT // 2)))),
    "kinds_in_turn": lambda: b"\x12\x00\x1a\x00" * (_FIT // 4),
    "groups_of_a_million": lambda: field(
        2, field(3, field(5, np.array([0, 1 << 20, 1], "<i4").tobytes())) * 40_000
    ),
}


# -- measuring -----------------------------------------------------------------------------------


def session() -> tuple[Session, Shared]:
    shared = Shared(Engine(Policy()))
    one = Session(shared, 1)
    for event in known():
        one.receive(encode_agent(event), AlignedNs(NOW))
    return one, shared


def accepted(name: str) -> dict[str, float]:
    data = encode_agent(ACCEPTED[name]())
    one, shared = session()
    before, began = _rss_bytes(), time.process_time()
    items = check_message(data)
    checked = time.process_time()
    one.receive(data, AlignedNs(NOW + 10**9))
    shared.flush()
    ended = time.process_time()
    return {
        "items": items,
        "bytes": len(data),
        "door_ms": round((checked - began) * 1e3, 2),
        "ms": round((ended - began) * 1e3, 2),
        "mb": round((_rss_bytes() - before) / 1e6, 1),
    }


def refused(name: str) -> dict[str, Any]:
    data = REFUSED[name]()
    before, began = _rss_bytes(), time.process_time()
    why = ""
    try:
        check_message(data)
    except WireError as error:
        why = str(error)
    ms = (time.process_time() - began) * 1e3
    return {"why": why, "ms": round(ms, 3), "mb": round((_rss_bytes() - before) / 1e6, 1)}


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure() -> Iterator[tuple[str, Any]]:
    for name in ACCEPTED:
        yield f"accepted_{name}", min([alone(accepted, name) for _ in range(3)], key=_ms)
    for name in REFUSED:
        yield f"refused_{name}", min([alone(refused, name) for _ in range(3)], key=_ms)


def alone(measured: Callable[[str], dict[str, Any]], name: str) -> dict[str, Any]:
    """In its own process."""
    processes = multiprocessing.get_context("fork")
    receiving, sending = processes.Pipe(duplex=False)
    process = processes.Process(target=lambda: sending.send(measured(name)))
    process.start()
    sending.close()
    result: dict[str, Any] = receiving.recv()
    process.join()
    return result


def _ms(run: dict[str, Any]) -> float:
    return float(run["ms"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    show(dict(measure()), as_json=parser.parse_args().json)


if __name__ == "__main__":
    main()
