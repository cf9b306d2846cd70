"""Which processes an agent takes for ranks before they have groups: real processes, files by hand,
no torch."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frd.model import REST, AttemptKey, NodeRawNs, RankState, RankStatus, Stage
from frd.wire.messages import Part, Request, ResponsePart
from frd_agent import tap
from frd_agent.inspection.inspector import Inspector
from frd_agent.node_time import raw_now
from frd_agent.proc import read_stat
from frd_agent.ranks.roster import Roster
from frd_agent.uplink.answers import answer, answer_waits
from tests.world.daemons import until
from tests.world.run_dir import TOKEN, identity, shared

S = 1_000_000_000
INSIDE = "init_process_group"
OTHER = "b" * 12
FRAMES = [["/job/train.py", 12, "load_model"], ["/job/train.py", 40, "<module>"]]


def start_ticks(pid: int) -> int:
    stat = read_stat(pid)
    assert stat is not None
    return stat.start_ticks


class Node:
    """A run directory, the agent's roster on it, and processes."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.common = shared()
        self.roster = Roster(run_dir, self.common)
        self._processes: list[subprocess.Popen[str]] = []

    def process(self) -> int:
        """A process that sleeps already: a rank without a socket is reported with the state of its
        process, and a process that has just started may still be running."""
        process = subprocess.Popen(["sleep", "600"], text=True)
        self._processes.append(process)
        until(lambda: (stat := read_stat(process.pid)) is not None and stat.state == "S")
        return process.pid

    def family(self) -> tuple[int, int]:
        """A process and its child."""
        command = ["sh", "-c", "sleep 600 & echo $!; wait"]
        process = subprocess.Popen(
            command, text=True, stdout=subprocess.PIPE, start_new_session=True
        )
        self._processes.append(process)
        assert process.stdout is not None
        return process.pid, int(process.stdout.readline())

    def end(self, pid: int) -> None:
        """Kill it, as the kernel would: nothing of it runs any more."""
        os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            if process.pid == pid:
                process.wait()

    def close(self) -> None:
        self.roster.close()
        for process in self._processes:
            with process, contextlib.suppress(ProcessLookupError):
                process.kill()

    def claim(self, pid: int, token: str = TOKEN, op: str = "", **changes: Any) -> dict[str, Any]:
        """The claim of a process to be rank 1 of attempt 2 of job j, as its tap writes it."""
        now_ns = time.time_ns()
        run = {"run": "n1:9", "host": "n1", "boot_id": tap.boot_id(), "groups": []}
        claimed = identity(pid=pid, socket=None, shm=None, started_at_ns=now_ns - 9 * S)
        report = {
            "schema": 1,
            "token": token,
            "pid": pid,
            "start_ticks": start_ticks(pid),
            "op": op,
            "since_ns": now_ns - 8 * S,
            "as_of_ns": now_ns - S,
            "frames": FRAMES,
            "claim": claimed | run | {"token": token} | changes,
            "exit": None,
        }
        self.write(token, report)
        return report

    def write(self, token: str, report: dict[str, Any]) -> None:
        """Replace the file as a whole."""
        temporary = self.run_dir / ".new"
        temporary.write_text(json.dumps(report))
        temporary.rename(self.run_dir / f"{token}.stage")

    def become_rank(self, pid: int, token: str = TOKEN, **changes: Any) -> None:
        """Its identity is written, then its stage is removed."""
        said = identity(pid=pid, socket=None, shm=None, started_at_ns=time.time_ns())
        said |= {"token": token, "run": "n1:9", "host": "n1", "boot_id": tap.boot_id()} | changes
        (self.run_dir / f"{token}.json").write_text(json.dumps(said))
        (self.run_dir / f"{token}.stage").unlink(missing_ok=True)

    def update(self, after_s: float = 0.0) -> list[int]:
        """Pids of the processes that form."""
        now_ns = NodeRawNs(self.common.time.now() + round(after_s * S))
        self.roster.update(now_ns)
        for rank in self.roster:
            rank.poll(now_ns / 1e9, now_ns)
        return [rank.process.pid for rank in self.roster.forming if rank.process.pid is not None]

    def statuses(self) -> dict[int, RankStatus]:
        """What is new to the service, by the agent's number."""
        found = self.common.reports(0).current.next_statuses()
        return {} if found is None else {status.rank: status for status in found.statuses}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


