"""Which process an identity may name: one of the same user, and each process only once."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from frd.model import NodeRawNs, RankState
from frd_agent import tap
from frd_agent.inspection.inspector import Processes, RankSampler
from frd_agent.inspection.reading.memory import Helper
from frd_agent.inspection.traces.followed import Traces
from frd_agent.node_time import raw_now
from frd_agent.proc import is_of, read_stat
from frd_agent.ranks.forming.forming_rank import StageFile
from frd_agent.ranks.process import Listener, listener
from frd_agent.ranks.rank import MAX_RANKS
from frd_agent.ranks.rank_process import RankProcess
from frd_agent.ranks.roster import Roster
from frd_agent.ranks.stacks.children import child_stacks
from frd_agent.ranks.stacks.reader import from_outside
from frd_agent.ranks.tap_files import PhaseFile, TapIdentity
from frd_agent.recorder.published_dumps import DumpsFile
from frd_agent.recorder.worker_server import HandlerFailed, Handlers
from tests.unit.agent.ranks.test_roster import publish, sleeping
from tests.world.daemons import until
from tests.world.run_dir import NOBODY, TOKEN, identity, process_of, shared

ALICE, MALLORY = 61_001, 61_002
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two users")


def named(pid: int) -> TapIdentity:
    said = identity(pid=pid, socket=None, shm=None)
    return msgspec.convert(said, TapIdentity)


# -- whose process it is -----------------------------------------------------------------------


@needs_root
def test_a_process_of_another_user() -> None:
    """An identity of Mallory names a process of Alice, or of root: an agent of root reads neither.
    All user ids count: a process of root that acts for a user is root's."""
    with sleeping(1, ALICE) as (alices,), acting_for(ALICE) as roots:
        assert is_of(alices, ALICE)
        assert not is_of(roots, ALICE)
        for pid in (alices, roots, os.getpid()):
            found = RankProcess(named(pid), None, owner=MALLORY)
            assert (found.pinned, found.readable, found.may_read(pid)) == (None, None, False)
        found = RankProcess(named(alices), None, owner=ALICE)
        assert found.readable == alices
        assert not found.may_read(os.getpid()), "not of other users either"
        found.close()
        assert RankProcess(named(roots), None, owner=ALICE).readable is None


@contextmanager
def acting_for(uid: int) -> Iterator[int]:
    """A process of root whose effective user is another one."""
    code = f"import os, sys; os.setresuid(0, {uid}, 0); print(flush=True); sys.stdin.read()"
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate()


CHANGES = """
import os, sys
os.setresuid(int(sys.argv[1]), int(sys.argv[1]), 0)
print(flush=True)
sys.stdin.readline()
os.setresuid(0, 0, 0)
print(flush=True)
sys.stdin.read()
"""


@needs_root
def test_a_process_that_becomes_another_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """After it was found, as by the exec of a program that is set-uid: no more is read, and what
    was read meanwhile is not used."""
    command = [sys.executable, "-c", CHANGES, str(ALICE)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        # A saved id of root would make it root's already: this test is about the change.
        uids = [str(ALICE), str(ALICE), "0"]
        assert Path(f"/proc/{process.pid}/status").read_text().split("Uid:")[1].split()[:3] == uids
        found = RankProcess(named(process.pid), None, owner=ALICE)
        assert found.readable is None
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        mine = RankProcess(named(process.pid), None, owner=0)
        answers = iter([True, False])
        changing = process_of(process.pid)
        monkeypatch.setattr(changing, "may_read", lambda _: next(answers))
        for other in (changing, process_of(process.pid, ALICE)):
            stack = asyncio.run(from_outside(other, 5.0))
            assert (stack.source, "Thread" in stack.text) == ("none", False)
        assert asyncio.run(from_outside(mine, 5.0)).source != "none"
        mine.close()
        process.communicate()


@needs_root
def test_children_of_another_user(tmp_path: Path) -> None:
    """A rank has started a program that runs as another user: its stack is not read."""
    python = Path(tempfile.mkdtemp(dir="/tmp"), "python3")  # for all users
    python.parent.chmod(0o755)
    shutil.copy(shutil.which("sleep") or "", python)
    code = (
        "import subprocess, sys; child = subprocess.Popen([sys.argv[1], '60'], user=61001); "
        "print(flush=True); sys.stdin.read(); child.kill()"
    )
    command, pipes = [sys.executable, "-c", code, str(python)], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipes, stdin=pipes) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = RankProcess(named(process.pid), None, owner=0)
        assert "python3" in asyncio.run(child_stacks(process_of(process.pid), 5.0, ()))
        assert asyncio.run(child_stacks(found, 5.0, ())) == ""
        found.close()
        process.communicate()
    shutil.rmtree(python.parent)


