"""The agent's own /metrics: computed at each scrape from the agent's counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from frd.address import split_address
from frd.errors import FrdError
from frd.model import SeriesKind
from frd.version import __version__
from frd_agent.counters import POLL_BOUNDS, Counters
from frd_agent.memory.watch import MemoryView
from frd_agent.uplink.uplinks import Uplinks

_DROPPED = ("overrun", "refused", "interpreter")
_Family = TypeVar("_Family", GaugeMetricFamily, CounterMetricFamily)


@dataclass(frozen=True, eq=False)
class AgentCollector(Collector):
    stats: Counters
    uplinks: Uplinks
    view: Callable[[], MemoryView]
    job_and_rank: Callable[[int], tuple[str, int]]
    """By a rank's number in the dictionary."""

    def collect(self) -> Iterator[Metric]:
        stats, uplinks = self.stats, self.uplinks
        yield _gauge("frd_agent_build_info", "Version of this agent.", {__version__: 1}, "version")
        yield _gauge(
            "frd_agent_connected", "1 while every stream to the service is up.", uplinks.connected
        )
        yield _total("frd_agent_streams", "Streams to the service ever opened.", stats.streams)
        yield _total("frd_agent_clock_pongs", "Pings that the service answered.", stats.pongs)
        yield _total("frd_agent_clock_steps", "Steps of this node's wall clock.", stats.clock_steps)
        yield _gauge("frd_agent_ranks", "Watched rank processes that are alive.", stats.ranks)
        yield _gauge(
            "frd_agent_outbox_rows",
            "Transitions that wait for the service's acknowledgement.",
            uplinks.outbox_rows,
        )
        yield _total(
            "frd_agent_dropped_rows",
            "Transitions and memory samples that will never reach the service, by reason.",
            {"outbox_full": uplinks.dropped_rows, "memory": uplinks.dropped_samples}
            | {reason: stats.dropped_rows[reason] for reason in _DROPPED},
            "reason",
        )
        yield _gauge(
            "frd_agent_inspected_ranks",
            "Suspects whose processes are inspected in /proc now.",
            stats.inspected,
        )
        yield _total(
            "frd_agent_inspection_timeouts",
            "Readings of a suspect's memory or trace that missed their deadline.",
            stats.inspection_timeouts,
        )
        yield _total(
            "frd_agent_broken_trace_lines",
            "Lines and gzip members of suspects' DFTracer traces that were left out.",
            stats.broken_trace_lines,
        )
        yield _total("frd_agent_dumps", "Dumps asked of ranks, by why.", stats.dumps, "why")
        yield _total(
            "frd_agent_refused_files",
            "Unusable files in the run and dump directories, by kind.",
            {"identity": 0, "dump": 0, "stage": 0, "phases": 0, "claim": 0} | stats.refused_files,
            "kind",
        )
        yield _total(
            "frd_agent_ras_questions",
            "Questions to NCCL's RAS service about a finding, by result.",
            {"answered": 0, "failed": 0} | stats.ras,
            "result",
        )
        yield HistogramMetricFamily(
            "frd_agent_poll_seconds",
            "Duration of one poll of all ranks.",
            buckets=list(
                zip([*map(str, POLL_BOUNDS), "+Inf"], accumulate(stats.poll_buckets), strict=True)
            ),
            sum_value=stats.poll_sum_s,
        )
        yield from memory_metrics(self.view(), self.job_and_rank)


Values: TypeAlias = float | Mapping[str, float]
"""One value, or a value for each value of the only label."""


def _filled(
    make: Callable[..., _Family], name: str, text: str, values: Values, label: str = ""
) -> _Family:
    family = make(name, text, labels=[label] if label else [])
    each = values.items() if isinstance(values, Mapping) else [("", values)]
    for value, number in each:
        family.add_metric([value] if label else [], number)
    return family


_gauge = partial(_filled, GaugeMetricFamily)
_total = partial(_filled, CounterMetricFamily)


@contextmanager
def metrics_server(address: str, collector: Collector) -> Iterator[None]:
    """Serve /metrics from a separate thread, while the context lasts.

    Raises:
        FrdError: the address cannot be listened on.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    host, port = split_address(address)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise FrdError(
            f"metrics: {address}: {error.strerror}: this agent serves no /metrics: "
            "give it another --metrics HOST:PORT, or off"
        ) from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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
    used = {device.uuid: device.used for device in view.devices}
    total = {device.uuid: device.total for device in view.devices}
    yield _gauge(
        "frd_gpu_memory_used_bytes", "Memory of the device in use by all processes.", used, "gpu"
    )
    yield _gauge("frd_gpu_memory_total_bytes", "Memory of the device.", total, "gpu")
    for name, text, kind, labels in _OF_RANKS:
        family = GaugeMetricFamily(name, text, labels=labels)
        for values, used_bytes in _of_ranks(view, kind, who, by_device="gpu" in labels).items():
            family.add_metric(values, used_bytes)
        yield family
    yield _gauge(
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
