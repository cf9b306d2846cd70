"""Dump files that torch writes: found when finished, refused when hostile, kept in memory."""

from __future__ import annotations

import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from frd.errors import DumpError
from frd.flight.write import write_pickle
from frd.model import NodeNs, RankState
from frd_agent.ranks.dump_files import DumpFiles
from frd_agent.ranks.file_rank import DumpWatch
from frd_agent.ranks.roster import Roster
from tests.world.clocks import S
from tests.world.entries import dump, nccl
from tests.world.run_dir import identity, shared


def a_dump(entries: int, done: bool = True) -> bytes:
    state = "completed" if done else "scheduled"
    group = ("0", "default_pg")
    ops = [nccl(i, i + 1, state, process_group=group) for i in range(entries)]
    return write_pickle(dump(ops), {"0": ("default_pg", (0, 1))})


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
    assert (file.rank, len(file.dump.entries)) == (3, 2)
    assert files.changed() == []


def test_an_overwritten_file_is_read_again(tmp_path: Path) -> None:
    """The next timeout overwrites the dump of the first one."""
    files = DumpFiles([tmp_path, tmp_path / "not there"])
    path = tmp_path / "trace12"
    for entries in (1, 2):
        path.write_bytes(a_dump(entries))
        os.utime(path, ns=(entries, entries))
        files.changed()
        assert files.changed() == [path]
        file = files.read(path)
        assert (file.rank, file.written_at_ns, len(file.dump.entries)) == (12, entries, entries)


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


def test_a_hostile_pickle_is_refused_and_not_tried_again(tmp_path: Path) -> None:
    """A pickle that would run a command is refused by name; the next poll leaves it alone."""
    files = DumpFiles([tmp_path])
    path = tmp_path / "rank_0"
    path.write_bytes(pickle.dumps(Hostile()))
    files.changed()
    assert files.changed() == [path]
    with pytest.raises(DumpError, match="rank_0"):
        files.read(path)
    assert files.changed() == []


def test_links_pipes_and_other_names_are_passed_by(tmp_path: Path) -> None:
    """Only regular files whose name ends in a number are dumps."""
    (tmp_path / "elsewhere").write_bytes(a_dump(1))
    (tmp_path / "rank_1").symlink_to(tmp_path / "elsewhere")
    (tmp_path / ".rank_2").write_bytes(a_dump(1))
    os.mkfifo(tmp_path / "rank_3")
    files = DumpFiles([tmp_path])
    files.changed()
    assert files.changed() == []


def test_a_number_that_is_no_rank_is_refused(tmp_path: Path) -> None:
    """dump_1763650000 is a time: the service would refuse a stream that declares such a rank."""
    (tmp_path / "dump_1763650000").write_bytes(a_dump(1))
    files = DumpFiles([tmp_path])
    files.changed()
    (path,) = files.changed()
    with pytest.raises(DumpError, match="no rank"):
        files.read(path)


def test_a_rank_without_a_tap_is_reported_from_its_file(tmp_path: Path) -> None:
    """Rows, watermarks, membership and the time of writing come from the file, which is kept."""
    files, common = DumpFiles([tmp_path]), shared()
    (tmp_path / "rank_1").write_bytes(a_dump(3, done=False))
    files.changed()
    (path,) = files.changed()
    file = files.read(path)
    watch = DumpWatch(files, Roster(tmp_path, common), common, "dumps", "node", "boot")
    watch._take(file)
    watch._take(file)
    (rank,) = watch.ranks
    assert watch.files_of(rank.number) == [file]
    assert common.reports(0).outbox.rows == 3
    assert common.dictionary.groups[0].info.ranks == (0, 1)
    statuses = common.reports(0).current.next_statuses()
    assert statuses is not None
    (status,) = statuses.statuses
    assert (status.state, status.detail) == (
        RankState.LIVE,
        "known from rank_1 only: it runs without a tap",
    )
    watermarks = common.reports(0).current.next_watermarks()
    assert watermarks is not None
    assert watermarks.columns.enqueued.tolist() == [3]
    assert watermarks.columns.completed.tolist() == [0]
    (as_of_ns,) = watermarks.columns.as_of_ns.tolist()
    assert abs(as_of_ns - common.time.one_to_raw(file.written_at_ns)) < 1_000_000


