"""The answer to: in which phase was a rank then?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from frd.forms import utc_text


class Certainty(StrEnum):
    """How sure a phase is."""

    EXACT = "exact"
    """The sample names the scope it was taken in."""
    SAME_THREAD = "same_thread"
    """The sample names its thread; this is the innermost phase of that thread."""
    UNIQUE = "unique"
    """Only one thread of the rank was in a phase."""
    AMBIGUOUS = "ambiguous"
    """Several threads were in phases, or a phase began or ended within the interval."""
    NONE = "none"
    """The rank was in no known phase."""


@dataclass(frozen=True, slots=True)
class PhaseAnswer:
    certainty: Certainty
    path: tuple[str, ...] = ()
    """Outermost phase first; empty if it is ambiguous or there is none."""
    candidates: tuple[tuple[str, ...], ...] = ()
    """All paths that are possible, if it is ambiguous; the most recent first."""
    source: str = ""
    """``phase events`` or ``traces``."""
    since_ns: int = 0
    """When the phase at `path` began."""
    is_open: bool = False
    """It had no end when the recording ended."""

    def to_json(self) -> dict[str, Any]:
        return {
            "certainty": self.certainty.value,
            "path": list(self.path),
            "candidates": [list(path) for path in self.candidates],
            "source": self.source or None,
            "since": utc_text(self.since_ns) if self.since_ns else None,
            "open": self.is_open,
        }

    @property
    def text(self) -> str:
        """``in phase epoch / eval``; empty if there is none."""
        if self.path:
            return f"in phase {' / '.join(self.path)}"
        names = [" / ".join(path) for path in self.candidates]
        return f"in one of the phases {', '.join(names)}" if names else ""
