"""The real agent between real gloo ranks, a scripted NVIDIA driver and a collector."""

from __future__ import annotations

import asyncio
import statistics
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from frd.model import MemoryEventKind, SeriesInfo, SeriesKind
from tests.world import nvml
from tests.world.collector import Collector, agent, serving
from tests.world.daemons import async_until, fetch, free_address, until
from tests.world.nvml import GIB, GPU_IS_LOST, Driver, uuid
from tests.world.puppets import everywhere, puppets

MIB = 1 << 20
pytestmark = [pytest.mark.torch, pytest.mark.timeout(100)]


def host(rank: int) -> SeriesInfo:
    return SeriesInfo(rank, SeriesKind.HOST_USED)


def rise(service: Collector, series: SeriesInfo) -> int:
    values = [value for _, _, value in service.samples.get(series, [])]
    return max(values) - values[0] if values else 0


def scrape(address: str) -> dict[tuple[str, str], float]:
    """By name, and rank or else GPU."""
    families = text_string_to_metric_families(fetch(address))
    return {
        (sample.name, sample.labels.get("rank") or sample.labels.get("gpu") or ""): sample.value
        for family in families
        for sample in family.samples
    }


async def test_host_memory_of_real_ranks_arrives(tmp_path: Path) -> None:
    """Rank 1 takes 200 MiB, and then a child that it forked; rank 0 stays where it is. Ten samples
    a second, each taken in far less time than the time between two."""
    service = Collector()
    async with serving(service), agent(tmp_path, service.address):
        with puppets(2, tmp_path) as ranks:
            everywhere(ranks, "init")
            everywhere(ranks, "reduce 5")
            await async_until(lambda: {host(0), host(1)} <= service.samples.keys(), "a sample")
            await asyncio.to_thread(ranks[1].do, "grow 200")
            await async_until(lambda: rise(service, host(1)) > 190 * MIB, "the rise")
            await asyncio.to_thread(ranks[1].do, "child 300")
            await async_until(lambda: rise(service, host(1)) > 480 * MIB, "the child's rise")
            assert rise(service, host(0)) < 50 * MIB
            seen = service.samples[host(1)]
            begins = [begin for begin, _, _ in seen]
            assert begins == sorted(begins)
            assert statistics.median(end - begin for begin, end, _ in seen) < 50e6


async def test_a_job_on_gpus_is_seen_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver lists the processes of two ranks; the agent reports their memory by rank, on the
    stream and in its metrics. One GPU is lost: an event, and samples of the other GPU go on."""
    library = nvml.build(tmp_path / "nvml")
    if library is None:
        pytest.skip("no C compiler to build the scripted NVIDIA driver with")
    driver = Driver(tmp_path / "driver.txt")
    driver.devices = {uuid(n): (10 * GIB, 80 * GIB) for n in range(2)}
    service, metrics, run_dir = Collector(), free_address(), tmp_path / "run"
    own = [SeriesInfo(n, SeriesKind.PROCESS_USED, uuid(n)) for n in range(2)]
    with puppets(2, run_dir) as ranks:
        for number, rank in enumerate(ranks):
            driver.processes.append((uuid(number), "compute", rank.process.pid, 9 * GIB))
        driver.write()
        for name, value in driver.environment(library).items():
            monkeypatch.setenv(name, value)
        everywhere(ranks, "init")
        async with serving(service), agent(run_dir, service.address, "--metrics", metrics):
            await async_until(
                lambda: set(own) <= service.samples.keys(), "a sample of each process"
            )
            driver.devices[uuid(1)] = (30 * GIB, 80 * GIB)
            pid = ranks[1].process.pid
            driver.processes[1] = (uuid(1), "compute", pid, 29 * GIB)
            driver.write()
            await async_until(lambda: rise(service, own[1]) == 20 * GIB, "the rise")
            assert rise(service, own[0]) == 0

            def shown_at_last() -> dict[tuple[str, str], float] | None:
                shown = scrape(metrics)
                return shown if shown["frd_rank_gpu_memory_bytes", "1"] == 29 * GIB else None

            shown = await asyncio.to_thread(until, shown_at_last, lambda: fetch(metrics), 20)
            assert shown["frd_gpu_memory_used_bytes", uuid(1)] == 30 * GIB
            assert shown["frd_gpu_memory_total_bytes", uuid(1)] == 80 * GIB
            assert shown["frd_rank_host_memory_bytes", "0"] > 50 * MIB
            driver.errors[("DeviceGetMemoryInfo", uuid(0))] = GPU_IS_LOST
            driver.write()
            await async_until(lambda: bool(service.events), "the event")
            (event,) = service.events
            of = service.ranks[event.rank].rank, event.kind, event.device
            assert of == (0, MemoryEventKind.DEVICE_LOST, uuid(0))
            seen = len(service.samples[own[1]])
            await async_until(lambda: len(service.samples[own[1]]) > seen, "the other device")


async def test_samples_outlive_a_service(tmp_path: Path) -> None:
    """The service is away while a rank grows; its successor gets samples without a gap."""
    first = Collector()
    with puppets(1, tmp_path) as (rank,):
        rank.do("init")
        async with agent(tmp_path, first.address):
            async with serving(first):
                await async_until(lambda: len(first.samples.get(host(0), [])) > 3, "samples")
            await asyncio.to_thread(rank.do, "grow 200")
            await asyncio.sleep(2.0)
            second = Collector(first.address)
            async with serving(second):
                await async_until(lambda: rise(second, host(0)) > 190 * MIB, "the rise")
                begins = [begin for begin, _, _ in second.samples[host(0)]]
                last = first.samples[host(0)][-1][0]
                assert begins[0] <= last, "what the first may have missed is sent again"
                assert max(b - a for a, b in pairwise(begins)) < 10e9
