"""The answer to: in which phase was a rank then?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from frd.forms import utc_text

_NAMED: Final = 3
"""Candidates in the text; JSON has more."""


class Certainty(StrEnum):
    """How sure a phase is."""

    EXACT = "exact"
    """The sample names the scope it was taken in."""
    SAME_THREAD = "same_thread"
    """The sample names its thread; this is the innermost phase of that thread."""
    UNIQUE = "unique"
    """All threads of the rank that were in a phase were in this one, in the whole interval."""
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
    """All paths that are possible, if it is ambiguous; the most recent first. An empty path comes
    last: for some time of the interval the rank was in no phase."""
    source: str = ""
    """``phase events`` or ``traces``."""
    since_ns: int = 0
    """When the phase at `path` began."""
    is_open: bool = False
    """It had no end when the recording ended."""
    more: int = 0
    """Candidates that are not listed."""
    detail: tuple[str, ...] = ()
    """The path in traces, if `path` is of phase events and the innermost phases differ."""

    def to_json(self) -> dict[str, Any]:
        return {
            "certainty": self.certainty.value,
            "path": list(self.path),
            "candidates": [list(path) for path in self.candidates],
            "more_candidates": self.more,
            "source": self.source or None,
            "since": utc_text(self.since_ns) if self.since_ns else None,
            "open": self.is_open,
            "traces": list(self.detail) or None,
        }

    @property
    def text(self) -> str:
        """``in phase epoch / eval``; empty if there is none."""
        if self.path:
            detail = f" (traces: {_text(self.detail)})" if self.detail else ""
            return f"in phase {_text(self.path)}{detail}"
        names = [_text(path) for path in self.candidates if path]
        if not names:
            return ""
        names, rest = names[:_NAMED], len(names[_NAMED:]) + self.more
        more = f" and {rest} more" if rest else ""
        outside = ", or outside of them" if () in self.candidates else ""
        what = "in one of the phases" if len(names) > 1 else "in phase"
        return f"{what} {', '.join(names)}{more}{outside}"


def _text(path: tuple[str, ...]) -> str:
    return " / ".join(path)
