"""Sums of traces of every dialect, against a reader that uses no code of frd."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from frd.model import RankInfo
from frd.offline.io import discovery
from frd.offline.io.analysis import IoAnalysis, RankIo, load_traces
from tests.world.io_traces import DIALECTS, T0_US, Call, Naive, Writer, naive, training, write_trace

TRACES = Path(__file__).parents[5] / "shared" / "traces" / "dftracer"


def only(io: IoAnalysis) -> RankIo:
    (one,) = io.ranks
    return one


def check(one: RankIo, io: IoAnalysis, *processes: Naive) -> None:
    """All sums of one rank are those of its processes, read naively."""
    use = one.usage
    busy, computed, fetched = (
        set().union(*(getattr(p, name) for p in processes)) for name in ("io", "compute", "fetch")
    )
    assert use.events == sum(p.events for p in processes)
    assert use.io_ns == 1_000 * len(busy)
    assert use.compute_ns == 1_000 * len(computed)
    assert use.fetch_ns == 1_000 * len(fetched)
    assert use.unoverlapped_ns == 1_000 * len(busy - computed)
    assert use.bytes_read == sum(p.bytes_read for p in processes)
    assert use.bytes_written == sum(p.bytes_written for p in processes)
    files = {io.path(f): (f.io_ns // 1_000, f.nbytes, f.ops) for f in use.files}
    wanted: dict[str, list[int]] = {}
    for process in processes:
        for path, sums in process.by_file.items():
            old = wanted.get(path, [0, 0, 0])
            wanted[path] = [a + b for a, b in zip(old, sums, strict=True)]
    assert files == {path: tuple(sums) for path, sums in wanted.items()}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("packed", ["", ".gz", ".gz of members"])
def test_sums_are_those_of_a_naive_reader(tmp_path: Path, dialect: str, packed: str) -> None:
    """Three random trainings: I/O in several threads, partly while the rank computes."""
    for seed in range(3):
        calls = training(seed)
        lines = list(Writer(dialect, pid=7).lines(calls))
        path = tmp_path / f"{seed}" / f"t.pfw{'.gz' if packed else ''}"
        write_trace(path, lines, lines_a_member=13 if packed.endswith("members") else 0)
        io = load_traces([path.parent])
        assert io.broken_lines == 0
        assert not io.warnings
        check(only(io), io, naive([path])[7])


@pytest.mark.parametrize("sample", ["v0_dlio", "v1_cm1"])
@pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces (../shared/traces) are not here")
def test_sums_of_public_samples(sample: str) -> None:
    """A v0 trace of DLIO and a v1 trace of CM1, recorded by others on real machines."""
    paths = sorted((TRACES / sample).glob("*.pfw.gz"))
    io = load_traces(paths)
    (found,) = naive(paths).values()
    if sample == "v1_cm1":  # its hashes have 16 bits: some files share one
        found.by_file.clear()
        use = only(io).usage
        assert (use.io_ns, use.events) == (1_000 * len(found.io), found.events)
        assert use.bytes_written == found.bytes_written > 0
        assert (only(io).rank, set(only(io).processes.values())) == (0, {"given by MPI"})
        (shared,) = [path for file in use.files if "jf.0/0/23" in (path := io.path(file))]
        assert shared.startswith("cm1out_000000_000009_u.dat or /var/tmp/")
    else:
        check(only(io), io, found)
        assert only(io).rank is None
        assert next(iter(only(io).processes)).label == "pid 1338896 on corona237"


def test_a_step_has_the_time_between_its_first_span_and_the_next_one(tmp_path: Path) -> None:
    """Two steps: what a naive reader finds in their windows."""
    calls = [
        Call("forward", 100, 50, "compute", args={"epoch": 1, "step": 4}),
        Call("fetch.iter", 160, 30, "dataloader"),
        Call("read", 120, 60, file="/d", ret=100),
        Call("write", 190, 20, file="/e", ret=7),
        Call("forward", 200, 40, "compute", args={"epoch": 1, "step": 5}),
        Call("read", 230, 90, file="/d", ret=11),
    ]
    path = write_trace(tmp_path / "t.pfw", list(Writer("v2.2", 7).lines(calls)))
    steps = [
        (s.epoch, s.step, s.begin_ns // 1_000 - T0_US)
        + tuple(n // 1_000 for n in (s.end_ns - s.begin_ns, s.fetch_ns, s.io_ns, s.compute_ns))
        + (s.unoverlapped_ns // 1_000, s.bytes_read, s.bytes_written)
        for s in only(load_traces([path])).usage.steps
    ]
    assert steps == [(1, 4, 100, 100, 30, 70, 50, 40, 100, 7), (1, 5, 200, 40, 0, 20, 40, 0, 11, 0)]


@pytest.mark.parametrize("main_has_steps", [True, False])
def test_a_worker_ahead_of_its_rank_changes_no_step(tmp_path: Path, main_has_steps: bool) -> None:
    """A loader's worker, a child of a child, logs the steps that it prepares, all of them before
    the first one is trained. Steps are the main process', or the worker's if that has none."""
    main, middle, worker = (Writer("v2.2", pid) for pid in (7, 8, 9))
    forward = [
        Call("forward", 1_000 + 100 * n, 90, "compute", args={"epoch": 0, "step": n})
        for n in range(5)
    ]
    ahead = [Call("item", 10 * n, 9, "data", args={"epoch": 0, "step": n}) for n in range(5)]
    write_trace(
        tmp_path / "a.pfw",
        [
            main.metadata("CM", "rank", "0"),
            *main.lines([Call("fork", 0, 1, ret=8), *(forward if main_has_steps else [])]),
        ],
    )
    write_trace(tmp_path / "b.pfw", list(middle.lines([Call("fork", 2, 1, ret=9)])))
    write_trace(tmp_path / "c.pfw", list(worker.lines(ahead)))
    steps = [
        (s.step, s.begin_ns // 1_000 - T0_US, s.compute_ns)
        for s in only(load_traces([tmp_path])).usage.steps
    ]
    begin, width, compute = (1_000, 100, 90_000) if main_has_steps else (0, 10, 0)
    assert steps == [(n, begin + n * width, compute) for n in range(5)]


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_pieces_of_a_file_add_up(
    tmp_path: Path, packed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut anywhere, in the middle of lines too, a file gives the sums of the whole."""
    lines = list(Writer("v2.2", pid=7).lines(training(5, steps=100)))
    path = write_trace(tmp_path / f"t.pfw{packed}", lines, lines_a_member=11 if packed else 0)
    whole = naive([path])[7]
    monkeypatch.setattr(discovery, "_CHUNK", 1_000)
    for size in (997, 4_096, 20_011):
        monkeypatch.setattr(discovery, "PLAIN_PIECE", size)
        monkeypatch.setattr(discovery, "PACKED_PIECE", size // 4)
        io = load_traces([path])
        assert len(io.facts) > 3
        check(only(io), io, whole)
        assert not io.warnings


def test_children_are_part_of_their_rank(tmp_path: Path) -> None:
    """A worker's I/O is the rank's; what overlaps the main process' compute is overlapped. Its
    hashes are defined in the parent's trace only."""
    main, child = Writer("v2.2", 7), Writer("v2.2", 8)
    reads = training(2)
    parent = [
        *main.lines(training(1)),
        main.metadata("CM", "rank", "3"),
        main.call(999, Call("fork", 10, 5, ret=8)),
    ]
    for call in reads:
        parent += [main.metadata("FH", call.file, main._hash(call.file))] if call.file else []
    paths = [
        write_trace(tmp_path / "a.pfw", parent),
        write_trace(tmp_path / "b.pfw", list(child.lines(reads, define=False))),
    ]
    io = load_traces([tmp_path])
    sums = naive(paths)
    check(only(io), io, sums[7], sums[8])
    evidence = {p.pid: words for p, words in only(io).processes.items()}
    assert evidence == {7: "logged by the program", 8: "child of pid 7 on node1"}


def test_the_order_of_evidence(tmp_path: Path) -> None:
    """MPI's rank, then the program's, then the dump folder's, then the file name, as a guess."""
    calls = [Call("read", 1, 1, file="/d", ret=1)]

    def trace(name: str, pid: int, *facts: tuple[str, str, str], host: str = "n1") -> None:
        writer = Writer("v2.0", pid, host)
        lines = [*writer.lines(calls), *(writer.metadata(*fact) for fact in facts)]
        write_trace(tmp_path / name, lines)

    trace("rank9-a.pfw", 1, ("CM", "rank", "8"), ("PR", "rank", "0"))
    trace("rank9-b.pfw", 2, ("CM", "rank", "1"))
    trace("rank9-c.pfw", 3, host="n1.cluster")
    trace("rank9-d.pfw", 4, ("process_name", "Rank 4", "process_name"))
    trace("job-rank5-e.pfw", 5)
    trace("f.pfw", 6)
    known = {2: RankInfo(2, 6, "n1", "boot", 3), 1: RankInfo(1, 6, "n1", "boot", 99)}
    io = load_traces([tmp_path], known=known)
    found = {p.pid: (one.rank, why) for one in io.ranks for p, why in one.processes.items()}
    assert found == {
        1: (0, "given by MPI"),
        2: (1, "logged by the program"),
        3: (2, "host and pid of the rank's dump"),
        4: (4, "given by MPI"),
        5: (5, "guessed from the file name"),
        6: (None, "no evidence"),
    }
    assert any("rank 8" in warning for warning in io.warnings)


def test_offsets_and_units_make_one_clock(tmp_path: Path) -> None:
    """A trace in ms, of a node whose clock is 2 s ahead."""
    writer = Writer("v2.2", 7)
    lines = [
        writer.metadata("CM", "time_metric", "MS"),
        writer.metadata("CM", "rank", "1"),
        writer.call(1, Call("read", 0, 1, file="/d", ret=1)).replace(
            str(T0_US), str(T0_US // 1_000)
        ),
    ]
    path = write_trace(tmp_path / "t.pfw", lines)
    use = only(load_traces([path], offsets_ns={1: -2_000_000_000})).usage
    assert (use.first_ns, use.io_ns) == (T0_US * 1_000 - 2_000_000_000, 1_000_000)


def test_many_random_files_one_answer(tmp_path: Path) -> None:
    """Whatever the order of lines, threads of a rank give the same sums."""
    calls = training(9)
    lines = list(Writer("v2.0", 7).lines(calls))
    body = lines[1:]
    random.Random(1).shuffle(body)
    path = write_trace(tmp_path / "t.pfw", body)
    io = load_traces([path])
    check(only(io), io, naive([path])[7])


# -- identities ------------------------------------------------------------------------------------


def one_read(folder: Path, host: str, known: Mapping[int, RankInfo]) -> IoAnalysis:
    """What a trace of process 7 of that host is taken for."""
    lines = list(Writer("v2.2", 7, host).lines([Call("read", 1, 1, file="/d", ret=1)]))
    return load_traces([write_trace(folder / "t.pfw", lines)], known=known)


KNOWN = {
    rank: RankInfo(rank, 6, node, "boot", 7)
    for rank, node in enumerate(("n1", "n1.b", "10.0.0.1", "10.0.0.2", "n4.a", "n5"))
}


@pytest.mark.parametrize(
    ("host", "rank"),
    [
        ("n1", 0),
        ("n1.b", 1),
        ("n1.c", None),
        ("10.0.0.2", 3),
        ("10.0.0.3", None),
        ("n4", 4),
        ("n4.a", 4),
        ("n4.b", None),
        ("n5.a", 5),
    ],
)
def test_a_host_is_the_same_only_if_its_name_can_be_no_other(
    host: str, rank: int | None, tmp_path: Path
) -> None:
    """Exact names first; neither a short name of two nodes nor another domain is a match."""
    assert only(one_read(tmp_path, host, KNOWN)).rank == rank


def test_two_processes_with_one_host_and_pid_match_no_trace(tmp_path: Path) -> None:
    """Ranks in two containers of a node that have the same process id."""
    known = {rank: RankInfo(rank, 2, "n1", "boot", 7) for rank in range(2)}
    assert only(one_read(tmp_path, "n1", known)).rank is None


def test_a_trace_of_two_hosts_is_reported(tmp_path: Path) -> None:
    """One file has the traces of two hosts, which are not separated: a warning says so."""
    calls = [Call("read", 1, 1, file="/d", ret=1)]
    lines = [line for host in ("n1", "n2") for line in Writer("v2.2", 7, host).lines(calls)]
    path = write_trace(tmp_path / "all.pfw", lines)
    (warning,) = load_traces([path]).warnings
    assert warning.startswith(f"{path}: has records of 2 hosts (n1, n2)")


def v1_trace(path: Path, pid: int, files: Mapping[str, int], *lines: str) -> Path:
    """A v1 trace that defines some files, with calls that name them by number."""
    writer = Writer("v1", pid)
    host = writer.metadata("HH", "node1", writer._hash("node1"))
    defined = [writer.metadata("FH", name, number) for name, number in files.items()]
    return write_trace(path, ["[", host, *defined, *lines])


def v1_read(pid: int, number: int, **fields: int) -> str:
    return Writer("v1", pid).call(1, Call("read", 1, 9, args={"fhash": number, **fields}, ret=3))


def test_a_hash_of_two_files_in_one_trace_names_both(tmp_path: Path) -> None:
    """v1 has hashes of 16 bits: whether a call was on one file or the other is not recorded."""
    files = dict.fromkeys(("/data/a", "/data/b"), 5)
    path = v1_trace(tmp_path / "t.pfw", 7, files, v1_read(7, 5))
    io = load_traces([path])
    assert [io.path(file) for file in only(io).usage.files] == ["/data/a or /data/b"]


def test_a_hash_that_another_job_defines_differently_is_the_parents(tmp_path: Path) -> None:
    """The forked child defines none; the trace of another process, which is read first, does."""
    v1_trace(tmp_path / "a.pfw", 300, {"/data/other": 5}, v1_read(300, 5))
    fork = Writer("v1", 102).call(2, Call("fork", 1, 5, ret=202))
    v1_trace(tmp_path / "m.pfw", 102, {"/data/right": 5}, v1_read(102, 5), fork)
    lines = [v1_read(202, 5)]
    v1_trace(tmp_path / "w.pfw", 202, {}, *lines)
    v1_trace(tmp_path / "x.pfw", 400, {}, *[v1_read(400, 5)])
    io = load_traces([tmp_path])
    found = {
        process.pid: [io.path(file) for file in one.usage.files]
        for one in io.ranks
        for process in one.processes
    }
    assert found == {
        102: ["/data/right"],
        202: ["/data/right"],
        300: ["/data/other"],
        400: ["/data/other or /data/right"],
    }


def test_hashes_of_hosts_and_of_files_are_not_compared(tmp_path: Path) -> None:
    """A host and a file whose v1 hashes are equal."""
    writer = Writer("v1", 9)
    number = writer._hash("node1")
    path = v1_trace(tmp_path / "t.pfw", 9, {"/data/x": int(number)}, v1_read(9, int(number)))
    io = load_traces([path])
    assert next(iter(only(io).processes)).label == "pid 9 on node1"
    assert [io.path(file) for file in only(io).usage.files] == ["/data/x"]
