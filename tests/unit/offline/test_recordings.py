"""Recordings read by several processes; phase events and origins of samples."""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import frd
from frd.offline.memory import reading, samples
from frd.offline.memory.events import files as event_files
from frd.offline.memory.events import lines as event_lines
from frd.offline.memory.events.lines import MAX_BAD
from frd.offline.memory.reading import read_recording
from frd.offline.memory.samples import Recorded
from frd.offline.memory.telemetry import RESERVED, USED, Origin
from frd.offline.phases.marks import PhaseMark
from frd.readers.pool import ReaderProcess
from tests.world.memory import EPOCH, GIB
from tests.world.telemetry_files import event, lines, write


def same(one: Recorded, other: Recorded) -> bool:
    columns = ("stream", "begin_ns", "end_ns", "values", "capacity")
    others = ("streams", "ooms", "world_size", "others", "refused", "marks")
    origins = [[of.origin_of(row) for row in range(len(of.stream))] for of in (one, other)]
    if origins[0] != origins[1]:
        return False
    return all((getattr(one, name) == getattr(other, name)).all() for name in columns) and all(
        getattr(one, name) == getattr(other, name) for name in others
    )


# -- several processes -----------------------------------------------------------------------------


def mixed(rank: int) -> list[dict[str, Any]]:
    events = [event(at / 10, rank=rank, device_used_bytes=at << 20) for at in range(400)]
    events[7] = scope("enter", 0.7, rank=rank)
    events[9] |= {"metadata": {"origin_thread_id": rank, "origin_phase_scope_id": "s"}}
    events[11]["pid"] = 10**30
    events[13]["event_type"] = "oom"
    events[15]["rank"] = "one"
    return events


@pytest.mark.parametrize("readers", [2, 3])
def test_the_number_of_readers_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readers: int
) -> None:
    """Files of all forms, a large one in pieces: the same samples, marks and warnings."""
    monkeypatch.setattr(reading, "_PIECE_BYTES", 50_000)
    monkeypatch.setattr(samples, "_SETTLE_ROWS", 1)
    files = [
        write(tmp_path / "a.jsonl", [one for rank in range(3) for one in mixed(rank)]),
        write(tmp_path / "b.jsonl.gz", mixed(3)),
        write(tmp_path / "c.json", json.dumps(mixed(4)).encode()),
        tmp_path / "absent",
        write(tmp_path / "d.jsonl", b"oops\n" * 20 + lines(mixed(5)) + b"oops"),
    ]
    with monkeypatch.context() as here:
        here.setattr(sys, "executable", "")
        alone, warnings = read(*files)
    together, same_warnings = read(*files, readers=readers)
    assert same(alone, together)
    assert warnings == same_warnings
    assert f"{files[0]}: line 816: " in warnings[2]
    assert len(alone.marks) == 6


def test_a_reader_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that dies costs its file, with a warning that names it; another reads the others."""
    ask = ReaderProcess.ask

    def killing(process: Any, function: Any, piece: Any) -> None:
        if piece.path.name in ("1.jsonl", "2.jsonl"):
            process.kill()
        ask(process, function, piece)

    monkeypatch.setattr(ReaderProcess, "ask", killing)
    files = [write(tmp_path / f"{rank}.jsonl", mixed(rank)) for rank in range(6)]
    recorded, warnings = read(*files, readers=2)
    lost = [warning for warning in warnings if "ended by signal 9" in warning]
    lost_ranks = {rank for rank in range(6) for one in lost if one.startswith(f"{files[rank]}: ")}
    assert lost_ranks == {1, 2}
    assert {stream.rank for stream in recorded.streams} == {*range(6)} - lost_ranks
    assert all("hostile" in warning for warning in lost)


def test_compressed_files_are_not_read_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small, and whatever its name: a limited process unpacks it, also one that unpacks to
    a thousand times its size."""
    opened: list[Path] = []
    monkeypatch.setattr(reading, "EventFile", lambda piece: opened.append(piece.path))
    packed = write(tmp_path / "b.jsonl.gz", mixed(3)).rename(tmp_path / "b.jsonl")
    recorded, _ = read(packed)
    assert {stream.rank for stream in recorded.streams} == {3}
    assert opened == []
    monkeypatch.undo()
    (bomb := tmp_path / "bomb").write_bytes(gzip.compress(bytes(80 << 20)))
    _, warnings = read(bomb)
    assert re.match(f"{bomb}: line 1: longer than", warnings[-1])


def test_progress_ends_with_all_bytes(tmp_path: Path) -> None:
    """It never falls, and ends with the size of all files."""
    files = [write(tmp_path / f"{rank}.jsonl", mixed(rank)) for rank in range(3)]
    seen: list[tuple[int, int]] = []
    frd.load_memory(files, progress=lambda done, total: seen.append((done, total)))
    size = sum(path.stat().st_size for path in files)
    assert seen == sorted(seen)
    assert seen[-1] == (size, size)


