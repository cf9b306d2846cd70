"""A folder of dumps, whatever its files are called and whatever else it holds, is one trace."""

from __future__ import annotations

import errno
import json
import os
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from frd.errors import DumpError
from frd.flight.trace import Trace
from frd.model import Activity
from frd.offline.analysis.analyze import analyze
from frd.offline.load.folder import MAX_WARNINGS_A_FILE, load_trace
from tests.world.dump_files import T0, as_gzip, as_json, as_torch, document, entry

WORLD = range(16)


def rows() -> list[dict[str, Any]]:
    return [entry(at) for at in range(3)]


def write(folder: Path, name: str, data: bytes | None = None) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(as_torch(document(rows(), WORLD)) if data is None else data)
    return path


def names(trace: Trace) -> dict[int, str]:
    return {rank: Path(of.source).name for rank, of in trace.ranks.items()}


# -- which file is whose ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern",
    ["_dump_{}", "nccl_trace_rank_{}", "{}", "rank{}.json", "fr-2026-11-20-{}.pkl.gz", "a 1 b{}"],
)
def test_the_prefix_is_inferred(tmp_path: Path, pattern: str) -> None:
    """Files are named as people name them: the number at the end is the rank."""
    for rank in (0, 7, 12):
        write(tmp_path, pattern.format(rank))
    trace = load_trace(tmp_path)
    assert names(trace) == {rank: pattern.format(rank) for rank in (0, 7, 12)}
    assert trace.warnings == ()
    assert trace.key.job == tmp_path.name


def test_every_encoding_and_version_in_one_folder(tmp_path: Path) -> None:
    """Ranks may have dumped in other formats and versions; all of them count."""
    content = document(rows(), ranks=range(4))
    write(tmp_path, "d_0", as_torch(content))
    write(tmp_path, "d_1.json", as_json(content | {"version": "2.7"}))
    write(tmp_path, "d_2.gz", as_gzip(content | {"version": "2.99"}))
    write(tmp_path, "d_3", pickle.dumps(content, 4))
    trace = load_trace(tmp_path)
    assert [trace.ranks[rank].version for rank in range(4)] == ["2.10", "2.7", "2.99", "2.10"]
    assert len(trace.groups) == len(trace.names) == len(trace.signatures) == 1
    assert trace.world_size == 4
    assert all(of.seq.tolist() == [1, 2, 3] for of in trace.ranks.values())
    assert len(trace.stacks) == 1
    assert trace.ranks[1].stack.tolist() == [-1, -1, -1]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """Logs and cores next to the dumps are no dumps, however many there are."""
    for rank in range(3):
        write(tmp_path, f"dump_{rank}")
    for at in range(9):
        write(tmp_path, f"worker_{at}", b"Traceback (most recent call last):\n")
    write(tmp_path, "README.md", b"hello")
    trace = load_trace(tmp_path)
    assert names(trace) == {0: "dump_0", 1: "dump_1", 2: "dump_2"}
    (warning,) = trace.warnings
    assert "9 files named 'worker_*'" in warning
    assert "--prefix" in warning


def test_a_prefix_chooses(tmp_path: Path) -> None:
    """Of two recorders' dumps in one folder the named ones are read."""
    for rank in range(3):
        write(tmp_path, f"nccl_{rank}")
    write(tmp_path, "job_gloo_0")
    assert names(load_trace(tmp_path, prefix="gloo_")) == {0: "job_gloo_0"}
    with pytest.raises(DumpError, match=r"'mpi_'.*leave out --prefix"):
        load_trace(tmp_path, prefix="mpi_")


def test_older_dumps_of_all_ranks_are_not_mixed_in(tmp_path: Path) -> None:
    """A tree of three runs: the newest is taken whole, ranks of the others do not fill it up."""
    for run, (age, ranks) in enumerate(((2, range(8)), (1, range(4)), (3, range(6)))):
        for rank in ranks:
            path = write(tmp_path, f"runs/{run}/host{rank // 2}/dump_{rank}")
            os.utime(path, ns=(T0, T0 - age * 10**9))
    trace = load_trace(tmp_path)
    assert list(trace.ranks) == [0, 1, 2, 3]
    assert trace.folder == str(tmp_path / "runs" / "1")
    assert len(trace.warnings) == 2
    assert "runs/0: dumps of ranks 0-7 again: left out, those in " in trace.warnings[0]


