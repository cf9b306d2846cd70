"""A number in a file name is the rank if the set of files then makes sense, wherever it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from frd.errors import DumpError
from frd.offline.analysis.analyze import analyze
from frd.offline.load.folder import load_trace
from tests.world.dump_files import T0, as_gzip, as_json, as_torch, document, entry

WORLD = range(8)


def dump(world: Iterable[int] = WORLD) -> bytes:
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


@pytest.mark.parametrize("some", [WORLD, (5, 7)], ids=["all", "two"])
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
    folder_of(tmp_path, [f"b_rank{rank}.gz" for rank in range(4, 8)], as_gzip(document([], WORLD)))
    assert [*ranks_of(tmp_path)] == [*WORLD]


def test_other_numbered_files_do_not_count(tmp_path: Path) -> None:
    """Logs, events and cores between the dumps are left alone."""
    folder_of(tmp_path, map(NAMES["host after"], WORLD))
    folder_of(tmp_path, ["log_1.txt", "events.out.tfevents.123.host", "core.77"], b"\x7fELF")
    assert ranks_of(tmp_path) == {rank: NAMES["host after"](rank) for rank in WORLD}


def test_two_numbers_that_are_equally_good(tmp_path: Path) -> None:
    """Both numbers give eight ranks: an error names a file and both; a prefix chooses."""
    folder = folder_of(tmp_path, (f"h{rank * 3 % 8}-{rank}.json" for rank in WORLD))
    with pytest.raises(DumpError, match=r"/h\d-\d.json \(8 files\): rank \d or \d: .*--prefix"):
        load_trace(folder)
    assert ranks_of(folder, prefix="h") == {
        rank * 3 % 8: f"h{rank * 3 % 8}-{rank}.json" for rank in WORLD
    }


def test_a_prefix_that_text_follows(tmp_path: Path) -> None:
    """The number after the prefix is the rank, although the name goes on."""
    folder = folder_of(tmp_path, map(NAMES["world after"], WORLD))
    assert [*ranks_of(folder, prefix="dump-")] == [*WORLD]


def test_a_job_that_is_smaller_than_the_other(tmp_path: Path) -> None:
    """Two jobs' files in one folder: the larger set is judged, the other is named in a warning."""
    folder_of(tmp_path, (f"job1_rank_{rank}" for rank in range(4)))
    folder_of(tmp_path, (f"job2_rank_{rank}" for rank in WORLD))
    assert ranks_of(tmp_path) == {rank: f"job2_rank_{rank}" for rank in WORLD}
    (warning,) = load_trace(tmp_path).warnings
    assert "4 files named 'job1_rank_*' as well as 'job2_rank_*': left out" in warning


def test_most_files_would_be_left_out(tmp_path: Path) -> None:
    """Three jobs' files in one folder: an error names them, whatever one of them shows."""
    names = [f"job_{job}_{rank}" for job in "abc" for rank in WORLD]
    with pytest.raises(DumpError, match=r"24 files .* like 'job_a_\*', 'job_b_\*', 'job_c_\*': "):
        load_trace(folder_of(tmp_path, names))
    assert [*ranks_of(tmp_path, prefix="job_b_")] == [*WORLD]


@pytest.mark.parametrize("ranks", [range(20, 24), range(1, 9)], ids=["others", "from 1"])
def test_numbers_that_are_no_ranks_of_the_job(tmp_path: Path, ranks: Iterable[int]) -> None:
    """Hosts 20 to 23, or 1 to 8, of a job of ranks 0 to 7: an error, and no rank is accused."""
    folder = folder_of(tmp_path, (f"host{rank}" for rank in ranks))
    with pytest.raises(DumpError, match=r"host\d+ \(\d files\): the names say .*groups are of"):
        load_trace(folder)


def test_dumps_without_groups(tmp_path: Path) -> None:
    """No dump says what ranks there are: the numbers without gaps are the ranks."""
    bare = as_json({"version": "2.10", "pg_config": {}, "entries": []})
    folder = folder_of(tmp_path, (f"{rank}_at_{40 + 7 * rank}" for rank in WORLD), bare)
    assert [*ranks_of(folder)] == [*WORLD]


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
    size = len(WORLD) // hosts
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
    folder = folder_of(tmp_path, (f"{job}_{rank}" for job in ("train", "eval") for rank in WORLD))
    for rank in WORLD:
        os.utime(folder / f"eval_{rank}", ns=(T0, T0 + 1))
    with pytest.raises(DumpError, match=r"16 files .* like 'eval_\*', 'train_\*': .*--prefix"):
        load_trace(folder)
    assert [*ranks_of(folder, prefix="train_")] == [*WORLD]


@pytest.mark.parametrize("names", [["dumps.tar"], ["host0.tar.gz", "host1.tar.gz"], ["a/b1.zip"]])
def test_a_folder_of_archives(tmp_path: Path, names: list[str]) -> None:
    """Nothing but archives: the error names one, and says what to do."""
    with pytest.raises(DumpError, match=rf"or unpack or name an archive, like .*/{names[0]}$"):
        load_trace(folder_of(tmp_path, names))
