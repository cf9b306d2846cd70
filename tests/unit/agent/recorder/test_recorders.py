"""The recorders of one rank, read as an agent reads them; the rank is a simulated one."""

from __future__ import annotations

import asyncio
import gzip
import pickle
import time
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from frd.flight.decode import parse_answer
from frd.flight.entry import Dump
from frd.model import AttemptKey, GroupInfo, NodeRawNs
from frd_agent import tap
from frd_agent.node_time import ClockReading
from frd_agent.ranks import process
from frd_agent.ranks.tap_files import TapGroup
from frd_agent.recorder import recorders, room
from frd_agent.recorder.naming import Naming
from frd_agent.recorder.recorders import Heartbeat, Reading, Recorders
from frd_agent.recorder.room import Room
from frd_agent.recorder.rows import Row
from frd_agent.recorder.worker_server import (
    Busy,
    First,
    HandlerFailed,
    Handlers,
    NothingNew,
    Silent,
)
from frd_agent.uplink.dictionary import Dictionary
from tests.sim.faults import Fault, FaultKind
from tests.sim.jobs import EPOCH, PLAN, job_of
from tests.sim.ops import S
from tests.sim.ranks import SimRank
from tests.world.node_clocks import time_of

ENTRY = b'{"record_id":0,"process_group":["",""],"profiling_name":"","collective_seq_id":0}'