def test_a_rank_that_moved_to_another_host_costs_no_host(tmp_path: Path) -> None:
    """Rank 3 was restarted elsewhere: its newer dump counts, its old host's others too."""
    for host, ranks in enumerate(((0, 1, 2, 3), (3, 4, 5, 6))):
        for rank in ranks:
            path = write(tmp_path, f"host{host}/dump_{rank}")
            os.utime(path, ns=(T0, T0 + host))
    trace = load_trace(tmp_path)
    assert list(trace.ranks) == list(range(7))
    assert trace.ranks[3].source == str(tmp_path / "host1" / "dump_3")
    (warning,) = trace.warnings
    assert "rank 3 again" in warning


def test_numbered_files_of_other_kinds_in_a_tree(tmp_path: Path) -> None:
    """Hundreds of JSON files with numbers do not outvote two dumps."""
    for rank in range(2):
        write(tmp_path, f"deep/run/dump_{rank}")
    for at in range(40):
        write(tmp_path, f"site/page-{at}.json", b'{"title": "home"}')
    trace = load_trace(tmp_path)
    assert names(trace) == {0: "dump_0", 1: "dump_1"}
    assert trace.folder == str(tmp_path / "deep" / "run")


def test_only_the_ranks_asked_for(tmp_path: Path) -> None:
    """Files of ranks that were not requested are not opened."""
    for rank in range(4):
        write(tmp_path, f"dump_{rank}", None if rank % 2 else b"broken")
    assert list(load_trace(tmp_path, ranks=[1, 3, 9]).ranks) == [1, 3]
    with pytest.raises(DumpError, match="--ranks"):
        load_trace(tmp_path, ranks=[9])


# -- what cannot be analyzed -----------------------------------------------------------------------


def test_nothing_there(tmp_path: Path) -> None:
    """A folder that is absent, empty, or has no numbered file: an error that says what to name."""
    with pytest.raises(DumpError, match=r"absent: no such folder: name the folder"):
        load_trace(tmp_path / "absent")
    with pytest.raises(DumpError, match=r"no file with a rank in its name"):
        load_trace(tmp_path)
    write(tmp_path, "README.md")
    with pytest.raises(DumpError, match=r"no file with a rank in its name"):
        load_trace(tmp_path)


def test_a_single_file(tmp_path: Path) -> None:
    """One dump is looked at as the rank of its name, with the advice to name the folder."""
    path = write(tmp_path, "dump_5")
    trace = load_trace(path)
    assert list(trace.ranks) == [5]
    assert "name its folder" in trace.warnings[0]
    with pytest.raises(DumpError, match="neither JSON nor a pickle"):
        load_trace(write(tmp_path, "notes.txt", b"hello"))


BAD = {
    "empty": b"",
    "foreign": b"\x7fELF",
    "truncated": as_torch(document(rows()))[:-40],
    "no dump": b"[1, 2]",
    "version": as_json(document(rows(), version="3.0")),
    "gzip": as_gzip(document(rows()))[:-30],
}


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in BAD.items()])
def test_a_bad_file_is_a_warning(tmp_path: Path, data: bytes) -> None:
    """The others are read; the warning names the file. When all are bad that is an error."""
    bad = write(tmp_path, "dump_0", data)
    with pytest.raises(DumpError, match=str(bad)):
        load_trace(tmp_path)
    write(tmp_path, "dump_1")
    trace = load_trace(tmp_path)
    assert list(trace.ranks) == [1]
    (warning,) = trace.warnings
    assert warning.startswith(f"{bad}: ")


def test_many_warnings_of_one_file_are_few(tmp_path: Path) -> None:
    """A file of nothing but bad entries does not bury the warnings of others."""
    write(tmp_path, "dump_0", as_torch(document([{"record_id": -1}] * 500)))
    trace = load_trace(tmp_path)
    assert len(trace.ranks[0]) == 0
    assert len(trace.warnings) == MAX_WARNINGS_A_FILE + 2
    assert all(str(tmp_path / "dump_0") in warning for warning in trace.warnings)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe that torch listens on is neither opened for reading nor written to."""
    os.mkfifo(tmp_path / "dump_0")
    write(tmp_path, "dump_1")
    (warning,) = load_trace(tmp_path).warnings
    assert "no regular file" in warning


def test_a_tree_with_pipes_and_nothing_to_read(tmp_path: Path) -> None:
    """Numbered pipes and JSON of all kinds: one error that says what to name."""
    for at in range(3):
        os.mkfifo(tmp_path / f"pipe{at}")
        write(tmp_path, f"site/page-{at}.json", b'{"title": "home"}')
    with pytest.raises(DumpError, match=r"2 more files.*: name the folder that holds the dumps"):
        load_trace(tmp_path)


# -- groups ----------------------------------------------------------------------------------------


def test_groups_differ_by_their_ranks(tmp_path: Path) -> None:
    """Disjoint groups may have one name; they are two groups."""
    for rank in range(4):
        first = rank // 2 * 2
        write(tmp_path, f"d{rank}", as_torch(document(rows(), ranks=(first, first + 1))))
    trace = load_trace(tmp_path)
    assert [info.ranks for info in trace.groups] == [(0, 1), (2, 3)]
    assert [int(of.group[0]) for of in trace.ranks.values()] == [0, 0, 1, 1]


def test_members_that_only_others_tell(tmp_path: Path) -> None:
    """A rank that never made its communicator gets the members from a peer's dump."""
    write(tmp_path, "d0", as_torch(document(rows(), ranks=(0, 1))))
    write(tmp_path, "d1", as_torch(document(rows(), pg_config={})))
    write(tmp_path, "d2", as_torch(document(rows(), pg_config={})))
    trace = load_trace(tmp_path)
    of = {rank: trace.groups[int(columns.group[0])].ranks for rank, columns in trace.ranks.items()}
    assert of == {0: (0, 1), 1: (0, 1), 2: ()}


