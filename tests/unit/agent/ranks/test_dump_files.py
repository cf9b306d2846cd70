"""Dump files that torch writes: found when finished, refused when hostile, kept in memory."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import pickle
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frd.errors import DumpError
from frd.flight.entry import Entry, Frame
from frd.flight.write import write_pickle
from frd.model import Flags, NodeNs, RankState, RankStatus, WatermarkColumns
from frd.readers.pool import ReaderProcess
from frd_agent.ranks import file_rank
from frd_agent.ranks.dump_files import DumpFile, DumpFiles
from frd_agent.ranks.file_rank import DumpWatch
from frd_agent.ranks.roster import Roster
from tests.world.clocks import S
from tests.world.entries import dump, nccl
from tests.world.run_dir import identity, shared


def dump_of(*ops: Entry) -> bytes:
    return write_pickle(dump(ops), {"0": ("default_pg", (0, 1))})


def a_dump(entries: int, state: str = "completed", **more: Any) -> bytes:
    return dump_of(*(nccl(i, i + 1, state, **more) for i in range(entries)))


class Node:
    """Ranks without a tap, known from their dump files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files, self.common = folder, DumpFiles([folder]), shared()
        self.roster = Roster(folder, self.common)
        self.watch = DumpWatch(self.files, self.roster, self.common, "dumps", "node", "boot")

    def write(self, name: str, data: bytes, at_ns: int | None = None) -> DumpFile:
        """The agent reads the file once it has stopped changing."""
        path = self.folder / name
        path.write_bytes(data)
        if at_ns is not None:
            os.utime(path, ns=(at_ns, at_ns))
        self.files.changed()
        assert self.files.changed() == [path]
        return self.files.read(path)

    def take(self, file: DumpFile) -> tuple[RankStatus, WatermarkColumns]:
        """What the service hears of the rank."""
        self.watch._take(file)
        current = self.common.reports(0).current
        statuses, watermarks = current.next_statuses(), current.next_watermarks()
        assert statuses is not None
        assert watermarks is not None
        (status,) = statuses.statuses
        return status, watermarks.columns


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.files.rest()


def test_a_file_is_read_once_it_has_stopped_changing(tmp_path: Path) -> None:
    """torch writes a file in two pieces: it is read after the second, and then left alone."""
    files = DumpFiles([tmp_path])
    path = tmp_path / "rank_3"
    data = a_dump(2)
    path.write_bytes(data[:10])
    assert files.changed() == []
    path.write_bytes(data)
    assert files.changed() == []
    assert files.changed() == [path]
    file = files.read(path)
    files.rest()
    assert (file.rank, len(file.dump.entries)) == (3, 2)
    assert files.changed() == []


def test_an_overwritten_file_is_read_again(node: Node) -> None:
    """The next timeout overwrites the dump of the first one."""
    node.files = DumpFiles([node.folder, node.folder / "not there"])  # nothing was read yet
    for entries in (1, 2):
        file = node.write("trace12", a_dump(entries), entries)
        assert (file.rank, file.written_at_ns, len(file.dump.entries)) == (12, entries, entries)


@pytest.mark.parametrize(("entries", "frames"), [(100_000, 0), (20_000, 60)])
def test_the_largest_honest_dumps(node: Node, entries: int, frames: int) -> None:
    """A ring of 100,000 entries, or one of 20,000 with C++ stacks, within the reader's limits."""
    frame = [Frame(f"operator_{at}", f"/site-packages/torch/{at % 9}.py", at) for at in range(200)]
    stacks = [tuple(frame[at : at + frames]) for at in range(100)]
    ops = (
        nccl(at, at + 1, frames=stacks[at % 100], input_sizes=((1024, at % 99),))
        for at in range(entries)
    )
    read = node.write("rank_0", dump_of(*ops)).dump.entries
    assert len(read) == entries
    assert all(one.frames == stacks[at % 100] for at, one in enumerate(read))
    assert len({id(one.frames) for one in read[:1000]}) == (100 if frames else 1)


