"""The last lines of `frd findings` and `frd status`: warnings, why frd is blind, what it watches.

Draws the keys ``watching``, ``warnings`` and ``incomplete`` of the service's answer. Only a cluster
has the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.text import Text

from frd.forms import counted, duration_text
from frd.usage import plain


def last_lines(answer: Mapping[str, Any]) -> Iterator[Text]:
    """Warnings, one line for each reason to be blind, and what is watched."""
    for warning in answer["warnings"]:
        yield Text(f"warning: {plain(warning['text'])}", style="yellow")
    for text in answer["watching"]["blind"]:
        yield Text(f"blind: {plain(text)}", style="bold yellow")
    if silent := silent_replicas(answer):
        yield Text(incomplete_text(silent), style="bold yellow")
    yield Text(watching_text(answer["watching"]), style="dim")


def silent_replicas(answer: Mapping[str, Any]) -> Sequence[str]:
    """Replicas of a cluster that did not answer, or are not sure of their jobs, so that jobs are
    missing in `answer`, or out of date."""
    return [plain(str(name)) for name in answer.get("incomplete", ())]


def incomplete_text(silent: Sequence[str]) -> str:
    """``incomplete: frd-2 did not answer, or is not sure of its jobs: they may be missing``."""
    are, whose = ("is", "its") if len(silent) == 1 else ("are", "their")
    why = f"did not answer, or {are} not sure of {whose} jobs"
    return f"incomplete: {', '.join(silent)} {why}: they may be missing"


def watching_text(watching: Mapping[str, Any]) -> str:
    """``watching 1 job, 2 ranks, 1 agent; last heard 0.4 s ago``.

    A connected agent without ranks has nothing to report, so its silence means nothing.
    """
    counts = ", ".join(counted(watching[f"{noun}s"], noun) for noun in ("job", "rank", "agent"))
    heard = watching["last_heard_s"]
    is_idle = watching["agents"] > 0 and not watching["jobs"]
    ago = "" if heard is None or is_idle else f"; last heard {age_text(heard)}"
    return f"watching {counts}{ago}"


def service_time(answer: Mapping[str, Any]) -> datetime:
    """Now, on the service's clock, as all of its times."""
    return datetime.fromisoformat(answer["at"])


def age_text(age_s: float | None) -> str:
    """``3 min ago``; ``never`` when there was nothing yet."""
    return "never" if age_s is None else f"{duration_text(age_s)} ago"