# -- folders that `frd dump` made ------------------------------------------------------------------


def dumped(root: Path, **identity: Any) -> Path:
    """A folder as `frd dump` writes it, of ranks 0 and 1 of which 1 did not answer."""
    summary = {"job": "llama", "attempt": 3, "folder": "llama", "failed": {"1": "no answer"}}
    write(root, "summary.json", json.dumps(summary).encode())
    write(root, "llama/rank_0", pickle.dumps(document(rows()), 2))
    info = {"rank": 0, "world_size": 2, "node": "n1", "boot_id": "b", "pid": 7}
    content = info | {"clock_offset_s": 0.25, "job": "llama", "warnings": []} | identity
    write(root, "llama.meta/rank_0.json", json.dumps(content).encode())
    stack = 'Thread 0x7 (most recent call first):\n  File "/app/train.py", line 8 in load\n'
    write(root, "llama.meta/rank_0.stack.txt", stack.encode())
    return root


@pytest.mark.parametrize("inside", ["", "llama"])
def test_identities_come_along(tmp_path: Path, inside: str) -> None:
    """Job, node, clock, stack and those who did not answer; from the folder or the one inside."""
    trace = load_trace(dumped(tmp_path) / inside)
    assert (trace.key.job, trace.key.attempt) == ("llama", 3)
    rank = trace.ranks[0]
    assert rank.info is not None
    assert (rank.info.node, rank.info.pid, rank.clock_offset_ns) == ("n1", 7, 250_000_000)
    assert trace.standing == {0: Activity(("train.py:8 in load",))}
    assert trace.warnings == ("rank 1: no dump: no answer",)
    assert trace.world_size == 2


def test_a_bad_identity_costs_the_identity(tmp_path: Path) -> None:
    """The dump is read without it, and the warning names the file."""
    trace = load_trace(dumped(tmp_path, pid="many"))
    assert len(trace.ranks[0]) == 3
    assert trace.ranks[0].info is None
    assert "rank_0.json" in trace.warnings[1]