@needs_root
def test_what_a_rank_waits_for_is_read_of_its_user_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a pipe that a process of another user holds: nothing is read of that one. If
    the rank itself is another user's by now, nothing is known at all."""
    reader, writer = os.pipe()
    with (
        subprocess.Popen(["cat"], stdin=reader, user=ALICE) as waiting,
        subprocess.Popen(["sleep", "60"], stdout=writer, user=MALLORY) as holding,
    ):
        os.close(reader)
        os.close(writer)
        try:
            processes, common = Processes(), shared()
            asked: list[int] = []

            def sample(owner: int | None) -> str:
                def may_read(pid: int) -> bool:
                    asked.append(pid)
                    return owner is None or is_of(pid, owner)

                traces, rank = Traces(common.time.one_to_raw), process_of(waiting.pid)
                monkeypatch.setattr(rank, "may_read", may_read)
                sampler = RankSampler(rank, processes, Helper(deadline_s=5.0), traces)
                for _ in range(3):
                    processes.look(time.monotonic())
                    found = sampler.sample(raw_now(), {waiting.pid: 0}).waits_for
                return repr(found)

            assert "'sleep'" in sample(None)
            found = sample(ALICE)
            assert "no other process of its user holds" in found
            assert "'sleep'" not in found
            assert holding.pid in asked
            assert "UNKNOWN" in sample(MALLORY)
        finally:
            waiting.kill()
            holding.kill()


@needs_root
async def test_a_socket_that_leads_to_another_process(tmp_path: Path) -> None:
    """A link with the name of a rank's socket leads to a server of root: it gets no request."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "server.sock"))
        server.listen()
        server.settimeout(5.0)
        path = tmp_path / f"{TOKEN}.sock"
        path.symlink_to(tmp_path / "server.sock")
        assert listener(str(path), ALICE) is Listener.ELSEWHERE
        assert listener(str(path), 0) == os.getpid()
        with pytest.raises(HandlerFailed, match=f"uid 0 listens, not of uid {ALICE}: not asked"):
            await Handlers(path, 1.0, owner=ALICE).ask("fr_trace_json")
        for _ in range(3):
            connection, _ = server.accept()
            with connection:
                assert connection.recv(99) == b""


# -- a process once ----------------------------------------------------------------------------


def rank_of(name: str, number: int) -> dict[str, Any]:
    return {"job": name, "rank": number % 4, "attempt": number // 4}


def test_one_process_claims_one_rank(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Three hundred identities name one process: the newest one is watched, with one line in the
    log and a few descriptors; the others are counted, not looked at again, and removed with it: one
    of them may be the true one, if the clock was set back before an exec."""
    common = shared()
    roster = Roster(tmp_path, common)
    with sleeping(1) as (pid,):
        for number in range(300):
            publish(tmp_path, pid, f"{number:012x}", started_at_ns=number, **rank_of("j", number))
        before = len(os.listdir("/proc/self/fd"))
        (rank,) = roster.update(raw_now())
        assert rank.identity.token == f"{299:012x}"
        assert len(os.listdir("/proc/self/fd")) <= before + 3
        assert roster.update(raw_now()) == []
        assert list(roster) == [rank]
        assert len(list(tmp_path.glob("*.json"))) == 300
    roster.end(rank, raw_now())
    roster.clear(NodeRawNs(raw_now() + 7200 * 10**9))
    assert list(tmp_path.glob("*.json")) == []
    assert common.stats.refused_files["claim"] == 299
    assert len([one for one in caplog.records if "claims" in one.getMessage()]) == 1
    roster.close()


