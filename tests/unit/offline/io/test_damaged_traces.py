"""Traces as killed jobs leave them: what is missing is counted and named, the rest is used."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from frd.errors import TraceError
from frd.offline.io.analysis import load_traces
from tests.unit.offline.io.test_traces import check, only
from tests.world.io_traces import Call, Writer, naive, training, write_trace


@pytest.fixture
def lines() -> list[str]:
    return list(Writer("v2.2", pid=7).lines(training(4, steps=60)))


def test_broken_and_glued_lines(tmp_path: Path, lines: list[str]) -> None:
    """A cut line glued to the next one, garbage, and a last line that was being written."""
    good = write_trace(tmp_path / "good" / "t.pfw", [*lines[:20], *lines[21:60]])
    cut = lines[20][:-25]
    bad = [*lines[:20], cut + lines[21], *lines[22:40], "\x00garbage\xff", *lines[40:60], cut]
    path = write_trace(tmp_path / "t.pfw", bad)
    io = load_traces([path])
    check(only(io), io, naive([good])[7])
    assert io.broken_lines == 3
    (warning,) = io.warnings
    assert warning.startswith(f"{path}: 3 broken lines (cut or glued), the first: {cut[:20]}")


def test_a_record_that_sums_up_calls_is_no_span(tmp_path: Path, lines: list[str]) -> None:
    """DFTRACER_ENABLE_AGGREGATION: counted and named, not used as a span; counters are silent."""
    summed = (
        '{"name":"read","cat":"POSIX","type":3,"ts":1795356750000000,"ph":3,"pid":7,"tid":7,'
        '"args":{"hhash":"68","dur_sum":1398,"ret_sum":3600000,"dft_cnt":36}}'
    )
    counter = summed.replace('"ph":3', '"ph":2').replace('"dft_cnt":36', '"cpu":1')
    path = write_trace(tmp_path / "t.pfw", [*lines, summed, counter])
    io = load_traces([path])
    assert io.events == len([line for line in lines if '"ph":1' in line])
    assert [w for w in io.warnings if "DFTRACER_ENABLE_AGGREGATION" in w] == list(io.warnings)


def test_an_empty_file_is_a_lost_trace(tmp_path: Path, lines: list[str]) -> None:
    """SIGKILL leaves 0 bytes: never "no I/O"."""
    write_trace(tmp_path / "a.pfw", lines)
    for name in ("b.pfw", "c.pfw.gz"):
        (tmp_path / name).touch()
    io = load_traces([tmp_path])
    assert [problem[:7] for problem in io.traces.values()] == ["", "0 bytes", "0 bytes"]
    assert len([w for w in io.warnings if "the trace is lost" in w]) == 2


@pytest.mark.parametrize("cut", [1, 9, 40, 200])
def test_the_last_member_is_cut_off(tmp_path: Path, lines: list[str], cut: int) -> None:
    """The events of whole members are used, and of the last one what can be unpacked."""
    path = write_trace(tmp_path / "t.pfw.gz", lines, lines_a_member=20)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    io = load_traces([path])
    members = len(lines) // 20 * 20 if cut < 200 else 0
    assert io.events >= len([1 for line in lines[: members - 20] if '"ph":1' in line])
    assert any("cut off" in warning for warning in io.warnings)
    assert io.broken_lines <= 1


def test_damage_within_a_member_ends_a_file_only(tmp_path: Path, lines: list[str]) -> None:
    """What was unpacked before is used; the other files are not affected."""
    path = write_trace(tmp_path / "a.pfw.gz", lines, lines_a_member=20)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    write_trace(tmp_path / "b.pfw", list(Writer("v2.2", 8).lines(training(4))))
    io = load_traces([tmp_path])
    assert sum(one.events for one in io.facts if one.piece.file.path == path) > 0
    assert any("a.pfw.gz: damaged gzip" in warning for warning in io.warnings)
    assert len(io.ranks) == 2


def test_without_metadata_times_are_known(tmp_path: Path) -> None:
    """Without DFTRACER_INC_METADATA=1 there are no files, hosts or sizes; nothing is invented."""
    line = '{"id":1,"name":"read","cat":"POSIX","type":3,"pid":%d,"tid":7,"ts":1000,"dur":5,"ph":1}'
    for name in ("rank0.pfw", "rank1.pfw"):
        write_trace(tmp_path / name, [line % 7])
    io = load_traces([tmp_path])
    assert [(one.rank, one.usage.io_ns) for one in io.ranks] == [(0, 5_000), (1, 5_000)]
    assert io.files() == []


def test_opens_that_are_never_closed(tmp_path: Path) -> None:
    """By count of opens and closes; an open whose failure is known does not count."""
    calls = [
        Call("open64", 1, 1, file="/closed", ret=5),
        Call("close", 5, 1, file="/closed"),
        Call("open64", 10, 1, file="/open", ret=5),
        Call("read", 12, 1, file="/open", ret=5),
        Call("open", 20, 1, file="/absent", ret=-1),
        Call("fopen64", 30, 1, "STDIO", file="/unused"),
    ]
    path = write_trace(tmp_path / "t.pfw", list(Writer("v2.0", 7).lines(calls)))
    io = load_traces([path])
    assert [(io.path(f), f.is_used) for _, f in io.unclosed()] == [
        ("/unused", False),
        ("/open", True),
    ]


def test_numbers_that_hurt(tmp_path: Path) -> None:
    """Huge, negative and odd numbers in arguments and durations break nothing."""
    writer = Writer("v2.2", 7)
    line = writer.call(1, Call("read", 1, 5, file="/d", ret=3))
    odd = [
        line.replace('"dur":5', '"dur":18446744073709551000'),
        line.replace('"ret":3', '"ret":99999999999999999999999'),
        line.replace('"ret":3', '"ret":"many"'),
        line.replace('"ret":3', '"ret":null'),
        line.replace('"ret":3', '"ret":1e999'),
        line.replace('"dur":5', '"dur":9' + "9" * 40),
        line.replace('"ret":3', '"ret":3,"step":{"a":1}'),
    ]
    io = load_traces([write_trace(tmp_path / "t.pfw", [line, *odd])])
    assert io.events == 7
    assert io.broken_lines == 1
    assert only(io).usage.io_ns == 5_000
    assert any("stepped back" in warning for warning in io.warnings)


def test_nothing_to_read_is_an_error_that_helps(tmp_path: Path) -> None:
    """A path that is not there, and a folder without traces."""
    with pytest.raises(TraceError, match="no such file or folder"):
        load_traces([tmp_path / "absent"])
    (tmp_path / "notes.txt").touch()
    with pytest.raises(TraceError, match=r"no trace: name files \.pfw or \.pfw\.gz"):
        load_traces([tmp_path])


def test_the_plain_file_of_an_interrupted_gzip_counts(tmp_path: Path, lines: list[str]) -> None:
    """v1 runs gzip at the end; both files are there when that is killed."""
    write_trace(tmp_path / "t.pfw", lines)
    write_trace(tmp_path / "t.pfw.gz", lines[:9])
    io = load_traces([tmp_path])
    assert [path.name for path in io.traces] == ["t.pfw"]
    assert any("t.pfw.gz: the same trace is there unpacked" in w for w in io.warnings)


def test_an_empty_file_gives_way_to_the_packed_one(tmp_path: Path, lines: list[str]) -> None:
    """A killed process left 0 bytes under the name of a trace that was packed before."""
    (tmp_path / "t.pfw").touch()
    write_trace(tmp_path / "t.pfw.gz", lines)
    io = load_traces([tmp_path])
    assert [path.name for path in io.traces] == ["t.pfw.gz"]
    assert list(io.warnings) == [f"{tmp_path}/t.pfw: 0 bytes, and t.pfw.gz is not empty: left out"]


def test_a_file_with_several_names_is_counted_once(tmp_path: Path, lines: list[str]) -> None:
    """A symbolic link, a hard link and the same path twice: one trace, and a warning for each
    other name."""
    path = write_trace(tmp_path / "t.pfw", lines)
    (tmp_path / "latest.pfw").symlink_to(path)
    (tmp_path / "z.pfw").hardlink_to(path)
    io = load_traces([tmp_path, path])
    assert [*io.traces] == [path]
    assert io.events == load_traces([path]).events
    assert list(io.warnings) == [
        f"{tmp_path}/{name}: the same file as {path}: counted once"
        for name in ("latest.pfw", "z.pfw")
    ]


def test_a_file_in_a_locked_folder_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may not be entered, so even the status of the file is refused."""

    def refused(self: Path, **_: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "stat", refused)
    with pytest.raises(TraceError, match=r"t\.pfw: Permission denied: name files"):
        load_traces([tmp_path / "t.pfw"])