def test_a_locked_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder above may not be entered, so even the status of the named one is refused."""

    def refused(self: Path, **_: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "stat", refused)
    with pytest.raises(DumpError, match="dumps: Permission denied: name a folder"):
        load_trace(tmp_path / "dumps")


# -- file names ------------------------------------------------------------------------------------
# A number in a file name is the rank if the set of files then makes sense, wherever it is.


RANKS = range(8)


def dump(world: Iterable[int] = RANKS) -> bytes:
    return as_torch(document([entry(at) for at in range(3)], [*world]))


def folder_of(tmp_path: Path, names: Iterable[str], data: bytes | None = None) -> Path:
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(dump() if data is None else data)
        os.utime(path, ns=(T0, T0))
    return tmp_path


def ranks_of(folder: Path, prefix: str | None = None) -> dict[int, str]:
    trace = load_trace(folder, prefix=prefix)
    return {
        rank: Path(of.source).relative_to(folder).as_posix() for rank, of in trace.ranks.items()
    }


NAMES: dict[str, Callable[[int], str]] = {
    "host before": lambda r: f"nccl_trace_rank_container-node{r // 4:02}_{r}",
    "host between": lambda r: f"trace.node{r // 4}.rank{r}.json",
    "host after": lambda r: f"rank_{r}.host-{12 + r // 4}",
    "host of letters": lambda r: f"trace.{'alpha' if r < 4 else 'beta'}.rank{r}.json",
    "host of letters after": lambda r: f"rank{r}.{'alpha' if r < 4 else 'beta'}",
    "host of several numbers": lambda r: f"{'gpu-0012-a3' if r < 4 else 'login1'}_rank_{r}",
    "numbers on both sides": lambda r: f"{'a-1-2' if r < 4 else 'b3'}_rank_{r}{'_4_5' * (r % 2)}",
    "hosts in another order": lambda r: f"h{r * 3 % 8}-rank{r}",
    "address": lambda r: f"ip-10-0-3-{r + 1}_{r}",
    "world after": lambda r: f"dump-{r}-of-8.json",
    "world before": lambda r: f"8-{r}.json",
    "time stamp": lambda r: f"comm_lib_trace_rank_{r}_1790000000",
    "time stamps": lambda r: f"comm_{r}_{1_790_000_000 + r}",
    "time of day": lambda r: f"fr_20261120_1530{10 + r}_{r}",
    "date": lambda r: f"2026-11-20_rank{r:05}",
    "process": lambda r: f"rank{r}_pid_{4711 + 13 * r}",
    "local rank": lambda r: f"local_rank_{r % 4}_rank_{r}",
    "compressed": lambda r: f"h{r // 4}_rank{r}.json.gz",
    "a folder for each": lambda r: f"host{r}/trace_{r}_1790000000",
}


@pytest.mark.parametrize("some", [RANKS, (5, 7)], ids=["all", "two"])
@pytest.mark.parametrize("name", NAMES)
def test_which_number_is_the_rank(tmp_path: Path, name: str, some: Iterable[int]) -> None:
    """Hosts, world sizes, dates and process ids are in the names: all files are read, each as its
    rank's, without a warning; also if only ranks 5 and 7 of 8 have left a file."""
    folder = folder_of(tmp_path, map(NAMES[name], some))
    assert ranks_of(folder) == {rank: NAMES[name](rank) for rank in some}
    assert load_trace(folder).warnings == ()


def test_one_file_in_a_folder(tmp_path: Path) -> None:
    """The only number that is a rank of the job is its rank; named alone, it is the same."""
    folder = folder_of(tmp_path, ["dump-3-of-8.json"])
    assert ranks_of(folder) == {3: "dump-3-of-8.json"}
    assert [*load_trace(folder / "dump-3-of-8.json").ranks] == [3]


def test_half_of_the_hosts_compress(tmp_path: Path) -> None:
    """A compressed dump is as good a dump as a plain one of the other host."""
    folder_of(tmp_path, [f"a_rank{rank}.json" for rank in range(4)])
    folder_of(tmp_path, [f"b_rank{rank}.gz" for rank in range(4, 8)], as_gzip(document([], RANKS)))
    assert [*ranks_of(tmp_path)] == [*RANKS]


def test_other_numbered_files_do_not_count(tmp_path: Path) -> None:
    """Logs, events and cores between the dumps are left alone."""
    folder_of(tmp_path, map(NAMES["host after"], RANKS))
    folder_of(tmp_path, ["log_1.txt", "events.out.tfevents.123.host", "core.77"], b"\x7fELF")
    assert ranks_of(tmp_path) == {rank: NAMES["host after"](rank) for rank in RANKS}


def test_two_numbers_that_are_equally_good(tmp_path: Path) -> None:
    """Both numbers give eight ranks: an error names a file and both; a prefix chooses."""
    folder = folder_of(tmp_path, (f"h{rank * 3 % 8}-{rank}.json" for rank in RANKS))
    with pytest.raises(DumpError, match=r"/h\d-\d.json \(8 files\): rank \d or \d: .*--prefix"):
        load_trace(folder)
    assert ranks_of(folder, prefix="h") == {
        rank * 3 % 8: f"h{rank * 3 % 8}-{rank}.json" for rank in RANKS
    }


def test_a_prefix_that_text_follows(tmp_path: Path) -> None:
    """The number after the prefix is the rank, although the name goes on."""
    folder = folder_of(tmp_path, map(NAMES["world after"], RANKS))
    assert [*ranks_of(folder, prefix="dump-")] == [*RANKS]


def test_a_job_that_is_smaller_than_the_other(tmp_path: Path) -> None:
    """Two jobs' files in one folder: the larger set is judged, the other is named in a warning."""
    folder_of(tmp_path, (f"job1_rank_{rank}" for rank in range(4)))
    folder_of(tmp_path, (f"job2_rank_{rank}" for rank in RANKS))
    assert ranks_of(tmp_path) == {rank: f"job2_rank_{rank}" for rank in RANKS}
    (warning,) = load_trace(tmp_path).warnings
    assert "4 files named 'job1_rank_*' as well as 'job2_rank_*': left out" in warning