SHARED_TUPLES = b"\x80\x02}(K\x00](%beh\x3cK\x01u." % (
    b")q\x00" + b"".join(b"h%ch%c\x86q%c" % (at, at, at + 1) for at in range(60))
)
"""A key whose hash takes 2^60 steps, in 432 bytes."""


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("rank_0", pickle.dumps(Hostile()), "rank_0"),
        ("dump_1763650000", a_dump(1), "no rank"),
        ("rank_2147483648", a_dump(1), "no rank"),
        ("rank_0", SHARED_TUPLES, "rank_0: a key that is no string or number"),
        ("rank_0", gzip.compress(SHARED_TUPLES), "rank_0: a key that is no string or number"),
        ("rank_0", b"\x80\x02(" + b"]" * 8_000_000 + b"t.", "rank_0: .*memory"),
    ],
    ids=["hostile", "no rank", "2^31", "tuples", "packed tuples", "lists"],
)
def test_what_is_refused_is_not_tried_again(node: Node, name: str, data: bytes, why: str) -> None:
    """A pickle that would run a command, and a number that is a time: the service would refuse a
    stream that declares such a rank. The next poll leaves the file alone."""
    with pytest.raises(DumpError, match=why):
        node.write(name, data)
    assert node.files.changed() == []


async def test_the_agent_survives_its_reader(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that the process which reads it does not survive is named, counted and left where it
    is; another process reads the next one."""
    ask = ReaderProcess.ask

    def dies(process: Any, function: Any, path: Path, *arguments: Any) -> None:
        if path.name == "rank_1":
            process.kill()
        ask(process, function, path, *arguments)

    monkeypatch.setattr(ReaderProcess, "ask", dies)
    monkeypatch.setattr(file_rank, "_EVERY_S", 0.01)
    for rank in range(3):
        (node.folder / f"rank_{rank}").write_bytes(a_dump(1))
    watching = asyncio.ensure_future(node.watch.run())
    async with asyncio.timeout(20):
        while len(node.watch.ranks) < 2 or not node.common.stats.refused_files["dump"]:
            await asyncio.sleep(0.01)
    watching.cancel()
    assert {rank.info.rank for rank in node.watch.ranks} == {0, 2}
    assert node.common.stats.refused_files["dump"] == 1
    (warning,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert warning.startswith(
        f"{node.folder / 'rank_1'}: the process that read it ended by signal 9"
    )
    assert "move it away" in warning


def test_links_pipes_and_other_names_are_passed_by(tmp_path: Path) -> None:
    """Only regular files whose name ends in a number are dumps."""
    (tmp_path / "elsewhere").write_bytes(a_dump(1))
    (tmp_path / "rank_1").symlink_to(tmp_path / "elsewhere")
    (tmp_path / ".rank_2").write_bytes(a_dump(1))
    os.mkfifo(tmp_path / "rank_3")
    files = DumpFiles([tmp_path])
    files.changed()
    assert files.changed() == []


def test_a_rank_without_a_tap_is_reported_from_its_file(node: Node) -> None:
    """Rows, watermarks, membership and the time of writing come from the file, which is kept."""
    file = node.write("rank_1", a_dump(3, "scheduled", process_group=("0", "default_pg")))
    node.watch._take(file)
    status, watermarks = node.take(file)
    (rank,) = node.watch.ranks
    assert node.watch.files_of(rank.number) == [file]
    assert node.common.reports(0).outbox.rows == 3
    assert node.common.dictionary.groups[0].info.ranks == (0, 1)
    assert (status.state, status.detail) == (
        RankState.LIVE,
        "known from rank_1 only: it runs without a tap",
    )
    assert (watermarks.enqueued.tolist(), watermarks.completed.tolist()) == ([3], [0])
    (as_of_ns,) = watermarks.as_of_ns.tolist()
    assert abs(as_of_ns - node.common.time.one_to_raw(file.written_at_ns)) < 1_000_000


@pytest.mark.parametrize("ahead_s", [-10, 0, 3, 10])
def test_a_file_server_may_have_another_clock(node: Node, ahead_s: int) -> None:
    """The time of the file is the server's: all entries are read, and the rank is known until its
    newest entry at least, and not into the future."""
    clock = node.common.time
    now_ns = clock.look().real_ns
    ops = [nccl(i, i + 1, "scheduled", time_created_ns=now_ns - (2 - i) * 1000) for i in range(3)]
    status, watermarks = node.take(node.write("rank_1", dump_of(*ops), now_ns + ahead_s * S))
    assert node.common.reports(0).outbox.rows == 3
    newest, now = clock.one_to_raw(now_ns), clock.now()
    for as_of_ns in (status.as_of_ns, watermarks.as_of_ns[0]):
        assert newest - S // 1_000 <= as_of_ns <= now


@pytest.mark.parametrize(
    ("age_s", "ahead_s", "writer"),
    [
        *((50, ahead_s, "former") for ahead_s in (-600, 0, 600)),
        *((5, ahead_s, "later") for ahead_s in (-600, 0, 600)),
        (105, 105, "later"),
    ],
)
def test_a_file_is_of_the_process_that_ran_its_ops(
    node: Node, age_s: int, writer: str, ahead_s: int
) -> None:
    """A rank was started again 10 s ago. Whatever the clock of the file server says, a file with
    ops of 50 s ago is of the process before, and one with ops of 5 s ago is not. If all ops are
    from before the taps began, the time of writing decides."""
    now_ns, processes = time.time_ns(), {}
    for name, since_s in (("former", 100), ("later", 10)):
        token = f"{since_s:012d}"
        started = {"token": token, "run": name, "started_at_ns": now_ns - since_s * S}
        known = identity(pid=os.getpid(), socket=None, shm=None) | started
        (node.folder / f"{token}.json").write_text(json.dumps(known))
        (processes[name],) = node.roster.update(node.common.time.now())
    op = nccl(0, 1, "scheduled", time_created_ns=now_ns - age_s * S)
    node.watch._take(node.write("rank_1", dump_of(op), now_ns + (ahead_s - age_s) * S))
    owners = [name for name, rank in processes.items() if node.watch.files_of(rank.number)]
    node.roster.close()
    assert (owners, list(node.watch.ranks)) == ([writer], [])


@pytest.mark.parametrize(("library", "flags"), [("2.27.3", Flags.FAILED), ("", Flags.COMPLETED)])
def test_a_file_names_the_library_that_wrote_it(node: Node, library: str, flags: Flags) -> None:
    """The only op of a file is retired and not completed: NCCL's watchdog gave it up. In a file of
    a generic recorder, which names no library, it has ended."""
    op = nccl(0, 1, "scheduled", retired=True)
    written = replace(dump([op]), comm_lib_version=library)
    node.watch._take(node.write("rank_0", write_pickle(written, {"0": ("default_pg", (0, 1))})))
    sent = node.common.reports(0).outbox.next_batch()
    assert sent is not None
    assert sent.flags.tolist() == [Flags.JOINED | flags]


def test_sends_in_two_files_of_a_rank_are_one_channel(node: Node) -> None:
    """Gloo's file is read first and has the younger send: the oldest is NCCL's."""
    now_ns = node.common.time.look().real_ns - S
    for backend, created_ns in (("gloo", now_ns), ("nccl", now_ns - S)):
        name = f"{backend}:send 0->1"
        op = nccl(0, 0, "scheduled", profiling_name=name, time_created_ns=created_ns, is_p2p=True)
        node.watch._take(node.write(f"{backend}_0", dump_of(op)))
    channels = [*iter(node.common.reports(0).current.next_channels, None)]
    assert [one.in_flight.tolist() for one in channels] == [[1, 1]]
    head_ns = min(*channels[0].head_created_ns.tolist())
    assert abs(head_ns - node.common.time.one_to_raw(NodeNs(now_ns - S))) < S // 1_000