def test_a_process_forms_and_becomes_the_rank(node: Node) -> None:
    """It is reported as a rank of its attempt with its stage; when it has its groups, it is the
    same process of the same rank, and no end is reported."""
    pid = node.process()
    node.claim(pid)
    assert node.update() == [pid]
    (forming,) = node.roster.forming
    assert forming.identity.attempt == AttemptKey("j", 2)
    declared = node.common.dictionary.ranks[forming.number].info
    assert (declared.rank, declared.world_size, declared.node) == (1, 4, "n1")
    (status,) = node.statuses().values()
    assert status.stage is not None
    assert (status.state, status.stage.op) == (RankState.LIVE, "")
    assert status.stage.as_of_ns - status.stage.since_ns == pytest.approx(7 * S, abs=S / 10)
    assert node.update() == [pid]
    assert node.statuses() == {}

    node.claim(pid, op=INSIDE)
    assert node.update() == [pid]
    (status,) = node.statuses().values()
    assert status.stage is not None
    assert status.stage.op == INSIDE

    node.become_rank(pid)
    assert node.update() == []
    (rank,) = node.roster
    changed = node.statuses()
    assert set(changed) == {rank.number}
    assert (changed[rank.number].stage, changed[rank.number].exit) == (None, None)
    info = node.common.dictionary.ranks[rank.number].info
    assert info.process == declared.process


def test_stages_that_go_on_are_reported_together(node: Node) -> None:
    """Two processes are in the same stage for long, and their taps write at different times: the
    service hears of both at the same time. A change is reported immediately."""
    pids = [node.process(), node.process()]
    reports = [node.claim(pids[0], op=INSIDE), node.claim(pids[1], OTHER, rank=2)]
    assert node.update() == pids
    assert len(node.statuses()) == 2
    for i, token in enumerate((TOKEN, OTHER)):
        node.write(token, reports[i] | {"as_of_ns": reports[i]["as_of_ns"] + S})
        assert node.update() == pids
        assert node.statuses() == {}
    node.update(after_s=2.5)
    assert len(node.statuses()) == 2
    node.update()
    later_ns = time.time_ns()
    node.write(OTHER, reports[1] | {"op": INSIDE, "since_ns": later_ns, "as_of_ns": later_ns})
    node.update()
    (status,) = node.statuses().values()
    assert status.stage is not None
    assert status.stage.op == INSIDE


def test_a_rank_in_new_group(node: Node) -> None:
    """The stage of a process that is a rank belongs to that rank, and ends with its file."""
    pid = node.process()
    node.become_rank(pid)
    report = node.claim(pid, op="new_group") | {"claim": None}
    node.write(TOKEN, report)
    assert node.update() == []
    (rank,) = node.roster
    assert rank.stage is not None
    assert node.statuses()[rank.number].stage == rank.stage
    node.update()
    assert rank.number not in node.statuses()
    (node.run_dir / f"{TOKEN}.stage").unlink()
    node.update()
    assert node.statuses()[rank.number].stage is None


RECV = ["/v/site-packages/torch/distributed/distributed_c10d.py", 2799, "recv"]