def test_a_process_that_begins_again(tmp_path: Path) -> None:
    """By an exec, after which it is another rank of another job: what it was is over, and its
    older identity does not come back. A process that goes on as the next attempt is one rank."""
    common = shared()
    roster = Roster(tmp_path, common)
    with sleeping(1) as (pid,):
        old = publish(tmp_path, pid, "a" * 12, started_at_ns=7)
        (first,) = roster.update(raw_now())
        publish(tmp_path, pid, "b" * 12, started_at_ns=8, job="k")
        (second,) = roster.update(raw_now())
        assert (first.is_gone, second.is_gone) == (True, False)
        statuses = common.reports(0).current.next_statuses()
        assert statuses is not None
        states = {one.rank: (one.state, one.detail) for one in statuses.statuses}
        assert states[first.number] == (RankState.FINISHED, f"went on as {second}")
        old.write_text(old.read_text().replace('"started_at_ns": 7', '"started_at_ns": 77'))
        assert roster.update(raw_now()) == []
        publish(tmp_path, pid, "b" * 12, started_at_ns=8, job="k", attempt=3)
        assert roster.update(raw_now()) == []
        assert second.identity.attempt.attempt == 3
        assert [rank for rank in roster if not rank.is_gone] == [second]
    roster.close()


@needs_root
def test_files_of_others_stay(tmp_path: Path) -> None:
    """Mallory uses the token of Alice for identities that do not count: only his file goes."""
    roster = Roster(tmp_path, shared())
    with sleeping(1, MALLORY) as (pid,):
        for number in range(2):
            path = publish(tmp_path, pid, f"{number:012x}", started_at_ns=number)
            os.chown(path, MALLORY, MALLORY)
        alices = tmp_path / f"{0:012x}.shm"
        alices.touch()
        os.chown(alices, ALICE, ALICE)
        (rank,) = roster.update(raw_now())
        assert rank.identity.token == f"{1:012x}"
        roster.end(rank, raw_now())
        roster.clear(NodeRawNs(raw_now() + 7200 * 10**9))
        assert alices.exists()
        assert not (tmp_path / f"{0:012x}.json").exists()
    roster.close()


@needs_root
@pytest.mark.parametrize("kind", [PhaseFile, StageFile, DumpsFile])
def test_a_file_with_the_token_of_another_user(
    tmp_path: Path, kind: type[PhaseFile | StageFile | DumpsFile]
) -> None:
    """Where all users publish, Mallory adds a file to the rank of Alice: it does not count."""
    identity_path = publish(tmp_path, os.getpid())
    os.chown(identity_path, ALICE, ALICE)
    path = identity_path.with_suffix(kind.SUFFIX)
    now = {"since_ns": 1, "as_of_ns": 1, "op": "", "pid": 1, "start_ticks": 1}
    said = {"schema": 1, "token": TOKEN, "at_ns": 1, "recorders": {}, "phases": []} | now
    path.write_text(json.dumps(said))
    for owner, is_read in ((ALICE, True), (MALLORY, False)):
        os.chown(path, owner, owner)
        found = kind.look(path, None)
        assert found is not None
        assert (found.content is not None) == is_read, found.problem
        assert ("of another user than the rank's identity" in found.problem) != is_read


@needs_root
def test_an_identity_that_another_user_has_replaced(tmp_path: Path) -> None:
    """Of a rank whose files were removed: it goes on under the name that it had."""
    roster = Roster(tmp_path, shared())
    with sleeping(1, ALICE) as (pid,):
        path = publish(tmp_path, pid)
        os.chown(path, ALICE, ALICE)
        (rank,) = roster.update(raw_now())
        path.unlink()
        os.chown(publish(tmp_path, pid, job="other"), MALLORY, MALLORY)
        assert roster.update(raw_now()) == []
        assert rank.identity.job == "j"
    roster.close()


