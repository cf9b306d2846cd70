"""What findings about memory say."""

from __future__ import annotations

from typing import Final

from frd.engine.findings.text import clean, ranks
from frd.engine.memory.incident import MemoryIncident
from frd.engine.memory.rise import Attribution, MemoryRise
from frd.forms import clock_text
from frd.model import Kind

_HOST: Final = "host memory"
FORECAST: Final = "exhausted in about"
"""In a summary that says when memory will be exhausted."""
_UNITS: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))

_HELD: Final = {
    Attribution.ALLOCATOR: "held by torch's allocator",
    Attribution.DRIVER: "held by the rank's process, but not by torch's allocator: "
    "NCCL or the driver",
    Attribution.PROCESS: "held by the rank's process",
    Attribution.OUTSIDE: "not held by torch's allocator: NCCL, the driver or another process",
    Attribution.HOST: "held by the rank's process or its children",
}


def size(count: float) -> str:
    """``3.1 GiB``"""
    for unit, name in _UNITS:
        if abs(count) >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} bytes"


def duration(seconds: float) -> str:
    """``4.2 s``, ``12 min``, ``3.5 h``"""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def summary(incident: MemoryIncident, utc_ahead_ns: int = 0, nodes: str = "") -> str:
    """One line: whose memory, how far, how long it will last. `nodes`: where others took it."""
    memory = _HOST if incident.on_host else "GPU memory"
    figures = _figures(next(iter(incident.rises.values())), utc_ahead_ns)
    who = ranks(incident.ranks)
    if incident.kind is Kind.OOM:
        return _ran_out(incident, memory, figures)
    if incident.of_others:
        return f"{memory} of {nodes or 'a node'} is taken by processes of no rank: {figures}"
    if incident.leak:
        return f"{memory} of {who} leaks: {figures}"
    if incident.common:
        return f"{memory} of {who} rose together, no single rank is the cause: {figures}"
    doubt = ", too close together to say which of them" if len(incident.ranks) > 1 else ""
    return f"{memory} of {who} rose first{doubt}: {figures}"


def is_of_host(summary: str) -> bool:
    """True if a summary is about host memory, not that of devices."""
    return _HOST in summary


def _ran_out(incident: MemoryIncident, memory: str, figures: str) -> str:
    failed = tuple(sorted(incident.failed))
    text = f"{ranks(failed)} ran out of {memory}"
    if incident.of_others:
        return f"{text}, which processes of no rank took: {figures}"
    if incident.common or not figures:
        return text
    doubt = ", too close together to say which of them" if len(incident.ranks) > 1 else ""
    if incident.ranks == failed:
        return f"{text}: {figures}{doubt}"
    return f"{text}; the memory of {ranks(incident.ranks)} rose first{doubt}: {figures}"


def _figures(rise: MemoryRise, utc_ahead_ns: int) -> str:
    parts = []
    if rise.risen_bytes > 0:
        parts.append(f"+{size(rise.risen_bytes)} in {duration(rise.took_s)}")
    if rise.requested_bytes:
        parts.append(f"{size(rise.requested_bytes)} requested")
    if rise.headroom_bytes >= 0:
        parts.append(f"{size(rise.headroom_bytes)} left")
    if rise.exhausted_in_s is not None and not rise.out_of_memory:
        as_of = clock_text(rise.at + utc_ahead_ns)
        parts.append(f"{FORECAST} {duration(rise.exhausted_in_s)} as of {as_of}")
    return ", ".join(parts)


def evidence(incident: MemoryIncident, rise: MemoryRise, doing: str, utc_ahead_ns: int = 0) -> str:
    """What is known of one suspect."""
    memory = _HOST if incident.on_host else f"memory of {clean(rise.device) or 'its GPU'}"
    parts = [f"{memory}: {_figures(rise, utc_ahead_ns) or 'no rise was seen'}"]
    if incident.leak:
        parts.append("a leak: it rises slowly and steadily")
    if rise.out_of_memory:
        parts.append(clean(rise.kill) or "an allocation failed")
    return "; ".join(filter(None, (*parts, whose(rise.attribution), doing)))


def whose(attribution: Attribution) -> str:
    return _HELD.get(attribution, "")
