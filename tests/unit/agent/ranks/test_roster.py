"""Which ranks of a run directory an agent watches, and what it keeps of the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from frd.model import NodeRawNs, RankState, RankStatus
from frd_agent import tap
from frd_agent.node_time import raw_now
from frd_agent.ranks.roster import Roster
from tests.unit.agent.ranks.test_process import descriptors
from tests.world.daemons import until
from tests.world.run_dir import TOKEN, identity, shared

WRITTEN_NS = 1_700_000_000_000_000_000
GONE = 2**22 + 1
"""No process has this number."""


def publish(run_dir: Path, pid: int, token: str = TOKEN, **changes: Any) -> Path:
    """As the tap of a process without a socket does."""
    said = {"started_at_ns": time.time_ns(), "run": "vm:1"} | changes
    path = run_dir / f"{token}.json"
    path.write_text(json.dumps(identity(pid=pid, socket=None, shm=None, token=token, **said)))
    return path


@contextmanager
def sleeping(processes: int, user: int | None = None) -> Iterator[list[int]]:
    """Pids of processes of this user."""
    started = [subprocess.Popen(["sleep", "60"], user=user) for _ in range(processes)]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_files_of_an_old_job_are_removed_and_not_reported(tmp_path: Path) -> None:
    """The files are a week old, their process is long gone: that job is not reported again."""
    path = publish(tmp_path, GONE)
    os.utime(path, ns=(WRITTEN_NS, WRITTEN_NS))
    common = shared()
    assert Roster(tmp_path, common).update(common.time.now()) == []
    assert not path.exists()
    assert common.reports(0).current.next_watermarks() is None
    assert common.reports(0).current.next_statuses() is None


def test_the_end_of_a_rank_is_logged_by_the_agent_that_saw_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next agent finds its files, and reports it again; in its log the end would be news."""
    caplog.set_level("INFO")
    common = shared()
    with sleeping(1) as (pid,):
        publish(tmp_path, pid)
        roster = Roster(tmp_path, common)
        (rank,) = roster.update(raw_now())
    roster.end(rank, raw_now())
    assert any("killed by SIGKILL" in line for line in caplog.messages)
    caplog.clear()
    again = Roster(tmp_path, common)
    (rank,) = again.update(raw_now())
    again.end(rank, raw_now())
    assert rank.is_gone
    assert caplog.messages == []
    roster.close()
    again.close()


def test_a_rank_that_cannot_be_read_is_not_dead(tmp_path: Path) -> None:
    """The agent is short of descriptors when a rank comes: its files stay, and it is watched as
    soon as it can be read."""
    path = publish(tmp_path, os.getpid())
    os.utime(path, ns=(WRITTEN_NS, WRITTEN_NS))  # a dead rank would be no news
    roster = Roster(tmp_path, shared())
    now_ns = raw_now()
    with descriptors(left=1):  # for the directory, then the file, then the pidfd: none for /proc
        assert roster.update(now_ns) == []
    assert path.exists()
    (rank,) = roster.update(now_ns)
    assert rank.process.was_alive
    roster.close()


def test_files_stay_until_the_end_must_have_been_received(tmp_path: Path) -> None:
    """The stream may be dead without the agent knowing, and the next agent has only the files."""
    path, common = publish(tmp_path, GONE), shared()
    roster, now_ns = Roster(tmp_path, common), raw_now()
    (rank,) = roster.update(NodeRawNs(now_ns))
    roster.end(rank, NodeRawNs(now_ns))
    while common.reports(0).current.next_statuses() is not None:
        pass
    roster.clear(NodeRawNs(now_ns + 45 * 10**9))
    assert path.exists()
    roster.clear(NodeRawNs(now_ns + 61 * 10**9))
    assert not path.exists()
    roster.close()


