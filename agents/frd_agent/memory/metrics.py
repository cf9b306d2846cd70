"""Memory as metrics: per device, and per rank of this node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from frd.model import SeriesInfo, SeriesKind
from frd_agent.memory.watch import MemoryView

_OF_RANKS: Final = (
    ("frd_rank_torch_reserved_bytes", "Device memory that torch's allocator of the rank holds.",
     SeriesKind.TORCH_RESERVED),
    ("frd_rank_torch_allocated_bytes", "Device memory in tensors of the rank.",
     SeriesKind.TORCH_ALLOCATED),
    ("frd_rank_host_memory_bytes", "Host memory of the rank's process and its children.",
     SeriesKind.HOST_USED),
)  # fmt: skip


def memory_metrics(view: MemoryView, who: Callable[[int], tuple[str, int]]) -> Iterator[Metric]:
    """`who` gives job and rank of a dictionary's number."""
    used = GaugeMetricFamily(
        "frd_gpu_memory_used_bytes", "Memory of the device in use by all processes.", labels=["gpu"]
    )
    total = GaugeMetricFamily("frd_gpu_memory_total_bytes", "Memory of the device.", labels=["gpu"])
    for device in view.devices:
        used.add_metric([device.uuid], device.used)
        total.add_metric([device.uuid], device.total)
    yield used
    yield total
    own = GaugeMetricFamily(
        "frd_rank_gpu_memory_bytes",
        "Device memory of the rank's process, torch's allocator and all libraries together.",
        labels=["job", "rank", "gpu"],
    )
    for (job, rank, gpu), value in _of_devices(view, who).items():
        own.add_metric([job, str(rank), gpu], value)
    yield own
    for name, text, kind in _OF_RANKS:
        family = GaugeMetricFamily(name, text, labels=["job", "rank"])
        for (job, rank), value in _of_ranks(view, kind, who).items():
            family.add_metric([job, str(rank)], value)
        yield family
    yield GaugeMetricFamily(
        "frd_agent_driver_silent_seconds",
        "Seconds since the NVIDIA driver stopped answering, 0 while it answers.",
        view.driver_silent_s,
    )


def _of_devices(
    view: MemoryView, who: Callable[[int], tuple[str, int]]
) -> dict[tuple[str, int, str], int]:
    """Of two attempts that overlap for a moment the newer one counts."""
    return {
        (*who(series.rank), series.device): value
        for series, value in _in_order(view)
        if series.kind is SeriesKind.PROCESS_USED
    }


def _of_ranks(
    view: MemoryView, kind: SeriesKind, who: Callable[[int], tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """The sum over the devices of a rank."""
    by_process: dict[int, int] = {}
    for series, value in _in_order(view):
        if series.kind is kind:
            by_process[series.rank] = by_process.get(series.rank, 0) + value
    return {who(number): value for number, value in by_process.items()}


def _in_order(view: MemoryView) -> list[tuple[SeriesInfo, int]]:
    return sorted(view.values.items(), key=lambda item: item[0].rank)