class _Server:
    def __init__(self, rank: SimRank) -> None:
        self._rank = rank
        self.gil_is_held = self.is_silent = False
        self.meanwhile: Callable[[str], None] = lambda name: None
        """Called while the agent waits for a dump, with its handler."""
        self.firsts: list[str] = []
        """By dump: the handler that was called before."""

    def connected(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def taken_at(self, asked_at: ClockReading) -> ClockReading:
        return asked_at

    async def names(self) -> tuple[str, ...]:
        return (*self._rank.handlers, tap.IGNORE_CAPTURES)

    async def ask(
        self,
        name: str,
        *,
        timeout_s: float | None = None,
        first: First | None = None,
        **params: str,
    ) -> bytes:
        self.firsts.append(f"{name}: {first.name if first is not None else None}")
        if first is not None:
            first.answered = not self.gil_is_held
            if first.required and not first.answered:
                raise Busy("busy")
        self.meanwhile(name)
        if self.is_silent and name == NCCL:
            raise Silent("silent")
        return self._rank.dump(name)


class Agent:
    """Reads the recorders of a simulated rank."""

    def __init__(self) -> None:
        self.job = job_of(PLAN)
        self.rank = self.job.ranks[0]
        self._dictionary = Dictionary()
        self._time = time_of(lambda: self.job.now, EPOCH)
        self.server = _Server(self.rank)
        self.recorders = Recorders(cast(Handlers, self.server), self._time)
        self.recorders.begin_attempt(self.naming(0))
        self.rows: list[Row] = []
        """Recorded so far."""

    def naming(self, attempt: int) -> Naming:
        key = AttemptKey("job", attempt)
        naming = Naming(self._dictionary, self._dictionary.attempt(key, PLAN.world))
        naming.replace(self.rank.groups)
        return naming

    def read(self, second: int, published: int = 0, *, is_stale: bool = False) -> Reading:
        """What is read at that second; the tap has published at `published`."""
        self.job.advance(second * S)
        self.server.firsts.clear()
        raw = self._time.to_raw(np.array([EPOCH + published * S]))
        heartbeat = Heartbeat(NodeRawNs(int(raw[0])), is_stale)
        return asyncio.run(self.recorders.read(1.0, heartbeat, self.rows.extend))


def test_a_reset_recorder_is_read_although_another_has_nothing_new() -> None:
    """NCCL's recorder is reset; Gloo's has nothing new, which does not keep the agent from
    reading NCCL's again."""
    agent, rows = Agent(), []
    for second in range(6, 20):
        before = len(agent.rows)
        agent.read(second)
        rows.append(len(agent.rows) - before)
        if second == 10:
            agent.job.inject(Fault(FaultKind.RECORDER_RESET, (0,)))
    assert len(agent.rank.handlers) == 2
    assert sum(rows[:5]) > 0
    assert sum(rows[-5:]) > 0


NCCL, GLOO = "dump_nccl_trace_json", "fr_trace_json: None"
PREPARED, PLAIN = f"{NCCL}: {tap.IGNORE_CAPTURES}", f"{NCCL}: None"


def test_no_dump_of_nccl_while_the_interpreter_is_busy() -> None:
    """Before a dump of NCCL's recorder, a handler that needs the GIL is called. If it does not
    answer, there is no dump, and no further call until the tap, which needs the GIL too, has
    published something: one thread of the rank at most waits. Only if the tap has published nothing
    for long, the recorder is dumped without it; even a dump without an answer changes none of
    that."""
    agent = Agent()
    server = agent.server

    def read(second: int, published: int, *, is_stale: bool = False) -> tuple[set[str], bool]:
        reading = agent.read(second, published, is_stale=is_stale)
        return set(server.firsts), reading.is_busy

    assert read(6, 5) == ({PREPARED, GLOO}, False)
    server.gil_is_held = True
    assert read(7, 6) == ({PREPARED, GLOO}, True)
    assert read(8, 6) == ({GLOO}, True)
    assert read(9, 6, is_stale=True) == ({PLAIN, GLOO}, False)
    server.gil_is_held = False
    assert read(10, 9) == ({PREPARED, GLOO}, False)
    server.gil_is_held = server.is_silent = True
    for second in (11, 12):
        with pytest.raises(Silent):
            read(second, 10, is_stale=True)
        assert server.firsts[-1] == (PREPARED if second == 11 else PLAIN)


def test_what_is_in_flight_is_never_ahead_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the agent waits for the second recorder, a stream opens and reports what is in flight:
    all rows of the first recorder up to there were recorded before. They are recorded also if the
    second does not answer."""
    monkeypatch.setattr(recorders, "_RECORDERS", recorders._RECORDERS[::-1])
    agent = Agent()
    seen: list[int] = []

    def open_stream(name: str) -> None:
        recorded = {(row[0], row[1]) for row in agent.rows}
        assert {(row[0], row[1]) for row in agent.recorders.in_flight()} <= recorded
        seen.append(len(agent.recorders.in_flight()))
        if name != NCCL:
            raise Silent("silent")

    agent.server.meanwhile = open_stream
    for second in range(6, 9):
        with pytest.raises(Silent):
            agent.read(second, second - 1)
    assert len(agent.rows) == len({tuple(row[:4]) for row in agent.rows}) > 0
    assert max(seen) > 0


def test_a_dump_that_another_attempt_has_overtaken_is_read_again() -> None:
    """While the agent waits for a dump, the process begins another attempt: rows of groups that are
    named for the earlier one are not recorded for the later one."""
    agent = Agent()
    later = agent.naming(1)

    def begin(name: str) -> None:
        if name == NCCL:
            agent.recorders.begin_attempt(later)

    agent.server.meanwhile = begin
    assert agent.read(6).unread
    assert not agent.rows
    agent.server.meanwhile = lambda name: None
    agent.read(7)
    assert {row[0] for row in agent.rows} <= set(later.all_groups())


def test_a_recorder_that_was_read_is_not_read_as_a_new_one() -> None:
    """Its handler fails once with 404: what was recorded before is not recorded again."""
    agent = Agent()
    agent.read(6, 5)

    def fail(name: str) -> None:
        raise HandlerFailed("not found", 404)

    agent.server.meanwhile = fail
    agent.read(7, 6)
    agent.server.meanwhile = lambda name: None
    agent.read(8, 7)
    assert len(agent.rows) == len({tuple(row[:4]) for row in agent.rows}) > 0


LISTS = b'{"version": "2.10", "x": [' + b"[]," * 6_000_000 + b"[]]}"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (pickle.dumps({"version": "2.10"}, 2), "neither JSON"),
        (gzip.compress(b'{"version": "2.10"}'), "neither JSON"),
        (LISTS, "too large"),
        (LISTS.replace(b"[]", b"{}"), "too large"),
        (b'{"version": "2.10", "entries": [' + b"0," * 3_000_000 + b"0]}", "over 200000"),
        (b'{"version": 2, "x": ' + b"[" * 60_000_000, "too large"),
        (b'{"version": 2, "x": ' + b"[" * 4_000_000, "damaged JSON"),
        (b'{"version": ' + b"9" * 2_000_000 + b"}", "damaged JSON"),
        (b'{"version": "2.10", "entries": [%b]}' % b",".join([ENTRY] * 200_001), "over 200000"),
    ],
    ids=["pickle", "gzip", "lists", "objects", "numbers", "deep", "short", "digits", "many"],
)
def test_a_hostile_answer_costs_little(answer: bytes, why: str) -> None:
    """An answer is JSON of a limited number of values, and is refused before they are made."""
    agent = Agent()
    agent.rank.dump = lambda handler, backend="": answer  # type: ignore[method-assign]
    tracemalloc.start()
    began_s = time.process_time()
    problems = agent.read(3).problems
    assert any(why in problem for problem in problems), problems
    assert time.process_time() - began_s < 10
    assert tracemalloc.get_traced_memory()[1] < 300 << 20
    tracemalloc.stop()


def test_what_is_known_is_not_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A healthy rank is read twice: of the second answer only what is new becomes entries."""
    agent, dumps = Agent(), []

    def parse(data: bytes, **how: Any) -> Dump:
        dumps.append(parse_answer(data, **how))
        return dumps[-1]

    monkeypatch.setattr(recorders, "parse_answer", parse)
    agent.read(6)
    assert not any(dump.skipped for dump in dumps)
    agent.read(7)
    assert any(dump.skipped for dump in dumps)


def test_a_recorder_with_nothing_new() -> None:
    """What is read only at rest was read since: no problem, and the last dump is still given."""
    agent = Agent()
    before = agent.read(3)

    def nothing_new(name: str) -> None:
        if name != NCCL:
            raise NothingNew(name)

    agent.server.meanwhile = nothing_new
    again = agent.read(4)
    assert (again.problems, again.is_busy) == ([], False)
    assert [dump.taken_at_ns for dump in again.dumps.values() if dump.source != NCCL] == [
        dump.taken_at_ns for dump in before.dumps.values() if dump.source != NCCL
    ]


# -- whether an agent may connect to a rank, by what a scripted /proc shows ------------------------


PID = 77


@pytest.fixture
def proc(proc_files: Path) -> Path:
    """Of a machine with plenty of everything, and of one rank."""
    write(proc_files, handles=(900, 1_000_000), available_kb=8_000_000)
    rank = proc_files / str(PID)
    (rank / "fd").mkdir(parents=True)
    (rank / "limits").write_text("Limit  Soft\nMax open files            1024     4096     files\n")
    return proc_files


def write(proc: Path, handles: tuple[int, int], available_kb: int) -> None:
    (proc / "sys/fs").mkdir(parents=True, exist_ok=True)
    (proc / "sys/fs/file-nr").write_text(f"{handles[0]}\t0\t{handles[1]}\n")
    text = f"MemTotal:       64000000 kB\nMemFree: 1 kB\nMemAvailable:   {available_kb} kB\n"
    (proc / "meminfo").write_text(text)


def shortage() -> str:
    return Room(lambda: PID).shortage()


def test_plenty(proc: Path) -> None:
    """Nothing is short; nor is anything known of a rank that is not seen."""
    assert shortage() == ""
    assert Room(lambda: None).shortage() == ""


@pytest.mark.parametrize(
    ("used", "most", "short"),
    [
        (900_000, 1_000_000, False),
        (990_001, 1_000_000, True),
        (900, 1_000, False),
        (901, 1_000, True),
    ],
)
def test_file_handles(proc: Path, used: int, most: int, short: bool) -> None:
    """Ten thousand must be free, of few a tenth."""
    write(proc, (used, most), 8_000_000)
    assert shortage().startswith("the node is short of file handles: ") is short


def test_memory_of_the_machine(proc: Path) -> None:
    """256 MiB must be available."""
    write(proc, (1, 1_000_000), 200_000)
    assert shortage() == "the node is short of memory: 195 of 62500 MiB are available"


def test_descriptors_of_the_rank(proc: Path) -> None:
    """An accepted connection must not take its last one."""
    (proc / str(PID) / "limits").write_text("Max open files            20     4096     files\n")
    for number in range(5):
        (proc / str(PID) / "fd" / str(number)).touch()
    assert shortage() == "it is short of file descriptors: 15 of 20 are free"


@pytest.mark.usefixtures("proc_files")
def test_nothing_that_can_be_read() -> None:
    """A sandbox without these files: the agent connects."""
    assert shortage() == ""


def test_the_listener_of_a_socket_is_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even a connection that is closed immediately would be accepted."""
    absent = str(tmp_path / "absent.sock")
    assert process.listener(absent) is process.Listener.NONE
    monkeypatch.setattr(room, "of_node", lambda: "the node is short")
    assert process.listener(absent) is process.Listener.ELSEWHERE


# -- from the groups of a tap and a recorder to the groups that the service gets -------------------


def declared(*listed: TapGroup) -> tuple[Naming, list[GroupInfo]]:
    """The names of a rank in a world of two, and what its agent declares of its groups."""
    dictionary = Dictionary()
    naming = Naming(dictionary, dictionary.attempt(AttemptKey("trainer", 0), 2))
    naming.replace(listed)
    return naming, [dictionary.groups[number].info for number in naming.all_groups()]


def test_a_group_with_members_of_other_jobs_costs_no_other_group() -> None:
    """A tap lists such a group without members, an older one with numbers beyond the world: the
    rank is in it, its members are unknown, and the other groups are as they are."""
    own = TapGroup("0", (0, 1), "default_pg", "gloo")
    for ranks in ((), (0, 1, 2, 3)):
        _, infos = declared(own, TapGroup("weights", ranks, "sync", "gloo"))
        assert infos == [GroupInfo("0", "default_pg", (0, 1)), GroupInfo("weights", "sync")]


def test_the_recorder_adds_no_members_to_a_group_that_the_tap_lists_without() -> None:
    """The recorder describes it with group ranks; a group that only the recorder shows is learned
    from there."""
    naming, _ = declared(TapGroup("weights", ()))
    naming.learn([GroupInfo("weights", "", (0, 1)), GroupInfo("7", "", (0, 1))])
    known = [naming.groups[name].ranks for name in ("weights", "7")]
    assert known == [(), (0, 1)]
