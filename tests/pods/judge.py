"""What every finding about a pod must hold, whatever the scenario: it never shows another process
as the rank, and never another container's memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.pods.cluster import Job
from tests.pods.manifests import Object, quantity

APART: Final = "another pid namespace: set shareProcessNamespace"
TRAINING_BYTES: Final = quantity("2Gi")
"""Of a training container with a limit."""
_OURS: Final = re.compile(r"frd|asyncio|selectors|grpc|click|py-?spy")
"""In the stack of an agent or of a process next to it. The tap is never in a main thread."""


def suspect(finding: Mapping[str, Any]) -> dict[str, Any]:
    """The only one, whose stack is that of a rank."""
    (one,) = finding["suspects"]
    stack = one.get("stack", [])
    assert not [frame for frame in stack if _OURS.search(frame)], stack
    if stack:
        assert "train.py" in stack[-1] or "train.py" in stack[-2], stack
    return dict(one)


def limit(text: str) -> Callable[[Object], None]:
    """A memory limit of the training container."""

    def edit(spec: Object) -> None:
        (training,) = spec["containers"]
        training["resources"]["limits"]["memory"] = text

    return edit


def apart(spec: Object) -> None:
    """Each container gets its own process namespace, which is Kubernetes' default."""
    del spec["shareProcessNamespace"]


def edits(*each: Callable[[Object], None]) -> Callable[[Object], None]:
    def edit(spec: Object) -> None:
        for one in each:
            one(spec)

    return edit


def check_memory(job: Job, capacity: int) -> None:
    """Every rank has host memory, and no series is bounded by another container's limit."""

    def series() -> list[dict[str, Any]] | None:
        found = job.details()["memory"]["series"]
        known = {one["rank"] for one in found if one["kind"] == "host_used" and one["used_bytes"]}
        return found if known == set(range(job.world)) else None

    for one in job.until(series, "host memory of every rank"):
        assert one["capacity_bytes"] in (0, capacity, job.machine_bytes()), one
        assert one["used_bytes"] > 10 << 20, one