# -- phases ----------------------------------------------------------------------------------------

SCOPE = {
    "action": "enter", "name": "eval", "path": ["train", "eval"], "depth": 2, "scope_id": "s1",
    "parent_scope_id": "s0", "thread_id": 140_000_000_000_000, "thread_name": "MainThread",
    "sequence": 3, "attributes": {"step": 4},
}  # fmt: skip


def scope(action: str, at_s: float, path: str = "train eval", **of_event: Any) -> dict[str, Any]:
    """The beginning or the end of a phase, which is a word of `path` inside those before it."""
    metadata = {"phase_scope": SCOPE | {"action": action, "path": path.split(), "scope_id": path}}
    return event(at_s, event_type=f"phase_{action}", metadata=metadata, **of_event)


def test_phase_events_become_marks(tmp_path: Path) -> None:
    """Their counters are no samples, and they are not counted as other events."""
    path = write(tmp_path / "a.jsonl", [event(0), scope("enter", 1), scope("exit", 2), event(3)])
    recorded, warnings = read(path)
    mark = PhaseMark(
        job="llama", rank=0, host="n0", pid=4711, session="", at_ns=EPOCH + 10**9, entered=True,
        path=("train", "eval"), scope_id="train eval", thread_id=140_000_000_000_000,
        thread_name="MainThread", sequence=3,
    )  # fmt: skip
    assert recorded.marks == [mark, mark._replace(at_ns=EPOCH + 2 * 10**9, entered=False)]
    assert len(recorded.stream) == 2
    assert not recorded.others
    assert not warnings


BAD_SCOPES: dict[str, Any] = {
    "object": None,
    "phase_scope": {},
    "action": {"phase_scope": SCOPE | {"action": "exit"}},
    "path": {"phase_scope": SCOPE | {"path": []}},
    "str": {"phase_scope": SCOPE | {"path": [1]}},
    "int": {"phase_scope": SCOPE | {"thread_id": "main"}},
    "thread_name": {"phase_scope": {k: v for k, v in SCOPE.items() if k != "thread_name"}},
    "sequence": {"phase_scope": SCOPE | {"sequence": 1 << 70}},
}


@pytest.mark.parametrize("what", BAD_SCOPES)
def test_a_bad_phase_event_costs_that_event(tmp_path: Path, what: str) -> None:
    """The warning has its line and names the field; the samples around it count."""
    bad = event(1, event_type="phase_enter", metadata=BAD_SCOPES[what])
    path = write(tmp_path / "a.jsonl", [event(0), bad, scope("enter", 2), event(3)])
    recorded, (warning,) = read(path)
    assert warning.startswith(f"{path}: line 2: phase_enter: ")
    assert what in warning
    assert len(recorded.marks) == 1
    assert len(recorded.stream) == 2