def test_where_a_rank_is_while_its_counters_rest(node: Node) -> None:
    """That it waits in recv is news, and that it rests there; that it goes on is reported with all
    others. Then it is elsewhere, and at rest there with the second look. When its counters move,
    nothing is known any more."""
    pid = node.process()
    node.become_rank(pid)
    report = node.claim(pid) | {"claim": None}
    node.update()
    (rank,) = node.roster

    def look(at_s: float, frames: list[list[object]], ran_ns: int) -> Stage | None:
        """What is news."""
        as_of_ns = report["as_of_ns"] + round(at_s * S)
        node.write(TOKEN, report | {"as_of_ns": as_of_ns, "frames": frames, "ran_ns": ran_ns})
        before = rank.stage
        node.update()
        return rank.stage if rank.stage is not before else None

    line = "train.py:12 in load_model"
    found = look(0, [RECV, *FRAMES], 500)
    assert found is not None
    assert (found.op, found.where, found.rests) == ("recv", line, False)
    again = look(0.2, [RECV, *FRAMES], 500)
    assert again is not None
    assert (again.op, again.since_ns, again.rests) == ("recv", found.as_of_ns, True)
    assert look(0.3, [RECV, *FRAMES], 500) is None
    node.update(after_s=2.5)
    assert rank.stage is not None
    assert rank.stage.as_of_ns - again.as_of_ns == pytest.approx(S / 10, abs=S / 100)
    elsewhere = look(0.4, FRAMES, 900)
    assert elsewhere is not None
    assert (elsewhere.op, elsewhere.where, elsewhere.rests) == ("", line, False)
    at_rest = look(0.5, FRAMES, 900)
    assert at_rest is not None
    assert (at_rest.op, at_rest.where, at_rest.rests) == (REST, line, True)
    assert node.statuses()[rank.number].stage == at_rest
    (node.run_dir / f"{TOKEN}.stage").unlink()
    node.update()
    assert node.statuses()[rank.number].stage is None


def test_two_processes_claim_one_rank(node: Node) -> None:
    """Neither is taken for it, not even the one that was alone at first; when one ends, the other
    is."""
    one, other = node.process(), node.process()
    node.claim(one)
    assert node.update() == [one]
    (first,) = node.roster.forming
    node.statuses()
    node.claim(other, OTHER)
    assert node.update() == []
    status = node.statuses()[first.number]
    assert (status.state, status.stage) == (RankState.FINISHED, None)
    node.end(other)
    node.update()
    assert node.update() == [one]


def test_helpers_of_a_rank(node: Node) -> None:
    """A helper inherits the environment of a rank that has groups, of one that forms, and of one
    that has ended: it is never taken for that rank."""
    parent, child = node.family()
    node.claim(parent)
    node.claim(child, OTHER)
    assert node.update() == [parent]
    node.become_rank(parent)
    assert node.update() == []
    node.end(parent)
    assert node.update() == []
    node.claim(child, OTHER, op=INSIDE)
    assert node.update() == []


def test_a_supervisor_of_a_rank(node: Node) -> None:
    """A program with the environment of a rank starts the training program, which is in
    init_process_group: the program above it is not taken for the rank."""
    parent, child = node.family()
    node.claim(parent)
    assert node.update() == [parent]
    node.claim(child, OTHER, op=INSIDE)
    assert node.update() == []
    node.become_rank(child, OTHER)
    assert node.update() == []
    assert [rank.process.pid for rank in node.roster] == [child]


def test_a_helper_of_another_job(node: Node) -> None:
    """A rank starts another launcher: what that one starts is watched once it has groups."""
    parent, child = node.family()
    node.become_rank(parent)
    node.claim(child, OTHER, job="inner", op=INSIDE)
    assert node.update() == []


@pytest.mark.parametrize("what", ["pid", "boot", "unknown start"])
def test_a_process_that_cannot_be_verified(node: Node, what: str) -> None:
    """The number belongs to a later process, the file is of another node, or the tap could not read
    its own start: no rank is reported. The file is removed once it is old."""
    pid = node.process()
    boot_id = "another" if what == "boot" else tap.boot_id()
    report = node.claim(pid, boot_id=boot_id)
    if what != "boot":
        report["start_ticks"] = 0 if what == "unknown start" else report["start_ticks"] - 1
        node.write(TOKEN, report)
    assert node.update() == []
    assert (node.run_dir / f"{TOKEN}.stage").exists()
    old_ns = time.time_ns() - 120 * S
    node.write(TOKEN, report | {"since_ns": old_ns, "as_of_ns": old_ns})
    assert node.update() == []
    assert not (node.run_dir / f"{TOKEN}.stage").exists()


