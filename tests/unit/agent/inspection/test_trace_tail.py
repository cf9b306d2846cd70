"""The end of a trace that grows, fed by hand: pieces of any size, and files that begin again."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator, Sequence

import pytest

from frd.dftracer.line import Event, Record
from frd.model import NodeRawNs
from frd_agent.inspection.claims import ProcessView, RankView
from frd_agent.inspection.reading.files import Mount, OpenFile
from frd_agent.inspection.syscalls import FAULT, Class, Syscall
from frd_agent.inspection.targets import Object, Target
from frd_agent.inspection.traces.followed import (
    BUFFER,
    LOOK,
    Buffering,
    Tail,
    buffering_of,
    objection,
)
from frd_agent.inspection.tracking import Wait
from tests.world.io_traces import Call, Writer

LINES = [
    line.encode() + b"\n"
    for line in Writer("v2.2", 7).lines([Call("read", at, 1, file="/data/x") for at in range(1200)])
]
ENDS = list(range(1, 1201))


def ends(records: Sequence[Record]) -> list[int]:
    """When the calls ended, in µs from the first one on."""
    events = [record for record in records if isinstance(record, Event)]
    return [event.ts + (event.dur or 0) - 1_700_000_000_000_000 for event in events]


def follow(tail: Tail, file: bytes, sizes: Iterator[int]) -> list[Record]:
    """What is read of a file that grows in pieces of these sizes."""
    found: list[Record] = []
    size = 0
    while size < len(file):
        size = min(len(file), size + next(sizes))
        offset, length = tail.wants(size)
        found += tail.feed(offset, file[offset : offset + length], size)
    return found


def pieces(seed: int) -> Iterator[int]:
    dice = random.Random(seed)
    while True:
        yield dice.choice((1, 10, 200, 5_000, 30_000))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("is_packed", [False, True])
def test_pieces_of_any_size(seed: int, is_packed: bool) -> None:
    """Each record is found once, wherever the file was cut when it was looked at."""
    file = b"".join(map(gzip.compress, LINES)) if is_packed else b"".join(LINES)
    tail = Tail(is_packed=is_packed)
    assert ends(follow(tail, file, pieces(seed))) == ENDS
    assert (tail.broken, tail.buffering) == (0, Buffering.LIVE)


@pytest.mark.parametrize("is_packed", [False, True])
def test_more_than_is_read(is_packed: bool) -> None:
    """Of a large file, and of much that was appended, the last part is read, whole records only."""
    parts = [gzip.compress(line) for line in LINES] if is_packed else LINES
    file = b"".join(parts)
    assert len(file) > 2 * LOOK
    tail = Tail(is_packed=is_packed)
    for size in (LOOK + 1000, len(file)):
        offset, length = tail.wants(size)
        assert length == LOOK
        found = ends(tail.feed(offset, file[offset : offset + length], size))
        assert found == list(range(found[0], found[-1] + 1))
    assert found[-1] == 1200
    assert tail.broken == 0


def test_a_file_that_begins_again() -> None:
    """A half line of the old file is not joined with the new one."""
    tail = Tail(is_packed=False)
    old, new = b"".join(LINES)[:20_000], b"".join(LINES[:9])
    follow(tail, old, iter([20_000]))
    assert ends(follow(tail, new, iter([len(new)]))) == ENDS[:7]
    assert tail.broken == 0


def test_a_line_without_an_end() -> None:
    """It is given up, and counted; the next one is read."""
    tail = Tail(is_packed=False)
    file = b"x" * (2 * LOOK) + b"\n" + LINES[-1]
    assert ends(follow(tail, file, iter([LOOK // 2] * 9))) == [1200]
    assert tail.broken == 1


def test_a_member_that_unpacks_to_very_much() -> None:
    """It is not unpacked as a whole, and the trace counts as buffered."""
    tail = Tail(is_packed=True)
    bomb = gzip.compress(bytes(60 << 20))
    assert len(bomb) < LOOK
    assert tail.feed(0, bomb, len(bomb)) == []
    assert tail.buffering is Buffering.BUFFERED


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, Buffering.BUFFERED),
        (23_729, Buffering.LIVE),
        (16_777_327, Buffering.BUFFERED),
        (67_109_177, Buffering.BUFFERED),
        (70_000_000, Buffering.LIVE),
        (200 * BUFFER + 100, Buffering.UNKNOWN),
    ],
)
def test_the_size_shows_a_full_buffer(size: int, expected: Buffering) -> None:
    """Sizes of traces that DFTracer 2.2.0 wrote with a buffer of 10 bytes and of 16 MiB."""
    assert buffering_of(size) is expected


# -- whether a trace may be read -------------------------------------------------------------------

ROOT = Mount("/", "ext4 /dev/vda")
NAS = Mount("/data", "nfs4 nas:/data")
HOME = Mount("/home", "nfs4 nas:/home")
LUSTRE = Mount("/scratch", "lustre mgs@tcp:/scratch")
READ, OPEN = Syscall("read", Class.READ, 0), Syscall("openat", Class.OPEN, 0, 1)
LOCK, SOCKET = Syscall("flock", Class.LOCK, 0), Syscall("recv", Class.RECEIVE, 0)
SYNC, URING = Syscall("sync", Class.SYNC), Syscall("io_uring_enter", Class.OTHER, 0)


def of(call: Syscall, mount: Mount | None, *, is_pipe: bool = False) -> Target:
    file = OpenFile(5, "/some/file", "r", mount=mount)
    return Target(call, (Object(file, is_pipe=is_pipe),))


def view(*targets: Target | None, state: str = "S", holder: Target | None = None) -> RankView:
    """A rank whose processes wait for these; process 99 is no process of it."""
    found = {
        pid: Wait(pid, pid, "t", state, one, NodeRawNs(1), 9) for pid, one in enumerate(targets)
    }
    found[99] = Wait(99, 99, "t", state, holder, NodeRawNs(1), 9)
    family = tuple(range(len(targets)))
    return RankView(0, family, {pid: ProcessView(pid, "p", one) for pid, one in found.items()})


@pytest.mark.parametrize(
    ("rank", "trace", "why"),
    [
        (view(of(SOCKET, None)), NAS, ""),
        (view(of(READ, NAS)), ROOT, ""),
        (view(of(READ, NAS)), NAS, "it is on the file system"),
        (view(None, Target(OPEN, path="/data/x", mount=NAS)), NAS, "it is on the file system"),
        (view(of(READ, ROOT)), NAS, ""),
        (view(of(READ, ROOT)), ROOT, "it is on the file system"),
        (view(of(READ, ROOT, is_pipe=True)), ROOT, ""),
        (view(of(READ, ROOT), state="R"), ROOT, ""),
        (view(of(READ, NAS)), HOME, "neither it nor what"),
        (view(of(READ, NAS)), LUSTRE, "neither it nor what"),
        (view(of(READ, None)), ROOT, "it is not known"),
        (view(Target(FAULT)), ROOT, "it is not known"),
        (view(Target(SYNC)), ROOT, "it is not known"),
        (view(Target(URING), state="D"), ROOT, "it is not known"),
        (view(Target(URING)), ROOT, ""),
        (view(None, state="D"), ROOT, "it is not known"),
        (view(of(LOCK, ROOT)), ROOT, ""),
        (view(of(LOCK, NAS)), NAS, "it is on the file system"),
        (view(of(SOCKET, None), holder=of(READ, ROOT)), ROOT, ""),
        (
            view(Target(LOCK, path="/x", mount=ROOT, holder=99), holder=of(READ, ROOT)),
            ROOT,
            "it is on the file system",
        ),
        (view(of(SOCKET, None)), None, "its file system is not known"),
    ],
)
def test_where_a_trace_is_not_read(rank: RankView, trace: Mount | None, why: str) -> None:
    """Never where the rank is stuck, or may be; nor on a server of the same kind."""
    said = objection(rank, trace)
    assert said.startswith(why)
    assert bool(said) == bool(why)