@pytest.mark.parametrize("ahead_s", [-10, 0, 3, 10])
def test_a_file_server_may_have_another_clock(tmp_path: Path, ahead_s: int) -> None:
    """The time of the file is the server's: all entries are read, and the rank is known until its
    newest entry at least, and not into the future."""
    files, common = DumpFiles([tmp_path]), shared()
    now_ns = common.time.look().real_ns
    ops = [
        nccl(
            i, i + 1, "scheduled", process_group=("0", ""), time_created_ns=now_ns - (2 - i) * 1000
        )
        for i in range(3)
    ]
    path = tmp_path / "rank_1"
    path.write_bytes(write_pickle(dump(ops), {"0": ("", (0, 1))}))
    os.utime(path, ns=(now_ns, now_ns + ahead_s * S))
    files.changed()
    files.changed()
    watch = DumpWatch(files, Roster(tmp_path, common), common, "dumps", "node", "boot")
    watch._take(files.read(path))
    assert common.reports(0).outbox.rows == 3
    statuses = common.reports(0).current.next_statuses()
    assert statuses is not None
    newest, now = common.time.one_to_raw(now_ns), common.time.now()
    assert newest - S // 1_000 <= statuses.statuses[0].as_of_ns <= now
    watermarks = common.reports(0).current.next_watermarks()
    assert watermarks is not None
    assert newest - S // 1_000 <= watermarks.columns.as_of_ns[0] <= now


@pytest.mark.parametrize(
    ("age_s", "ahead_s", "writer"),
    [
        *((50, ahead_s, "former") for ahead_s in (-600, 0, 600)),
        *((5, ahead_s, "later") for ahead_s in (-600, 0, 600)),
        (105, 105, "later"),
    ],
)
def test_a_file_is_of_the_process_that_ran_its_ops(
    tmp_path: Path, age_s: int, writer: str, ahead_s: int
) -> None:
    """A rank was started again 10 s ago. Whatever the clock of the file server says, a file with
    ops of 50 s ago is of the process before, and one with ops of 5 s ago is not. If all ops are
    from before the taps began, the time of writing decides."""
    common, now_ns = shared(), time.time_ns()
    roster, processes = Roster(tmp_path, common), {}
    for name, since_s in (("former", 100), ("later", 10)):
        token = f"{since_s:012d}"
        started = {"token": token, "run": name, "started_at_ns": now_ns - since_s * S}
        known = identity(pid=os.getpid(), socket=None, shm=None) | started
        (tmp_path / f"{token}.json").write_text(json.dumps(known))
        (processes[name],) = roster.update(common.time.now())
    path = tmp_path / "rank_1"
    op = nccl(0, 1, "scheduled", process_group=("0", ""), time_created_ns=now_ns - age_s * S)
    path.write_bytes(write_pickle(dump([op]), {"0": ("", (0, 1))}))
    os.utime(path, ns=(now_ns, now_ns + (ahead_s - age_s) * S))
    files = DumpFiles([tmp_path])
    files.changed()
    watch = DumpWatch(files, roster, common, "dumps", "node", "boot")
    watch._take(files.read(path))
    owners = [name for name, rank in processes.items() if watch.files_of(rank.number)]
    roster.close()
    assert (owners, list(watch.ranks)) == ([writer], [])


def test_sends_in_two_files_of_a_rank_are_one_channel(tmp_path: Path) -> None:
    """Gloo's file is read first and has the younger send: the head is NCCL's."""
    files, common = DumpFiles([tmp_path]), shared()
    now_ns = common.time.look().real_ns - S
    watch = DumpWatch(files, Roster(tmp_path, common), common, "dumps", "node", "boot")
    send: dict[str, Any] = {"state": "scheduled", "is_p2p": True, "process_group": ("0", "")}
    for backend, created_ns in (("gloo", now_ns), ("nccl", now_ns - S)):
        name = f"{backend}:send 0->1"
        entry = nccl(0, 0, profiling_name=name, time_created_ns=created_ns, **send)
        path = tmp_path / f"{backend}_0"
        path.write_bytes(write_pickle(dump([entry]), {"0": ("", (0, 1))}))
        files.changed()
        watch._take(files.read(path))
    channels = [*iter(common.reports(0).current.next_channels, None)]
    assert [one.in_flight.tolist() for one in channels] == [[2]]
    ((head_ns,),) = [one.head_created_ns.tolist() for one in channels]
    assert abs(head_ns - common.time.one_to_raw(NodeNs(now_ns - S))) < S // 1_000
