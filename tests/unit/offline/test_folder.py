"""A folder of dumps, whatever its files are called and whatever else it holds, is one trace."""

from __future__ import annotations

import errno
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from frd.errors import DumpError
from frd.flight.trace import Trace
from frd.model import Activity
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
