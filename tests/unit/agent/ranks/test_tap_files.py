"""The agent's view of the run directory, whatever is in it."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from frd.flight.entry import Status
from frd.model import AttemptKey, NodeNs, NodeRawNs
from frd_agent import tap
from frd_agent.ranks import tap_files
from frd_agent.ranks.tap_files import CountersFile, parse_counters
from tests.world.run_dir import NOBODY, TOKEN, identity


def write(directory: Path, **changes: Any) -> Path:
    path = directory / f"{TOKEN}.json"
    path.write_text(json.dumps(identity(**changes)))
    return path


def exit_in(directory: Path, exit_record: dict[str, Any]) -> tap_files.ExitRecord:
    """As it is read of the identity that has it."""
    write(directory, exit=exit_record)
    (file,) = tap_files.TapFile.scan(directory)
    assert file.content is not None, file.problem
    assert file.content.exit is not None
    return file.content.exit


def test_an_identity_is_read(tmp_path: Path) -> None:
    """Everything that the contract names arrives in the words of the model. A name of the node in
    the agent's configuration replaces the host name that the rank saw."""
    path = write(tmp_path, exit={"kind": "exception", "detail": "E: x", "at_ns": 9}, future=1)
    (named,) = tap_files.TapFile.scan(tmp_path, node="gpu-17")
    assert named.content is not None
    assert named.content.info.node == "gpu-17"
    (file,) = tap_files.TapFile.scan(tmp_path)
    who = file.content
    assert who is not None, file.problem
    assert who.attempt == AttemptKey("j", 2)
    assert (who.info.rank, who.info.world_size, who.info.pid, who.info.node) == (1, 4, NOBODY, "n1")
    assert (who.info.backends, who.info.devices) == (("gloo",), ("GPU-x",))
    assert who.groups == (tap_files.TapGroup("0", (0, 1, 2, 3), "default_pg", "gloo"),)
    assert who.exit == tap_files.ExitRecord("exception", "E: x", NodeNs(9))
    assert file.socket_path == path.with_suffix(".sock")
    assert file.shm_path == path.with_suffix(".shm")


