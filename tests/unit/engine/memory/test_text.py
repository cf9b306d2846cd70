"""What findings about memory say, whatever is known of a rise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frd.engine.memory.incident import MemoryIncident
from frd.engine.memory.rise import Attribution, MemoryRise
from frd.engine.memory.text import evidence, summary
from frd.model import Kind
from tests.world.memory import GIB, at

RISE = MemoryRise(
    rank=3,
    device="GPU-3",
    onset=(at(10), at(11)),
    risen_bytes=2 * GIB,
    took_s=4.0,
    bytes_per_s=0.0,
    headroom_bytes=30 * GIB,
    attribution=Attribution.UNKNOWN,
)
SPIKE = MemoryIncident(
    number=1, kind=Kind.MEMORY_SPIKE, on_host=False, limit=at(11), rows={3: 0}, rises={3: RISE}
)
OOM = replace(SPIKE, kind=Kind.OOM, failed={3})
FIGURES = "+2.0 GiB in 4.0 s, 30.0 GiB left"


@pytest.mark.parametrize(
    ("incident", "text"),
    [
        (SPIKE, f"GPU memory of rank 3 rose first: {FIGURES}"),
        (
            replace(SPIKE, rows={3: 0, 5: 1}),
            "GPU memory of ranks 3,5 rose first, too close together to say which of them: "
            f"{FIGURES}",
        ),
        (replace(SPIKE, leak=True, on_host=True), f"host memory of rank 3 leaks: {FIGURES}"),
        (OOM, f"rank 3 ran out of GPU memory: {FIGURES}"),
        (
            replace(OOM, failed={7}),
            f"rank 7 ran out of GPU memory; the memory of rank 3 rose first: {FIGURES}",
        ),
        (
            replace(OOM, rows={3: 0, 5: 1}, failed={7}),
            "rank 7 ran out of GPU memory; the memory of ranks 3,5 rose first, "
            "too close together to say which of them: "
            f"{FIGURES}",
        ),
        (replace(OOM, common=True, failed={1, 2, 3}), "ranks 1-3 ran out of GPU memory"),
    ],
)
def test_one_line(incident: MemoryIncident, text: str) -> None:
    """Who ran out, who rose first, and when they are not the same, both."""
    assert summary(incident) == text


@pytest.mark.parametrize(
    ("attribution", "text"),
    [
        (Attribution.ALLOCATOR, "; held by torch's allocator"),
        (
            Attribution.DRIVER,
            "; held by the rank's process, but not by torch's allocator: NCCL or the driver",
        ),
        (Attribution.PROCESS, "; held by the rank's process"),
        (Attribution.OTHER, "; held by another process"),
        (
            Attribution.OUTSIDE,
            "; not held by torch's allocator: NCCL, the driver or another process",
        ),
        (Attribution.HOST, "; held by the rank's process or its children"),
        (Attribution.CGROUP, "; held by another process in the rank's cgroup"),
        (Attribution.UNKNOWN, ""),
    ],
)
def test_whose_memory_it_is(attribution: Attribution, text: str) -> None:
    """As much is claimed as is known, and nothing where only a sum over the device is."""
    rise = replace(RISE, attribution=attribution)
    assert evidence(SPIKE, rise, "") == f"memory of GPU-3: {FIGURES}{text}"


def test_all_that_is_known_of_a_suspect() -> None:
    """A leak whose allocation failed in the end, on a device without a name."""
    rise = replace(RISE, device="", out_of_memory=True)
    assert evidence(replace(SPIKE, leak=True), rise, "in all_reduce #7 on dp when it began") == (
        f"memory of its GPU: {FIGURES}; a leak: it rises slowly and steadily; "
        "an allocation failed; in all_reduce #7 on dp when it began"
    )


def test_a_kill_by_the_kernel_is_no_failed_allocation() -> None:
    """The agent says what was killed."""
    rise = replace(RISE, out_of_memory=True, kill="the kernel killed a process in its cgroup\x1b")
    said = evidence(SPIKE, rise, "")
    assert "; the kernel killed a process in its cgroup" in said
    assert "allocation" not in said
    assert said.isprintable()