def test_a_process_ends_before_it_is_a_rank(node: Node) -> None:
    """It raises: for the service the rank has finished, with the reason as text, and no exit that
    could count as a lost rank. Its file is removed, and in the end it is forgotten."""
    pid = node.process()
    report = node.claim(pid)
    node.update()
    (forming,) = node.roster.forming
    before = node.statuses()[forming.number]
    record = {"kind": "exception", "detail": "OSError: no model", "at_ns": time.time_ns()}
    node.write(TOKEN, report | {"exit": record | {"frames": FRAMES}})
    node.end(pid)
    node.update()
    assert node.update() == []
    status = node.statuses()[forming.number]
    assert (status.state, status.stage, status.exit) == (RankState.FINISHED, None, None)
    why = "ended before it had a process group: OSError: no model (train.py:12 load_model)"
    assert status.detail.startswith(why)
    assert status.at_ns < status.as_of_ns > before.as_of_ns
    assert not (node.run_dir / f"{TOKEN}.stage").exists()
    node.roster.clear(NodeRawNs(raw_now() + 61 * S))
    node.common.reports(0).current.rewind()
    assert node.statuses() == {}


def test_a_process_gives_up(node: Node) -> None:
    """Its tap removes the file, and there is no identity: it is no longer taken for a rank."""
    pid = node.process()
    node.claim(pid, op=INSIDE)
    node.update()
    (node.run_dir / f"{TOKEN}.stage").unlink()
    assert node.update() == [pid]
    assert node.update() == []


def test_a_process_becomes_another_rank(node: Node) -> None:
    """The program passes another rank to init_process_group than its environment names."""
    pid = node.process()
    node.claim(pid)
    node.update()
    (forming,) = node.roster.forming
    node.become_rank(pid, rank=3)
    assert node.update() == []
    (rank,) = node.roster
    changed = node.statuses()
    assert changed[forming.number].state is RankState.FINISHED
    assert changed[forming.number].detail == f"went on as {rank}"
    assert rank.number in changed


def test_a_launcher_that_names_nodes_as_ranks(node: Node) -> None:
    """The environment has the number of the node and of all nodes; the processes that were started
    there pass their own to init_process_group: the job keeps its name."""
    pid = node.process()
    node.claim(pid, op=INSIDE, rank=0, world_size=2)
    assert node.update() == [pid]
    everyone = {"name": "0", "desc": "default_pg", "ranks": list(range(16)), "backend": "gloo"}
    node.become_rank(pid, rank=5, world_size=16, groups=[everyone])
    node.update()
    (rank,) = node.roster
    assert node.common.dictionary.who(rank.number) == ("j", 5)


def test_a_frozen_process_makes_no_progress(node: Node) -> None:
    """It is stopped: its stage is as of the last report of its tap, and it is silent."""
    pid = node.process()
    node.claim(pid, op=INSIDE)
    node.update()
    (before,) = node.statuses().values()
    os.kill(pid, signal.SIGSTOP)

    def silent() -> RankStatus | None:
        node.update()
        return next((s for s in node.statuses().values() if s.state is RankState.SILENT), None)

    assert until(silent).stage == before.stage


