"""Marks of phases by hand."""

from __future__ import annotations

from frd.offline.phases.marks import PhaseMark

T0 = 1_700_000_000_000_000_000
MAIN = 1


def mark(
    at: int,
    entered: bool,
    *path: str,
    rank: int = 0,
    pid: int = 10,
    scope_id: str = "",
    thread: int = MAIN,
    sequence: int = 0,
) -> PhaseMark:
    """`at` is in nanoseconds since `T0`."""
    name = "MainThread" if thread == MAIN else ""
    return PhaseMark(
        "job", rank, "h", pid, "s", T0 + at, entered, path, scope_id, thread, name, sequence
    )


def scope(
    begin: int,
    end: int | None,
    *path: str,
    rank: int = 0,
    scope_id: str = "",
    thread: int = MAIN,
) -> list[PhaseMark]:
    """A beginning, and an end unless that is None; ends come before beginnings of that time."""
    return [
        mark(at, entered, *path, rank=rank, scope_id=scope_id, thread=thread, sequence=entered)
        for at, entered in ((begin, True), (end, False))
        if at is not None
    ]
