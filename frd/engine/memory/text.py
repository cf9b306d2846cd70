"""What findings about memory say."""

from __future__ import annotations

from typing import Final

from frd.engine.findings.text import clean, ranks
from frd.engine.memory.incident import MemoryIncident
from frd.engine.memory.rise import MemoryRise
from frd.engine.views import Attribution
from frd.forms import clock_text
from frd.model import Kind

_HOST: Final = "host memory"
FORECAST: Final = "exhausted in about"
"""In an effect that says when memory will be exhausted."""
_UNITS: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))

_HELD: Final = {
    Attribution.ALLOCATOR: "held by torch's allocator",
    Attribution.DRIVER: "held by the rank's process, but not by torch's allocator: "
    "NCCL or the driver",
    Attribution.PROCESS: "held by the rank's process",
    Attribution.OUTSIDE: "not held by torch's allocator: NCCL, the driver or another process",
    Attribution.HOST: "held by the rank's process or its children",
}
_WHERE: Final = {
    Attribution.ALLOCATOR: " in torch's allocator",
    Attribution.DRIVER: " outside torch's allocator",
    Attribution.OUTSIDE: " outside torch's allocator",
}
"""The same in a headline."""


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
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"


def headline(incident: MemoryIncident, nodes: str = "") -> str:
    """Whose memory rose, or ran out. `nodes`: of these ranks, or where others took it."""
    memory, who = _memory(incident), ranks(incident.ranks)
    who += f" ({nodes})" if nodes and "," not in nodes else ""
    failed = ranks(sorted(incident.failed))
    many = len(incident.ranks) > 1
    doubt = ", too close together to say which of them" if many else ""
    if incident.of_others:
        others = "processes of no rank" if incident.is_known else "unknown processes"
        if incident.kind is Kind.OOM:
            return f"{failed} ran out of {memory}, which {others} took"
        return f"{memory} of {nodes or 'a node'} is taken by {others}"
    if incident.kind is Kind.OOM:
        if incident.common or not _figures(first_rise(incident), 0):
            return f"{failed} ran out of {memory}"
        if incident.ranks == tuple(sorted(incident.failed)):
            return f"{who} ran out of {memory}{doubt}"
        return f"{who}: {'their' if many else 'its'} {memory} rose first{doubt}; {failed} ran out"
    if incident.common:
        return f"{memory} of {who} rose together: no single rank is the cause"
    held = _WHERE.get(first_rise(incident).attribution, "")
    does = "leaks" if incident.leak else "rose first"
    return f"{who}: {'their' if many else 'its'} {memory}{held} {does}{doubt * (does != 'leaks')}"


def effect(incident: MemoryIncident, utc_ahead_ns: int = 0) -> str:
    """How far it rose, and how long it will last. Of a common failure no figures are known."""
    is_silent = incident.kind is Kind.OOM and incident.common and not incident.of_others
    return "" if is_silent else _figures(first_rise(incident), utc_ahead_ns)


def first_rise(incident: MemoryIncident) -> MemoryRise:
    return next(iter(incident.rises.values()))


def _memory(incident: MemoryIncident) -> str:
    return _HOST if incident.on_host else "GPU memory"


def is_of_host(summary: str) -> bool:
    """True if a summary is about host memory, not that of devices."""
    return _HOST in summary.lower()


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
