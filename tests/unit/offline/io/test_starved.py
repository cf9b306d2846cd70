"""What traces say of a rank that has not joined, and what they refute.

Rank 2 is missing in the third collective, which the other ranks have entered 3 ms after `T0`; it
was asked for its dump 60 s after `T0`. All times are in µs since then.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frd.flight.entry import Entry
from frd.model import Finding, Reason
from frd.offline.analysis.analyze import analyze
from frd.offline.io.analysis import IoAnalysis, load_traces
from frd.offline.io.starved import Starved, with_starved
from frd.offline.load.folder import load_dumps
from tests.unit.cli.test_analyze import T0, dumps, entry, hang
from tests.world.io_traces import Call, Writer, write_trace
from tests.world.seeds import ALL

S = 1_000_000
SEEN_AT = 60 * S
DATA, OTHER, LOG = "/data/shard-2.tar", "/data/shard-3.tar", "/logs/train.log"
MAIN, CHILD, SECOND = 102, 202, 203


def dumped(folder: Path, entries: Callable[[int], Sequence[Entry]] = hang) -> Path:
    """As `frd dump` stores them: with the time at which each rank was asked."""
    folder.mkdir()
    files = dumps(folder / "job", entries)
    for path in list(files.iterdir()):
        path.rename(files / path.name.removeprefix("nccl_trace_"))
    meta = folder / "job.meta"
    meta.mkdir()
    for rank in range(4):
        taken = T0 + SEEN_AT * 1_000
        one: dict[str, Any] = {"rank": rank, "world_size": 4, "node": "node1", "boot_id": "b"}
        one |= {"pid": 100 + rank, "clock_offset_s": 0.0, "clock_uncertainty_s": 0.001}
        one |= {"source": "signal", "taken_at_ns": taken, "node_time_ns": taken + 1_000_000}
        (meta / f"rank_{rank}.json").write_text(json.dumps(one))
    summary = {"job": "job", "attempt": 0, "folder": "job", "failed": {}, "stall_after_s": 10}
    (folder / "summary.json").write_text(json.dumps(summary | {"taken_at": "2023-11-14T22:14:20Z"}))
    return folder


def said(folder: Path, traces: Path) -> tuple[Sequence[Finding], IoAnalysis]:
    (trace,) = load_dumps([folder])
    analysis = analyze(trace)
    known = {rank: one.info for rank, one in trace.ranks.items() if one.info is not None}
    io = load_traces([traces], known=known, offsets_ns=analysis.clock_offsets_ns)
    analysis, io = with_starved(analysis, io)
    return analysis.findings, io


def traced(folder: Path, calls: Sequence[Call], children: Sequence[Sequence[Call]] = ()) -> Path:
    """Traces of rank 2 and of its children, whose pids begin at `CHILD`."""
    main = Writer("v2.2", MAIN)
    forks = [Call("fork", 1 + n, 1, ret=CHILD + n, cat="POSIX") for n in range(len(children))]
    rank = main.metadata("CM", "rank", "2")
    write_trace(folder / "main.pfw", [rank, *main.lines([*forks, *calls])])
    for number, some in enumerate(children):
        lines = list(Writer("v2.2", CHILD + number).lines(some))
        write_trace(folder / f"child{number}.pfw", lines)
    return folder


def read(at: int, end: int, file: str = DATA, **fields: Any) -> Call:
    return Call("read", at, end - at, file=file, ret=9, **fields)


def opened(at: int, file: str = DATA, **fields: Any) -> Call:
    return Call("open64", at, 5, file=file, ret=3, **fields)


def span(name: str, cat: str, at: int, end: int, **fields: Any) -> Call:
    return Call(name, at, end - at, cat, args={"step": 7}, **fields)


def fetch(at: int, end: int) -> Call:
    return span("fetch.iter", "dataloader", at, end)


def forward(at: int, end: int) -> Call:
    return span("forward", "compute", at, end)


SEEDS = 300 if ALL else 150
"""Simulated ranks."""
Children = Sequence[Sequence[Call]]


@pytest.fixture
def claim(tmp_path: Path) -> Callable[..., Starved | None]:
    """The claim about rank 2; None if there is none."""

    def claim(calls: Sequence[Call], children: Children = ()) -> Starved | None:
        _, io = said(dumped(tmp_path / "d"), traced(tmp_path / "t", calls, children))
        return next(iter(io.starved), None)

    return claim


Claim = Callable[..., Starved | None]
ACROSS = (2 * S, 80 * S)
"""A call that was in progress when the rank was last seen."""
FETCHING = "while its main thread was waiting for a batch"


# -- what is claimed -------------------------------------------------------------------------------


STARVED: dict[str, tuple[Sequence[Call], Children, str, str]] = {
    "in a read": ([opened(100), read(*ACROSS)], [], "seen", "pid 102 was in read of it for 78 s"),
    "in a fetch while a child reads": (
        [fetch(1 * S, 81 * S)],
        [[opened(100), read(*ACROSS)], [opened(50, OTHER)]],
        "seen",
        "its child pid 202 was in read of it for 78 s",
    ),
    "in a fetch while two children read": (
        [fetch(1 * S, 81 * S)],
        [[read(*ACROSS)], [read(2 * S, 70 * S, OTHER)]],
        "likely",
        "while its main thread was waiting for a batch; calls on 1 other file were in progress",
    ),
    "in a fetch while a child reads and another one makes many short reads": (
        [fetch(1 * S, 81 * S)],
        [[read(*ACROSS)], [read(n * S, n * S + 9, OTHER) for n in range(2, 79)]],
        "likely",
        FETCHING,
    ),
    "in a fetch that lasted long after the child's read": (
        [fetch(1 * S, 200 * S)], [[read(*ACROSS)]], "likely", FETCHING,
    ),
    "in a fetch that began lately while a child reads": (
        [forward(3_000, 45 * S), fetch(45 * S, 81 * S)],
        [[read(2 * S, 70 * S)]],
        "likely",
        FETCHING,
    ),
    "silent while a child reads": (
        [opened(100)], [[read(*ACROSS)]], "likely", "does not show what its main thread was",
    ),
    "silent while a thread writes a checkpoint": (
        [forward(500, 900), Call("write", 2 * S, 78 * S, file=DATA, ret=9, tid=7)],
        [],
        "likely",
        "a thread of pid 102 was in write of it",
    ),
    "silent after an open": (
        [opened(3_000)], [], "likely", "the last call of pid 102 that ended is open64 of it",
    ),
    "silent after a seek": (
        [opened(100), Call("lseek", 3_000, 5, file=DATA)], [], "likely", "ended is lseek of it",
    ),
    "silent while a child is silent after an open": (
        [forward(3_000, 9_000)], [[opened(9_500)]], "likely", "its child pid 202 that ended",
    ),
    "silent after a read that took nearly the whole wait": (
        [read(3_000, 59 * S), opened(2_900)], [], "likely", "that ended is read of it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STARVED)
def test_a_rank_that_waited_is_starved(claim: Claim, name: str) -> None:
    """`seen` only if the main thread was in the call or in a fetch which ended after it."""
    calls, children, certainty, says = STARVED[name]
    found = claim(calls, children)
    assert found is not None
    assert (found.path, found.certainty) == (DATA, certainty)
    assert says in found.text
    assert found.text.startswith("probably ") == (certainty == "likely")


# -- what is refuted -------------------------------------------------------------------------------

IN_FORWARD = forward(1 * S, 90 * S)
OPENED_AND_READ = [opened(3_000), read(4_000, 5_000)]
REFUTED: dict[str, tuple[Sequence[Call], Children]] = {
    # The last call that ended is on a file that is open.
    "the main process fetched after the child's last call": (
        [fetch(30 * S, 31 * S)], [OPENED_AND_READ],
    ),
    "the main process computed after the child's last call": (
        [forward(10 * S, 11 * S)], [OPENED_AND_READ],
    ),
    "the rank entered a collective after the child's last call": (
        [], [[opened(100), read(500, 900)]],
    ),
    "the program began something else after the open": (
        [opened(3_000), span("save", "checkpoint", 5_000, 6_000)], [],
    ),
    "the file was closed later": ([opened(3_000), Call("close", 61 * S, 5, file=DATA)], []),
    "the main process computed later": ([opened(3_000), forward(61 * S, 70 * S)], []),
    "the rank was reading until lately": ([opened(3_000), read(59 * S, 59 * S + 9_000)], []),
    "the last call was a write to a log": (
        [opened(100, LOG), Call("write", 3_000, 5, file=LOG, ret=9)], [],
    ),
    "the last call was none that a read follows": (
        [opened(100), Call("ftruncate", 3_000, 5, file=DATA)], [],
    ),
    "the file is closed": ([opened(100), Call("close", 3_000, 5, file=DATA)], []),
    "two children have different files open": (
        [forward(10 * S, 11 * S)], [[opened(12 * S)], [opened(13 * S, OTHER)]],
    ),
    "another child has been silent for longer, after an open of another file": (
        [forward(10 * S, 11 * S)], [[opened(12 * S)], [opened(9 * S, OTHER)]],
    ),
    "the child may be idle, because its last read has ended": (
        [forward(10 * S, 11 * S)], [[opened(12 * S), read(13 * S, 14 * S)]],
    ),
    "the main process has got its batch": ([fetch(10 * S, 11 * S)], [[opened(12 * S)]]),
    "two threads have different files open": (
        [opened(3_000, DATA, tid=7), opened(3_100, OTHER, tid=8)], [],
    ),
    # Something was read when the rank was last seen.
    "it computes while a thread reads": ([IN_FORWARD, read(*ACROSS, tid=7)], []),
    "it computes while a child reads": ([IN_FORWARD], [[read(*ACROSS)]]),
    "it sleeps while a child reads": ([Call("sleep", 1 * S, 90 * S)], [[read(*ACROSS)]]),
    "its fetch ended before the child's read": ([fetch(1 * S, 70 * S)], [[read(*ACROSS)]]),
    "a child writes while it fetches": (
        [fetch(1 * S, 90 * S)], [[Call("write", 2 * S, 78 * S, file=DATA, ret=9)]],
    ),
    "it computed until lately": ([forward(3_000, 50 * S)], [[read(*ACROSS)]]),
    "it computed before the child's read ended": ([forward(70 * S, 90 * S)], [[read(*ACROSS)]]),
    "it reads something that the trace does not name": (
        [opened(100), Call("read", *ACROSS)], [[read(*ACROSS)]],
    ),
    "the read took 80 ms": ([opened(100), read(59_950_000, 60_030_000)], []),
    "the read took a tenth of the wait": ([opened(100), read(58 * S, 62 * S)], []),
    "the read began after the rank was seen": ([read(61 * S, 80 * S)], []),
    "two children read": ([], [[read(*ACROSS)], [read(2 * S, 70 * S, OTHER)]]),
    "a child reads, and another one is silent after an open": (
        [], [[read(*ACROSS)], [opened(3_000, OTHER)]],
    ),
    "a child reads, and the main process is silent after a read": (
        [opened(100, OTHER), read(2_500, 2_900, OTHER)], [[opened(150), read(*ACROSS)]],
    ),
    "a child reads, and the main process has got its batch": (
        [fetch(3_000, 4_000)], [[read(*ACROSS)]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUTED)
def test_what_did_not_keep_the_rank_is_no_cause(claim: Claim, name: str) -> None:
    """A file is open, or was being read when the rank was last seen, but the rank went on
    afterwards, or did not wait for that."""
    assert claim(*REFUTED[name]) is None


@pytest.mark.parametrize("reason", [Reason.MISMATCH, Reason.IN_COLLECTIVE_ALONE])
def test_only_a_rank_that_has_not_joined_can_be_starved(tmp_path: Path, reason: Reason) -> None:
    """Rank 2 has called another op, or is inside of an op that the others have completed."""

    def entries(rank: int) -> Sequence[Entry]:
        if reason is Reason.MISMATCH:
            op = "nccl:broadcast" if rank == 2 else "nccl:all_reduce"
            return [entry(1), entry(2), entry(3, done=False, profiling_name=op)]
        last = [] if rank == 2 else [entry(3, done=False)]
        return [entry(1), entry(2, done=rank != 2), *last]

    traces = traced(tmp_path / "t", [opened(100, LOG), read(*ACROSS, LOG)])
    findings, io = said(dumped(tmp_path / "d", entries), traces)
    assert {one.reason for one in findings[0].suspects if one.rank == 2} == {reason}
    assert io.starved == ()


def test_a_rank_that_does_not_answer_is_at_most_likely_to_be_starved(tmp_path: Path) -> None:
    """It may be dead: a read that was in progress is no proof of what it does now."""
    (trace,) = load_dumps([dumped(tmp_path / "d")])
    analysis = analyze(trace)
    findings = [
        replace(one, suspects=tuple(replace(s, reason=Reason.UNREACHABLE) for s in one.suspects))
        for one in analysis.findings
    ]
    io = load_traces([traced(tmp_path / "t", [opened(100), read(*ACROSS)])])
    _, io = with_starved(replace(analysis, findings=findings), io)
    assert [(one.path, one.certainty) for one in io.starved] == [(DATA, "likely")]


# -- a simulated rank ------------------------------------------------------------------------------


class Simulated:
    """A training loop whose children read ahead, until the traces end: what it did and waited for.

    Calls that did not return before the end have no line.
    """

    def __init__(self, seed: int) -> None:
        self._dice = dice = random.Random(seed)
        self._scale_s = dice.choice([0.5, 3, 10, 30])
        self._end = dice.choice([SEEN_AT + 1, 70 * S, 100 * S, 200 * S])
        self.waited_for: list[tuple[int, int, str]] = []
        self.main: list[Call] = []
        self.children: list[list[Call]] = [[] for _ in range(dice.randrange(1, 4))]
        at, step = 3_000, 0
        ready = [self._read_ahead(number, at) for number in range(len(self.children))]
        while at < self._end:
            number = step % len(ready)
            file, end = ready[number]
            begin, at = at, max(at, end) + 5
            self.main.append(fetch(begin, at))
            self.waited_for.append((begin, at, file))
            ready[number] = self._read_ahead(number, max(end + 10, begin))
            begin, at = at, at + self._length()
            self.main.append(forward(begin, at))
            if dice.random() < 0.3:
                end = at + self._length()
                self.main.append(Call("write", at, end - at, file=LOG, ret=9, tid=7))
            at, step = at + dice.choice([0, 0, 3 * self._length()]), step + 1  # it does not say why

    def _length(self) -> int:
        seconds = self._dice.expovariate(1) * self._scale_s * self._dice.choice([0.01, 1, 1, 10])
        return int(max(10, seconds * S))

    def _read_ahead(self, number: int, at: int) -> tuple[str, int]:
        file, end = f"/data/{number}-{len(self.children[number])}", at + 10 + self._length()
        self.children[number] += [opened(at, file), read(at + 6, end, file)]
        if self._dice.random() < 0.3:
            self.children[number].append(Call("close", end + 1, 2, file=file))
        return file, end

    def written(self, calls: Sequence[Call]) -> list[Call]:
        return [call for call in calls if call.at + call.dur <= self._end]


def test_what_is_seen_is_what_a_simulated_rank_waited_for(tmp_path: Path) -> None:
    """Calls of random lengths, some longer than the traces: `likely` is right in 9 of 10 cases."""
    (trace,) = load_dumps([dumped(tmp_path / "d")])
    analysis = analyze(trace)
    right, wrong = Counter[str](), Counter[str]()
    for seed in range(SEEDS):
        job = Simulated(seed)
        children = [job.written(calls) for calls in job.children]
        folder = traced(tmp_path / f"{seed}", job.written(job.main), children)
        _, io = with_starved(analysis, load_traces([folder]))
        truth = [file for begin, end, file in job.waited_for if begin <= SEEN_AT < end]
        for claim in io.starved:
            (right if [claim.path] == truth else wrong)[claim.certainty] += 1
    assert wrong["seen"] == 0
    assert wrong["likely"] * 9 <= right["likely"]
    assert min(right["seen"], right["likely"]) > 5


# -- other runs, and hashes of two files -----------------------------------------------------------


@pytest.mark.parametrize("pid", [MAIN, 77])
def test_the_trace_of_another_run_is_left_out(tmp_path: Path, pid: int) -> None:
    """A trace of yesterday, of a process with the same id or of the same rank: a warning."""
    traces = traced(tmp_path / "t", [opened(3_000), Call("close", 3_100, 5, file=DATA)])
    writer = Writer("v2.2", pid)
    lines = [writer.metadata("CM", "rank", "2"), *writer.lines([opened(-86_400 * S, OTHER)])]
    old = write_trace(traces / "old.pfw", lines)
    _, io = said(dumped(tmp_path / "d"), traces)
    assert io.starved == ()
    assert any(warning.startswith(f"{old}: ends before the first") for warning in io.warnings)


def test_a_later_attempt_does_not_refute(tmp_path: Path) -> None:
    """The rank was started again after it had been seen in a read, and computes."""
    traces = traced(tmp_path / "t", [opened(3_000)])
    writer = Writer("v2.2", 77)
    begin = Call("start", 90 * S, 0, "dftracer")
    lines = [writer.metadata("CM", "rank", "2"), *writer.lines([begin, forward(91 * S, 95 * S)])]
    write_trace(traces / "new.pfw", lines)
    _, io = said(dumped(tmp_path / "d"), traces)
    assert [(one.path, one.pid) for one in io.starved] == [(DATA, MAIN)]


def test_a_hash_of_two_files_is_never_seen(tmp_path: Path) -> None:
    """A v1 trace that defines one hash twice: both files are named, and it is likely only."""
    writer = Writer("v1", MAIN)
    hashed = {"fhash": 5}
    lines = [
        "[",
        writer.metadata("HH", "node1", writer._hash("node1")),
        writer.metadata("CM", "rank", "2"),
        writer.metadata("FH", DATA, 5),
        writer.metadata("FH", OTHER, 5),
        writer.call(1, Call("read", 2 * S, 78 * S, ret=9, args=hashed)),
    ]
    _, io = said(dumped(tmp_path / "d"), write_trace(tmp_path / "t.pfw", lines))
    (found,) = io.starved
    assert (found.path, found.certainty) == (f"{DATA} or {OTHER}", "likely")


def test_without_the_time_of_the_dump_a_rank_that_went_on_is_not_starved(tmp_path: Path) -> None:
    """The dumps may have been taken when the rank had read, and computed again."""
    traces = traced(tmp_path / "t", [opened(100), read(1_000, 6 * S), forward(7 * S, 50 * S)])
    _, io = said(dumps(tmp_path / "d", hang), traces)
    assert io.starved == ()


@pytest.mark.parametrize("dialect", ["v0", "v2.2"])
def test_a_thread_that_may_not_be_the_main_one_is_likely(tmp_path: Path, dialect: str) -> None:
    """The trace has one thread, whose id is not that of the process."""
    writer = Writer(dialect, MAIN)
    lines = list(writer.lines([opened(100, tid=7), read(*ACROSS, tid=7)]))
    _, io = said(dumped(tmp_path / "d"), write_trace(tmp_path / "t.pfw", lines))
    assert [(one.path, one.certainty) for one in io.starved] == [(DATA, "likely")]
    assert "a thread of pid 102 was in read of it" in io.starved[0].text