def test_most_files_would_be_left_out(tmp_path: Path) -> None:
    """Three jobs' files in one folder: an error names them, whatever one of them shows."""
    names = [f"job_{job}_{rank}" for job in "abc" for rank in RANKS]
    with pytest.raises(DumpError, match=r"24 files .* like 'job_a_\*', 'job_b_\*', 'job_c_\*': "):
        load_trace(folder_of(tmp_path, names))
    assert [*ranks_of(tmp_path, prefix="job_b_")] == [*RANKS]


@pytest.mark.parametrize("ranks", [range(20, 24), range(1, 9)], ids=["others", "from 1"])
def test_numbers_that_are_no_ranks_of_the_job(tmp_path: Path, ranks: Iterable[int]) -> None:
    """Hosts 20 to 23, or 1 to 8, of a job of ranks 0 to 7: an error, and no rank is accused."""
    folder = folder_of(tmp_path, (f"host{rank}" for rank in ranks))
    with pytest.raises(DumpError, match=r"host\d+ \(\d files\): the names say .*groups are of"):
        load_trace(folder)


def test_dumps_without_groups(tmp_path: Path) -> None:
    """No dump says what ranks there are: the numbers without gaps are the ranks."""
    bare = as_json({"version": "2.10", "pg_config": {}, "entries": []})
    folder = folder_of(tmp_path, (f"{rank}_at_{40 + 7 * rank}" for rank in RANKS), bare)
    assert [*ranks_of(folder)] == [*RANKS]


def test_of_equally_old_folders_the_higher_number(tmp_path: Path) -> None:
    """Copies have lost their times: attempt 10 is newer than attempt 9."""
    folder = folder_of(tmp_path, (f"attempt_{at}/{r}" for at in (9, 10) for r in range(2)))
    assert ranks_of(folder) == {0: "attempt_10/0", 1: "attempt_10/1"}
    assert not analyze(load_trace(folder)).fault


@pytest.mark.parametrize("name", ["host{}/rank_{}", "job/node{}/{}.json", "host{}_local_rank_{}"])
@pytest.mark.parametrize("hosts", [2, 4])
def test_ranks_of_hosts(tmp_path: Path, name: str, hosts: int) -> None:
    """Hosts number their ranks from 0, and one has lost a file: an error says so, and no host's
    ranks are taken for those of the job."""
    size = len(RANKS) // hosts
    names = [name.format(host, rank) for host in range(hosts) for rank in range(size)]
    with pytest.raises(DumpError, match=r"ranks of a host, .* the job has 8: rename"):
        load_trace(folder_of(tmp_path, names[:-1]))


@pytest.mark.parametrize("size", [8, 7, 3])
@pytest.mark.parametrize("name", ["attempt_{}/{}", "attempt_{}_{}"])
def test_dumps_of_one_job(tmp_path: Path, size: int, name: str) -> None:
    """Two attempts' dumps, of all ranks or without the same ones: the newer is taken."""
    folder_of(tmp_path, (name.format(at, rank) for at in (1, 0) for rank in range(size)))
    for rank in range(size):
        os.utime(tmp_path / name.format(0, rank), ns=(T0, T0 + 1))
    assert ranks_of(tmp_path) == {rank: name.format(0, rank) for rank in range(size)}


def test_two_jobs_of_the_same_size(tmp_path: Path) -> None:
    """As many files of one job as of another, which is newer: an error, a prefix chooses."""
    folder = folder_of(tmp_path, (f"{job}_{rank}" for job in ("train", "eval") for rank in RANKS))
    for rank in RANKS:
        os.utime(folder / f"eval_{rank}", ns=(T0, T0 + 1))
    with pytest.raises(DumpError, match=r"16 files .* like 'eval_\*', 'train_\*': .*--prefix"):
        load_trace(folder)
    assert [*ranks_of(folder, prefix="train_")] == [*RANKS]


@pytest.mark.parametrize("names", [["dumps.tar"], ["host0.tar.gz", "host1.tar.gz"], ["a/b1.zip"]])
def test_a_folder_of_archives(tmp_path: Path, names: list[str]) -> None:
    """Nothing but archives: the error names one, and says what to do."""
    with pytest.raises(DumpError, match=rf"or unpack or name an archive, like .*/{names[0]}$"):
        load_trace(folder_of(tmp_path, names))
