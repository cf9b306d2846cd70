"""Recordings read by several processes; phase events and origins of samples."""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import frd
from frd.offline.memory import reading, samples
from frd.offline.memory.samples import Recorded
from frd.offline.memory.telemetry import Origin
from frd.offline.phases.marks import PhaseMark
from frd.readers.pool import ReaderProcess
from tests.unit.offline.test_event_files import read
from tests.world.memory import EPOCH
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