def test_processes_that_are_not_seen_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but its identity is known of a process in another pid namespace: so many are watched
    and no more, and status and doctor say how many are not."""
    monkeypatch.setattr(tap, "FIRST_PID_NAMESPACE", 2)
    common = shared()
    roster = Roster(tmp_path, common)
    for number in range(MAX_RANKS + 9):
        apart = {"pid_namespace": 77, "start_ticks": 5, "started_at_ns": number}
        publish(tmp_path, NOBODY, f"{number:012x}", **apart, **rank_of("j", number))
    assert len(roster.update(raw_now())) == MAX_RANKS
    assert roster.update(raw_now()) == []
    assert common.stats.refused_files["claim"] == 9
    (text,) = roster.unreadable.texts
    assert text == f"{tmp_path}: 9 ranks beyond {MAX_RANKS} are not watched"
    for rank in list(roster)[:9]:
        rank.gone_at_ns = NodeRawNs(1)
    assert len(roster.update(raw_now())) == 9
    assert roster.unreadable.texts == ()
    assert common.stats.refused_files["claim"] == 9
    roster.close()


def claim(run_dir: Path, number: int, pid: int, **changes: Any) -> None:
    """As a tap before its first process group; the higher the number, the newer the claim."""
    token, now_ns = f"{number:012x}", time.time_ns()
    stat = read_stat(pid)
    ticks = stat.start_ticks if stat is not None else 5
    process = {"pid": pid, "start_ticks": ticks, "pid_namespace": tap.pid_namespace()} | changes
    said = identity(socket=None, shm=None, started_at_ns=now_ns) | {"groups": []}
    said |= process | {"token": token, "boot_id": tap.boot_id()} | rank_of("f", number)
    report = {"schema": 1, "token": token, "op": "init_process_group", "claim": said}
    report |= process | {"since_ns": now_ns, "as_of_ns": now_ns}
    (run_dir / f"{token}.stage").write_text(json.dumps(report))


def test_one_process_forms_one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it has groups: its newest claim counts, and none while it is a rank under another
    name. Claims of processes that are not seen are bounded as ranks are."""
    common = shared()
    roster = Roster(tmp_path, common)
    with sleeping(2) as (pid, other):
        for number in range(50):
            claim(tmp_path, number, pid)
        claim(tmp_path, 51, other)
        publish(tmp_path, other, "f" * 12)
        for _ in range(2):
            roster.update(raw_now())
        (forming,) = roster.forming
        assert (forming.process.pid, forming.identity.token) == (pid, f"{49:012x}")
        assert common.stats.refused_files["claim"] == 50
        monkeypatch.setattr(tap, "FIRST_PID_NAMESPACE", 2)
        for number in range(100, 100 + MAX_RANKS):
            claim(tmp_path, number, NOBODY, pid_namespace=77)
        roster.update(raw_now())
        assert len(roster.forming._claimants) == MAX_RANKS
    roster.close()