def test_more_marks_than_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones are kept, the others counted."""
    monkeypatch.setattr(samples, "MAX_MARKS", 5)
    path = write(tmp_path / "a.jsonl", [event(0), *(scope("enter", at) for at in range(1, 9))])
    recorded, _ = read(path)
    assert [(mark.at_ns - EPOCH) // 10**9 for mark in recorded.marks] == [1, 2, 3, 4, 5]
    assert recorded.refused == {"phase events beyond 5": 3}


ORIGINS: dict[str, tuple[dict[str, Any], Origin | None]] = {
    "none": ({}, None),
    "null": ({"metadata": None}, None),
    "thread": ({"metadata": {"origin_thread_id": 7}}, Origin(7, "")),
    "scope": ({"metadata": {"origin_phase_scope_id": "s1"}}, Origin(None, "s1")),
    "both": ({"metadata": {"origin_thread_id": 0, "origin_phase_scope_id": "s"}}, Origin(0, "s")),
    "of the event": ({"origin_thread_id": 7, "origin_phase_scope_id": "s"}, Origin(7, "s")),
    "of another type": ({"metadata": {"origin_thread_id": "x"}, "origin_phase_scope_id": 1}, None),
}


@pytest.mark.parametrize("name", ORIGINS)
def test_samples_may_say_where_they_were_taken(tmp_path: Path, name: str) -> None:
    """In their metadata or as fields of the event; of many samples and of one."""
    fields, origin = ORIGINS[name]
    many = [event(at, **fields) for at in range(100)]
    recorded, warnings = read(write(tmp_path / "a.jsonl", [*many, event(100)]))
    assert [recorded.origin_of(row) for row in range(101)] == [origin] * 100 + [None]
    assert not warnings


# -- files of telemetry events, however they are written and whatever is wrong with them -----------


def read(*paths: Path, readers: int = 1) -> tuple[Recorded, list[str]]:
    warnings: list[str] = []
    return read_recording(paths, warnings, readers=readers), warnings


def seconds(recorded: Recorded) -> list[float]:
    return [(at - EPOCH) / 1e9 for at in recorded.begin_ns.tolist()]


# -- forms -----------------------------------------------------------------------------------------

SOME = [event(at) for at in range(7)]
FORMS = {
    "lines.jsonl": lines(SOME),
    "lines.jsonl.gz": lines(SOME),
    "no newline at the end.jsonl": lines(SOME).rstrip(),
    "blank lines, CRLF and a mark.jsonl": b"\xef\xbb\xbf\r\n"
    + lines(SOME).replace(b"\n", b"\r\n\r\n"),
    "list.json": json.dumps(SOME).encode(),
    "compact list.json.gz": json.dumps(SOME, separators=(",", ":")).encode(),
    "list over many lines.json": json.dumps(SOME, indent=2).encode(),
}


@pytest.mark.parametrize("chunk", [1 << 18, 700, 61])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, chunk: int
) -> None:
    """Lines or a list, packed or not, wherever the chunks are cut."""
    monkeypatch.setattr(event_files, "_CHUNK_BYTES", chunk)
    recorded, warnings = read(write(tmp_path / name, FORMS[name]))
    assert seconds(recorded) == list(range(7))
    assert not warnings
    assert recorded.values[:, [RESERVED, USED]].tolist() == [[20 * GIB, 21 * GIB]] * 7


def test_versions(tmp_path: Path) -> None:
    """Version 3 has a session, 4 may leave any counter open; later ones are read like them."""
    path = write(
        tmp_path / "a.jsonl",
        [
            event(0),
            event(1, schema_version=3, session_id="s"),
            event(2, schema_version=4, session_id="s", allocator_reserved_bytes=None),
            event(3, schema_version=9, session_id="s", lanes=[1, 2]),
            event(4, schema_version=1),
        ],
    )
    recorded, _ = read(path)
    assert [stream.session for stream in recorded.streams] == ["", "s"]
    assert recorded.values[:, RESERVED].tolist() == [20 * GIB, 20 * GIB, -1, 20 * GIB]
    assert recorded.later_versions == [9]
    assert recorded.refused == {"version 1": 1}


# -- what is wrong ---------------------------------------------------------------------------------

BAD_LINES = {
    "no JSON": b'{"schema_version": 2, ',
    "no object": b"[1, 2]",
    "no event": b'{"hello": 1}',
    "wrong type": json.dumps(event(1, rank="three")).encode(),
    "a fraction": json.dumps(event(1, device_used_bytes=1.5)).encode(),
    "no text": b"\xff\xfe\x00",
    "too deep": b"[" * 100_000,
}


@pytest.mark.parametrize("bad", BAD_LINES)
def test_a_malformed_line_costs_that_line(tmp_path: Path, bad: str) -> None:
    """The warning has its number; the lines around it count."""
    text = lines(SOME[:2]) + BAD_LINES[bad] + b"\n" + lines(SOME[2:])
    path = write(tmp_path / "a.jsonl", text)
    recorded, (warning,) = read(path)
    assert len(recorded.stream) == 7
    assert warning.startswith(f"{path}: line 3: ")
    assert warning.endswith(": left out")


@pytest.mark.parametrize("bad", ["no JSON", "no event", "wrong type"])
def test_a_malformed_event_in_a_list(tmp_path: Path, bad: str) -> None:
    """The same in a list: the number is that of the event."""
    parts = [json.dumps(one).encode() for one in SOME]
    path = write(
        tmp_path / "a.json",
        b"[" + b",\n".join([*parts[:2], BAD_LINES[bad] + b"}", *parts[2:]]) + b"]",
    )
    recorded, warnings = read(path)
    assert len(recorded.stream) == 7
    assert "event 3: " in warnings[0]


def test_a_list_that_ends_in_the_middle(tmp_path: Path) -> None:
    """Its writer was killed: what is whole counts."""
    recorded, (warning,) = read(write(tmp_path / "a.json", json.dumps(SOME).encode()[:-100]))
    assert seconds(recorded) == list(range(6))
    assert "event 7: " in warning


def test_a_line_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte without a newline is no event; it is passed over without being held."""
    monkeypatch.setattr(event_files, "_CHUNK_BYTES", 1000)
    monkeypatch.setattr(event_lines, "MAX_EVENT_BYTES", 3000)
    text = lines(SOME[:1]) + b'"' + b"x" * 20_000 + b'"\n' + lines(SOME[1:]) + b"oops\n"
    recorded, warnings = read(write(tmp_path / "a.jsonl", text))
    assert len(recorded.stream) == 7
    assert "line 2: longer than 3000 bytes" in warnings[0]
    assert "line 9: " in warnings[1]