def test_a_folder_without_traces_is_named(tmp_path: Path, lines: list[str]) -> None:
    """One of two folders has no trace: a warning."""
    write_trace(tmp_path / "a" / "t.pfw", lines)
    (tmp_path / "b").mkdir()
    io = load_traces([tmp_path / "a", tmp_path / "b"])
    assert list(io.warnings) == [f"{tmp_path}/b: no trace in it"]


def test_calls_that_last_for_ever_make_no_sum_negative(tmp_path: Path) -> None:
    """Some impossible durations on one file, in six processes of a rank."""
    for pid in range(7, 13):
        writer = Writer("v2.2", pid)
        calls = [Call("read", n, (1 << 61) - 1, file="/d", ret=1) for n in range(20)]
        lines = [*writer.lines(calls), writer.metadata("CM", "rank", "0")]
        write_trace(tmp_path / f"{pid}.pfw", lines)
    ((_, file),) = load_traces([tmp_path]).files()
    assert (file.io_ns, file.ops) == (6 << 56, 120)


def test_numbers_beyond_all_bounds(tmp_path: Path, lines: list[str]) -> None:
    """A damaged line has an infinite pid of a child, and times after the end of all clocks: the
    rest of the trace is used."""
    good = write_trace(tmp_path / "good" / "t.pfw", lines)
    head = '"cat":"POSIX","type":1,"pid":7,"tid":7'
    bad = [
        f'{{"id":1,"name":"fork",{head},"ts":1795356750000000,"dur":9,"ph":1,"args":{{"ret":{ret}}}}}'
        for ret in ("1e400", "Infinity")
    ] + [
        f'{{"id":1,"name":"read",{head},"ts":{ts},"dur":9,"ph":1,"args":{{}}}}'
        for ts in (1 << 61, (1 << 62) - 1)
    ]
    path = write_trace(tmp_path / "t.pfw", [*lines, *bad])
    io, whole = load_traces([path]), load_traces([good])
    assert only(io).usage.compute_ns == only(whole).usage.compute_ns
    assert only(io).usage.bytes_read == only(whole).usage.bytes_read
    assert io.events == whole.events + len(bad)