def test_an_exit_record_with_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frames of an exception arrive innermost first and up to the limit; odd characters and an
    exception that cannot be printed do no harm."""

    def dive(depth: int) -> None:
        if depth == 0:
            raise Odd
        dive(depth - 1)

    class Odd(Exception):
        def __str__(self) -> str:
            return "\udcff first line\nsecond line"

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    try:
        dive(200)
    except Odd as error:
        raised = error
    for name, value in (("type", Odd), ("value", raised), ("traceback", raised.__traceback__)):
        monkeypatch.setattr(sys, f"last_{name}", value, raising=False)
    record = exit_in(tmp_path, tap._exit_record(9))
    assert (record.kind, record.detail, record.at_ns) == ("exception", "Odd: \\udcff first line", 9)
    assert len(record.frames) == tap.MAX_FRAMES
    line = dive.__code__.co_firstlineno
    assert [(frame.name, frame.line) for frame in record.frames[:2]] == [
        ("dive", line + 2),
        ("dive", line + 3),
    ]
    assert record.frames[0].file == __file__
    monkeypatch.setattr(sys, "last_type", Mute)
    monkeypatch.setattr(sys, "last_value", Mute())
    monkeypatch.setattr(sys, "last_traceback", None)
    assert tap._exit_record(9) == {"kind": "exception", "detail": "Mute", "at_ns": 9, "frames": []}
    monkeypatch.delattr(sys, "last_type")
    assert tap._exit_record(9) == {"kind": "clean", "detail": "", "at_ns": 9}


@pytest.mark.parametrize(
    ("first", "is_interrupted"), [(KeyboardInterrupt, True), (KeyError, False), (SystemExit, False)]
)
def test_an_exception_after_an_interrupt(
    first: type[BaseException],
    is_interrupted: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Ctrl-C during a save ends in an error about a broken file: the record says both."""
    try:
        try:
            try:
                raise first
            finally:
                raise ValueError("the file is not whole")
        except ValueError as error:
            raise RuntimeError("cannot save") from error
    except RuntimeError as error:
        monkeypatch.setattr(sys, "last_type", RuntimeError, raising=False)
        monkeypatch.setattr(sys, "last_value", error, raising=False)
        monkeypatch.setattr(sys, "last_traceback", None, raising=False)
    assert exit_in(tmp_path, tap._exit_record(9)).interrupted == is_interrupted


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"schema": 2}, "schema"),
        ({"token": "ba9876543210"}, "token"),
        ({"rank": 4}, "rank"),
        ({"world_size": 2**20 + 1}, "world_size"),  # the service would refuse the whole stream
        ({"devices": ["d"] * 257}, "devices"),
        ({"rank": "1"}, "rank"),
        ({"pid": -1}, "pid"),
        ({"job": ""}, "job"),
        ({"socket": "../../run/docker.sock"}, "socket"),
        ({"shm": "/etc/passwd"}, "shm"),
        ({"groups": [{"name": "0", "ranks": [1, 0]}]}, "groups.ranks"),
        ({"groups": [{"name": "0", "ranks": [0, -1]}]}, "groups"),
        ({"exit": {"kind": "tired", "at_ns": 1}}, "exit"),
        ({"exit": {"kind": "exception", "at_ns": 1, "frames": [["f", "1", "g"]]}}, "frames"),
        ({"started_at_ns": 2**70}, "started_at_ns"),
    ],
)
def test_absurd_identities_are_problems(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    """Each names the file and the field."""
    path = write(tmp_path, **changes)
    (file,) = tap_files.TapFile.scan(tmp_path)
    assert file.content is None
    assert file.problem.startswith(f"{path}: ")
    assert named in file.problem


def test_foreign_files_are_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links, pipes, folders, others' JSON, half a file, one that is too large: named, and nothing
    waits for them."""
    (tmp_path / "package.json").write_text("{}")
    good = identity(token="000000000001", socket=None, shm=None)
    (tmp_path / "elsewhere").write_text(json.dumps(good))
    (tmp_path / "000000000001.json").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "000000000002.json")
    (tmp_path / "000000000003.json").mkdir()
    (tmp_path / "000000000004.json").write_text('{"schema": 1, "tok')
    (tmp_path / "000000000005.json").write_bytes(b"\xff\xfe")
    (tmp_path / "000000000006.json").write_text('{"x":' + "[" * 100_000)
    monkeypatch.setattr(tap_files.TapFile, "MAX_BYTES", 150_000)
    large = json.dumps(good | {"token": "000000000007"}).ljust(150_001)
    (tmp_path / "000000000007.json").write_text(large)
    (tmp_path / ".0123456789ab.tmp").write_text("half")
    (tmp_path / "dumps").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    files = tap_files.TapFile.scan(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(files) == 8
    assert all(file.content is None and str(file.path) in file.problem for file in files)
    assert all(file.socket_path is None for file in files)


def test_what_is_no_directory(tmp_path: Path) -> None:
    """An agent that comes before its first rank finds none. One whose run directory is a file
    reports that; it would see no rank."""
    assert tap_files.TapFile.scan(tmp_path / "none") == []
    (tmp_path / "file").touch()
    (file,) = tap_files.TapFile.scan(tmp_path / "file")
    assert (file.content, str(tmp_path / "file") in file.problem) == (None, True)


def test_only_what_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same object comes back, from a file that is not opened, until the file is replaced."""
    write(tmp_path)
    first = tap_files.TapFile.scan(tmp_path)
    with monkeypatch.context() as patch:
        patch.delattr("frd_agent.untrusted_files.opened")
        assert tap_files.TapFile.scan(tmp_path, first)[0] is first[0]
    replacement = tmp_path / "new"
    replacement.write_text(json.dumps(identity(attempt=3)))
    replacement.replace(tmp_path / f"{TOKEN}.json")
    (second,) = tap_files.TapFile.scan(tmp_path, first)
    assert second.content is not None
    assert second.content.attempt.attempt == 3


def test_counters_arrive_as_written(tmp_path: Path) -> None:
    """What the tap's writer writes, the reader reads; the newest publication wins. The writer keeps
    no descriptor open that a program could close and reuse."""
    files = tap.Files(str(tmp_path), TOKEN)
    with contextlib.closing(CountersFile(tmp_path / f"{TOKEN}.shm", NodeRawNs)) as shm:
        assert shm.read() is None
        before = os.listdir("/proc/self/fd")
        files.write_counters(1, 2, [(tap.GENERIC, 0, 9, -1, 8)])
        assert os.listdir("/proc/self/fd") == before
        sample = shm.read()
        assert sample is not None
        assert (sample.published_at_ns, sample.published_mono_ns) == (1, 2)
        assert sample.counters == {(tap.GENERIC, 0): Status(9, -1, 8)}
        assert not sample.overflowed
        assert shm.read() is sample
        files.write_counters(3, 4, [])
        sample = shm.read()
        assert sample is not None
        assert (sample.published_at_ns, sample.counters) == (3, {})


def test_another_file_with_the_same_number_is_read(tmp_path: Path) -> None:
    """The file is replaced by one whose publication has the number of the last one."""
    path = tmp_path / f"{TOKEN}.shm"
    tap.Files(str(tmp_path), TOKEN).write_counters(1, 2, [])
    with contextlib.closing(CountersFile(path, NodeRawNs)) as shm:
        assert shm.read() is not None
        path.unlink()
        tap.Files(str(tmp_path), TOKEN).write_counters(3, 4, [(tap.GENERIC, 0, 9, -1, 8)])
        shm.read()  # the old file, which does not change
        sample = shm.read()
        assert sample is not None
        assert sample.counters == {(tap.GENERIC, 0): Status(9, -1, 8)}


def test_more_groups_than_rows_are_marked(tmp_path: Path) -> None:
    """The file has a fixed size: the rest is left out, and the sample says so."""
    files = tap.Files(str(tmp_path), TOKEN)
    files.write_counters(1, 2, [(tap.NCCL, i, 1, 1, 1) for i in range(tap.CAPACITY + 1)])
    path = tmp_path / f"{TOKEN}.shm"
    assert path.stat().st_size == tap.HOST_AT + tap.HOST_SIZE
    sample = parse_counters(path.read_bytes())
    assert sample is not None
    assert sample.overflowed
    assert len(sample.counters) == tap.CAPACITY


def test_torn_and_foreign_counters_are_refused(tmp_path: Path) -> None:
    """A byte of another publication, a writer in the middle, a truncated file, another's file."""
    files = tap.Files(str(tmp_path), TOKEN)
    files.write_counters(1, 2, [(tap.GENERIC, 0, 9, -1, 8)])
    path = tmp_path / f"{TOKEN}.shm"
    whole = path.read_bytes()
    assert parse_counters(whole) is not None
    end = tap.HEADER_SIZE + tap.ROW.size
    checked = [*range(8), *range(tap.PREFIX.size, tap.HEADER_SIZE - 4), tap.HEADER_SIZE, end - 1]
    for position in checked:
        torn = bytearray(whole)
        torn[position] ^= 1
        assert parse_counters(bytes(torn)) is None, position
    writing = whole[:8] + struct.pack("<Q", 3) + whole[16:]
    assert parse_counters(writing) is None
    assert parse_counters(whole[: end - 1]) is None
    with contextlib.closing(CountersFile(path, NodeRawNs)) as shm:
        assert shm.read() is not None
        os.truncate(path, 10)
        assert shm.read() is None
    assert CountersFile(tmp_path / "none", NodeRawNs).read() is None
    assert CountersFile(tmp_path, NodeRawNs).read() is None


OLD = "torch 2.7.0 keeps no record of Gloo: use torch 2.10 or later"


@pytest.mark.parametrize(
    ("version", "kept", "backends", "why"),
    [
        ("2.7.0", [1], ["gloo"], OLD),
        ("2.7.0", [1], ["nccl"], ""),
        ("2.7.0", [1], ["nccl", "gloo"], OLD),
        ("2.7.0", [1], ["gloo,nccl"], ""),
        ("2.7.0", [1], ["fake"], ""),
        ("2.7.0", [1], [], ""),
        ("2.9.1", [0, 1], ["gloo"], ""),
        ("2.9.1", [0, 1], ["mpi"], "torch 2.9.1 keeps no record of mpi: use torch 2.15 or later"),
        ("2.15.0", [0], ["ucc"], "torch 2.15.0 keeps no record of ucc"),  # made in Python
        ("2.12.0+cpu", [0], ["nccl"], "torch 2.12.0+cpu keeps no record of NCCL"),
        ("2.4.0", [], ["nccl"], "torch 2.4.0 keeps no record of NCCL: use torch 2.5 or later"),
        ("2.7.0", None, ["gloo"], ""),
    ],
)
def test_what_no_recorder_keeps(
    tmp_path: Path, version: str, kept: list[int] | None, backends: list[str], why: str
) -> None:
    """A group counts as unread if this torch records none of its backends; a backend that waits for
    no rank does not count, nor what an older tap does not report."""
    groups = [
        {"name": str(number), "ranks": [0, 1], "backend": backend}
        for number, backend in enumerate(backends)
    ]
    write(tmp_path, torch_version=version, kept=kept, groups=groups)
    (file,) = tap_files.TapFile.scan(tmp_path)
    assert file.content is not None, file.problem
    assert file.content.unread == why


def test_a_backend_that_a_hook_records(tmp_path: Path) -> None:
    """torch 2.15 records what a backend in C++ does by a hook, which the tap has found."""
    groups = [{"name": "0", "ranks": [0, 1], "backend": "ucc"}]
    more = {"torch_version": "2.15.0", "kept": [0], "groups": groups}
    write(tmp_path, recorders=["ucc"], **more)
    (file,) = tap_files.TapFile.scan(tmp_path)
    assert file.content is not None, file.problem
    assert file.content.unread == ""
