"""Memory as metrics: per device, and per rank of this node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from frd.model import SeriesKind
from frd_agent.memory.watch import MemoryView

_OF_RANKS: Final = (
    ("frd_rank_gpu_memory_bytes",
     "Device memory of the rank's process, torch's allocator and all libraries together.",
     SeriesKind.PROCESS_USED, ["job", "rank", "gpu"]),
    ("frd_rank_torch_reserved_bytes", "Device memory that torch's allocator of the rank holds.",
     SeriesKind.TORCH_RESERVED, ["job", "rank"]),
    ("frd_rank_torch_allocated_bytes", "Device memory in tensors of the rank.",
     SeriesKind.TORCH_ALLOCATED, ["job", "rank"]),
    ("frd_rank_host_memory_bytes", "Host memory of the rank's process and its children.",
     SeriesKind.HOST_USED, ["job", "rank"]),
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
    for name, text, kind, labels in _OF_RANKS:
        family = GaugeMetricFamily(name, text, labels=labels)
        for values, used_bytes in _of_ranks(view, kind, who, by_device="gpu" in labels).items():
            family.add_metric(values, used_bytes)
        yield family
    yield GaugeMetricFamily(
        "frd_agent_driver_silent_seconds",
        "Seconds since the NVIDIA driver stopped answering, 0 while it answers.",
        view.driver_silent_s,
    )


def _of_ranks(
    view: MemoryView, kind: SeriesKind, who: Callable[[int], tuple[str, int]], *, by_device: bool
) -> dict[tuple[str, ...], int]:
    """By job and rank, and by device or summed over the rank's devices."""
    sums: dict[tuple[int, str], int] = {}
    for series, value in view.values.items():
        if series.kind is kind:
            key = series.rank, series.device if by_device else ""
            sums[key] = sums.get(key, 0) + value
    found: dict[tuple[str, ...], int] = {}
    for (number, device), value in sorted(sums.items()):
        job, rank = who(number)  # of two attempts that overlap for a moment the newer one counts
        found[(job, str(rank), device) if by_device else (job, str(rank))] = value
    return found