def test_claims_beyond_a_users_share_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More processes form ranks than one user may have: no descriptor stays open of those that are
    not watched, they are counted once, and status says how many they are."""
    monkeypatch.setattr("frd_agent.ranks.forming.registry.MAX_RANKS", 2)
    common = shared()
    roster = Roster(tmp_path, common)
    with sleeping(5) as pids:
        for number, pid in enumerate(pids):
            claim(tmp_path, number, pid)
        roster.update(raw_now())
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            roster.update(raw_now())
        assert len(os.listdir("/proc/self/fd")) == before
        assert len(list(roster.forming)) == 2
        assert common.stats.refused_files["claim"] == 3
        assert roster.unreadable.texts == (
            f"{tmp_path}: 3 ranks beyond {MAX_RANKS} are not watched",
        )
    roster.close()


def test_a_rank_that_begins_again_before_it_has_groups(tmp_path: Path) -> None:
    """The program of a rank restarts itself by an exec and waits in init_process_group: what it was
    is over, and the same process forms the same rank again. An older claim changes nothing."""
    common = shared()
    roster = Roster(tmp_path, common)
    with sleeping(1) as (pid,):
        claim(tmp_path, 1, pid)
        roster.update(raw_now())
        assert len(list(roster.forming)) == 1
        publish(tmp_path, pid, "a" * 12, **rank_of("f", 2))
        (rank,) = roster.update(raw_now())
        assert list(roster.forming) == []
        assert roster.update(raw_now()) == []
        assert not rank.is_gone
        claim(tmp_path, 2, pid, run="vm:1")
        for _ in range(2):
            roster.update(raw_now())
        (forming,) = roster.forming
        assert (forming.process.pid, forming.identity.token) == (pid, f"{2:012x}")
        assert rank.is_gone
        assert list(roster) == []
        publish(tmp_path, pid, f"{2:012x}", **rank_of("f", 2))
        (again,) = roster.update(raw_now())
        assert (again.is_gone, list(roster), list(roster.forming)) == (False, [again], [])
    roster.close()


@needs_root
def test_a_user_cannot_use_up_the_share_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory of all users, Mallory publishes identities of processes that are not seen, the
    newest there are, and stages whose names sort first: Alice's ranks are watched."""
    for module in ("roster", "forming.registry"):
        monkeypatch.setattr(f"frd_agent.ranks.{module}.MAX_RANKS", 3)
    monkeypatch.setattr(tap, "FIRST_PID_NAMESPACE", 2)
    roster, apart = Roster(tmp_path, shared()), {"pid_namespace": 77, "start_ticks": 5}
    with sleeping(2, ALICE) as (alices, forming):
        os.chown(publish(tmp_path, alices, "a" * 12), ALICE, ALICE)
        claim(tmp_path, 2**30, forming)
        os.chown(tmp_path / f"{2**30:012x}.stage", ALICE, ALICE)
        for number in range(9):
            future = {"started_at_ns": 2**62 + number} | apart | rank_of("m", number)
            os.chown(publish(tmp_path, NOBODY, f"{number:012x}", **future), MALLORY, MALLORY)
            claim(tmp_path, 100 + number, NOBODY, **apart)
            os.chown(tmp_path / f"{100 + number:012x}.stage", MALLORY, MALLORY)
        watched = {rank.process.pid for rank in roster.update(raw_now())}
        assert watched == {alices, None}
        assert len(list(roster)) == 4
        assert forming in {rank.process.pid for rank in roster.forming}
    roster.close()


def test_unusable_files_leave_nothing_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A loop makes and removes files of ever new names: one line a minute in the log, all are
    counted, and nothing is kept of those that are gone."""
    common = shared()
    roster = Roster(tmp_path, common)
    for number in range(20):
        names = [f"x{number}.json", f"x{number}.stage"]
        for name in names:
            (tmp_path / name).touch()
        claim(tmp_path, number, 1, start_ticks=1)
        roster.update(raw_now())
        for name in (*names, f"{number:012x}.stage"):
            (tmp_path / name).unlink()
    roster.update(raw_now())
    assert [common.stats.refused_files[kind] for kind in ("identity", "stage")] == [20, 20]
    assert len([one for one in caplog.records if "not a tap's file" in one.getMessage()]) == 2
    assert not roster.forming._unseen
    assert not roster._refused._known
    assert not roster.forming._refused._known
    roster.close()


def test_a_process_is_stopped_while_it_is_asked_about(tmp_path: Path) -> None:
    """It stays readable: only its user and its start count."""
    with sleeping(1) as (pid,):
        found = RankProcess(named(pid), None, owner=os.geteuid())
        os.kill(pid, signal.SIGSTOP)
        until(lambda: "stopped" in found.describe())
        assert found.readable == pid
        os.kill(pid, signal.SIGKILL)
        os.kill(pid, signal.SIGCONT)
    assert found.readable is None, "its number may be used again"
    found.close()