async def test_requests_about_a_forming_rank(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service asks for all that it asks of a suspect: there is no dump, with the reason; its
    identity comes, without py-spy the stack that its tap wrote last, and its wait is inspected."""
    monkeypatch.setattr("frd_agent.ranks.stacks.reader.shutil.which", lambda *_, **__: None)
    node.claim(node.process())
    node.update()
    (forming,) = node.roster.forming
    parts: dict[Part, ResponsePart] = {}

    async def send(part: ResponsePart) -> None:
        parts[part.part] = part

    request = Request(1, (0,), dump=True, stacks=True, timeout_s=5.0, waits=True)
    await answer(forming, request, send, [], others=set())
    inspector = Inspector(node.common.stats)
    await answer_waits(forming, request, send, inspector, [forming])
    inspector.stop()
    assert parts[Part.DUMP].error.endswith("it has no process group yet")
    assert json.loads(parts[Part.IDENTITY].data)["rank"] == 1
    assert parts[Part.STACK].source == "tap"
    assert b'File "/job/train.py", line 12 in load_model' in parts[Part.STACK].data
    assert (parts[Part.WAITS].error, parts[Part.WAITS].source) == ("", "proc")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema": 2}, "schema"),
        ({"pid": 0}, "pid"),
        ({"op": "rm -rf"}, "op"),
        ({"op": "x" * 65}, "op"),
        ({"since_ns": 0}, "since_ns"),
        ({"as_of_ns": 1}, "as_of_ns"),
        ({"token": OTHER}, "claim"),
        ({"claim": identity(socket=None)}, "claim"),
        ({"claim": {}}, "claim"),
        ({"frames": [["a.py", -1, "f"]]}, "frames"),
    ],
)
def test_bad_files(
    node: Node, change: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What no tap writes is counted and named in the log once; a good file next to it counts."""
    pid = node.process()
    node.write(TOKEN, node.claim(pid) | change)
    good = node.process()
    node.claim(good, OTHER, rank=0)
    assert node.update() == [good]
    node.update()
    assert node.common.stats.refused_files["stage"] == 1
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert f"{TOKEN}.stage" in record.getMessage()
    assert why in record.getMessage()


def test_an_error_does_not_stop_the_watching(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Something unforeseen happens with stages: ranks are watched, and the log says it once."""
    node.become_rank(node.process())
    monkeypatch.setattr("frd_agent.ranks.forming.registry.StageFile.scan", lambda *_: 1 / 0)
    node.update()
    node.update()
    assert len(list(node.roster)) == 1
    (record,) = [record for record in caplog.records if record.exc_info]
    assert "stages could not be read" in record.getMessage()


def test_a_file_that_may_not_be_removed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run directory is another user's: the old file of a dead process stays, and the process
    whose file comes after it is watched."""
    pid = node.process()
    node.write(TOKEN, node.claim(pid) | {"start_ticks": start_ticks(pid) + 1})
    good = node.process()
    node.claim(good, OTHER, rank=0)

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    assert node.update(after_s=100) == [good]
    assert (node.run_dir / f"{TOKEN}.stage").exists()


async def test_a_process_in_another_pid_namespace(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent in a container does not see it: its stack is what its tap has written. When the tap
    stops writing, it is silent, not ended: its GIL may be held. Where another process here has its
    number, that one is not touched. An agent outside containers sees all processes."""
    report = node.claim(os.getpid(), op=INSIDE, pid_namespace=1) | {"pid_namespace": 1}
    node.write(TOKEN, report)
    assert node.update() == []
    assert list(node.roster.forming) == []
    monkeypatch.setattr(tap, "FIRST_PID_NAMESPACE", 2)
    assert node.update() == []
    (forming,) = node.roster.forming
    assert (forming.process.pid, forming.process.is_hidden) == (None, True)
    (status,) = node.statuses().values()
    assert (status.state, status.stage and status.stage.op) == (RankState.LIVE, INSIDE)
    stack = await forming.read_stack(2.0, 5.0)
    assert 'File "/job/train.py", line 12 in load_model' in stack.text
    assert "another pid namespace: set shareProcessNamespace" in stack.text

    node.update(50.0)
    (status,) = node.statuses().values()
    assert status.state is RankState.SILENT
    assert status.detail == "process in another pid namespace; its tap has stopped writing"
    for _ in range(2):  # it was removed with the file
        node.update(700.0)
    assert list(node.roster.forming) == []
    (ended,) = node.statuses().values()
    assert ended.state is RankState.FINISHED
    assert not list(node.run_dir.iterdir())
    node.write(TOKEN, report | {"exit": {"kind": "clean", "detail": "", "at_ns": 5}})
    node.update()
    assert list(node.roster.forming) == []


def test_process_groups_that_frd_cannot_read(node: Node) -> None:
    """A process has groups for long and is not inside init_process_group: then its collectives
    cannot be read, and the status says why. While it is inside, it is about to be a rank."""
    pid = node.process()
    report = node.claim(pid, op=INSIDE) | {"has_groups": True}
    node.write(TOKEN, report)
    node.update()
    node.update(after_s=60.0)
    assert [one.unread for one in node.statuses().values()] == [""]
    node.write(TOKEN, report | {"op": ""})
    node.update(after_s=63.0)
    assert [one.unread for one in node.statuses().values()] == [""]
    node.update(after_s=84.0)
    (status,) = node.statuses().values()
    assert status.unread == status.detail
    assert status.unread.startswith("its process groups were made without init_process_group")
