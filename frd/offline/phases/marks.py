"""Beginnings and ends of phases, as files of telemetry have them."""

from __future__ import annotations

from typing import Final, NamedTuple

ENTER: Final = "phase_enter"
EXIT: Final = "phase_exit"


class PhaseMark(NamedTuple):
    """A `phase_enter` or `phase_exit` event."""

    job: str
    rank: int
    host: str
    pid: int
    session: str
    at_ns: int
    """On the clock of the host."""
    entered: bool
    path: tuple[str, ...]
    """Outermost phase first; its own name is the last."""
    scope_id: str
    thread_id: int
    thread_name: str
    sequence: int
    """Order of events of one process with the same time."""