def test_of_many_bad_lines_a_few_are_listed(tmp_path: Path) -> None:
    """A log that is no telemetry at all gives a screen of warnings, not a book."""
    recorded, warnings = read(write(tmp_path / "a.log", b"INFO hello\n" * 5_000))
    assert not len(recorded.stream)
    assert len(warnings) == MAX_BAD + 1
    assert warnings[-1].endswith("4992 more that cannot be read: left out, too")


def test_a_packed_file_that_is_cut_short(tmp_path: Path) -> None:
    """What comes before the damage is used."""
    path = write(tmp_path / "a.jsonl.gz", [event(at / 10) for at in range(3000)])
    path.write_bytes(path.read_bytes()[:-2000])
    recorded, warnings = read(path)
    assert 0 < len(recorded.stream) < 3000
    assert any("what is before that is used" in warning for warning in warnings)


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    """The warning names it and says what to do; the others are read."""
    good = write(tmp_path / "a.jsonl", SOME)
    recorded, (warning,) = read(tmp_path / "absent", good)
    assert (
        warning == f"{tmp_path}/absent: No such file or directory: name files of telemetry events"
    )
    assert len(recorded.stream) == 7


# -- what cannot be true ---------------------------------------------------------------------------


def test_counters_that_cannot_be_true_are_refused_and_counted(tmp_path: Path) -> None:
    """Negative, absurdly large, beyond four times the device: unknown; the others count."""
    path = write(
        tmp_path / "a.jsonl",
        [
            event(0, device_used_bytes=-1),
            event(1, device_used_bytes=1 << 60),
            event(2, device_used_bytes=10**30),
            event(3, device_used_bytes=400 * GIB),
            event(
                4, device_used_bytes=None, allocator_reserved_bytes=-5, allocator_allocated_bytes=-6
            ),
            event(5, timestamp_ns=0),
            event(6, timestamp_ns=10**30),
            event(7, rank=-3),
            event(8, rank=10**9),
            event(9),
        ],
    )
    recorded, _ = read(path)
    assert recorded.refused == {
        "negative": 3, "absurdly large": 3, "without a counter": 1, "without a time": 2,
        "no rank": 2,
    }  # fmt: skip
    assert recorded.values[:, USED].tolist() == [-1, -1, -1, -1, 21 * GIB]
    assert recorded.capacity.tolist() == [80 * GIB]


def test_other_events_are_counted(tmp_path: Path) -> None:
    """Allocations and warnings are no samples; those of a failed allocation are kept."""
    kinds = ["allocation", "allocation", "peak", "oom", "sample"]
    path = write(tmp_path / "a.jsonl", [event(at, event_type=k) for at, k in enumerate(kinds)])
    recorded, _ = read(path)
    assert recorded.others == {"allocation": 2, "peak": 1, "oom": 1}
    assert [(oom.stream.rank, oom.what) for oom in recorded.ooms] == [(0, "oom")]
    assert seconds(recorded) == [4]


# -- memory ----------------------------------------------------------------------------------------


def test_order_and_repetition_change_nothing(tmp_path: Path) -> None:
    """Ranks interleaved, one after the other, backwards or twice: the same samples."""
    events = [event(at, rank=rank) for at in range(5) for rank in range(2)]
    a = write(tmp_path / "a.jsonl", events)
    b = write(
        tmp_path / "b.jsonl", sorted(events, key=lambda one: (one["rank"], -one["timestamp_ns"]))
    )
    for recorded in (read(a)[0], read(b)[0], read(a, b)[0]):
        for number, stream in enumerate(recorded.streams):
            mine = recorded.begin_ns[recorded.stream == number]
            assert (mine == EPOCH + np.arange(5) * 10**9).all(), stream


def test_more_samples_than_fit_are_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bins keep the highest value, and say from when to when it may have been."""
    monkeypatch.setattr(samples, "MAX_ROWS", 400)
    monkeypatch.setattr(samples, "_SETTLE_ROWS", 50)
    events = [
        event(at / 10, rank=rank, device_used_bytes=(at % 90) * GIB)
        for at in range(2_000)
        for rank in (0, 1)
    ]
    recorded, _ = read(write(tmp_path / "a.jsonl", events))
    assert len(recorded.stream) <= 400
    assert recorded.bin_ns > 0
    assert recorded.values[:, USED].max() == 89 * GIB
    mine = recorded.stream == 0
    begin, end = recorded.begin_ns[mine], recorded.end_ns[mine]
    assert begin[0] == EPOCH
    assert end[-1] == EPOCH + 1_999 * 10**8
    assert (begin[1:] > end[:-1]).all()
    assert (end - begin < recorded.bin_ns).all()