def test_the_end_of_a_rank_is_reported_unless_its_own_run_goes_on(tmp_path: Path) -> None:
    """A rank is gone and a later process of that rank lives: in the same run, the end is not
    reported; in another launch of the job, the service must know that the first one has ended."""
    for run, is_reported in (("vm:1", False), ("vm:2", True)):
        common, now_ns = shared(), time.time_ns()
        folder = tmp_path / run
        folder.mkdir()
        roster = Roster(folder, common)
        publish(folder, GONE, "a" * 12, started_at_ns=now_ns)
        (former,) = roster.update(NodeRawNs(now_ns))
        publish(folder, os.getpid(), "b" * 12, run=run, started_at_ns=now_ns + 1)
        (later,) = roster.update(NodeRawNs(now_ns))
        assert later.process.was_alive
        roster.end(former, NodeRawNs(now_ns))
        statuses = common.reports(0).current.next_statuses()
        ranks = {status.rank for status in statuses.statuses} if statuses is not None else set()
        assert (former.number in ranks) == is_reported
        assert (former in roster) == is_reported
        roster.close()


def test_two_live_runs_of_one_name_are_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two launches of a job on one node: the log names both pids, in one line for all ranks."""
    now_ns = time.time_ns()
    roster = Roster(tmp_path, shared())
    with sleeping(3) as pids:
        for number, run in enumerate(("vm:1", "vm:2", "vm:2")):
            publish(tmp_path, pids[number], str(number) * 12, run=run, started_at_ns=now_ns)
            (rank,) = roster.update(NodeRawNs(now_ns))
            assert rank.process.was_alive
        (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
        assert f"two running jobs are called j (pids {pids[0]}, {pids[1]})" in warning.getMessage()
        roster.close()


OLD = {"torch_version": "2.7.0", "kept": [1], "off": ""}
NEW = {"torch_version": "2.10.0", "kept": [0], "off": ""}
TOO_OLD = "torch 2.7.0 keeps no record of Gloo: use torch 2.10 or later"
OFF = "TORCH_FR_BUFFER_SIZE=0"


@pytest.mark.parametrize(
    ("changes", "rows", "why"),
    [
        (OLD, [], TOO_OLD),
        (NEW, [], ""),
        (NEW | {"off": OFF}, [], f"{OFF} switches torch's Flight Recorder off"),
        (NEW | {"off": "default"}, [], "torch 2.10.0 records nothing by default: start"),
        (NEW | {"off": OFF}, [(tap.GENERIC, 0, 1, 1, 1)], ""),
        (NEW | {"dumps": None, "socket_error": "RLIMIT_NPROC"}, [], "RLIMIT_NPROC"),
    ],
    ids=["old", "idle", "off", "off by default", "records although", "without server and dumps"],
)
def test_a_rank_whose_collectives_cannot_be_read(
    tmp_path: Path, changes: dict[str, Any], rows: list[tap.Row], why: str
) -> None:
    """The agent says so, and not while it is silent: what its torch cannot record, as soon as that
    is known, all else after some seconds. A rank that has done nothing yet can be read, and one
    that has recorded something, too."""
    files, common = tap.Files(str(tmp_path), TOKEN), shared()
    with sleeping(1) as (pid,):
        publish(tmp_path, pid, **({"dumps": f"{TOKEN}.dumps"} | changes))
        roster, said = Roster(tmp_path, common), list[RankStatus]()

        def look(after_s: float) -> tuple[RankState, str]:
            """The last status that was reported."""
            now_ns = NodeRawNs(common.time.now() + round(after_s * 1e9))
            roster.update(now_ns)
            (rank,) = roster
            rank.poll(now_ns / 1e9, now_ns)
            if (found := common.reports(0).current.next_statuses()) is not None:
                said.extend(found.statuses)
            return said[-1].state, said[-1].unread

        for after_s in (0.0, 9.0, 11.0):
            assert changes is OLD or not any(one.unread for one in said)
            files.write_counters(time.time_ns(), time.monotonic_ns(), rows)
            state, unread = look(after_s)
            assert state is RankState.LIVE
            assert changes is not OLD or unread == why
        assert bool(unread) == bool(why)
        assert unread.startswith(why)
        os.kill(pid, signal.SIGSTOP)
        until(lambda: look(12.0) == (RankState.SILENT, ""))
        roster.close()
