"""What watching memory costs: the service with 16,384 series, the agent with 8 ranks and 8 GPUs
(`bench.memory_agent`), and the analysis of recorded samples (`bench.recorded`).

The service is a real `frd serve`; 2,048 agents are simulated in one process, each on its own
connection, each with 8 ranks of one series, ten samples a second, one message a second. A share of
1 is one core.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

import numpy as np

from bench.ingest import CONNECT_EVERY_S, RANKS, line, service, started, stream, watch
from bench.memory_agent import agent_cpu_share
from bench.recorded import recorded_cost
from bench.report import show
from frd.model import (
    AttemptKey,
    MemoryColumns,
    NodeNs,
    NodeRawNs,
    RankInfo,
    RankState,
    RankStatus,
    SeriesInfo,
    SeriesKind,
)
from frd.wire.codec import encode_agent
from frd.wire.messages import PROTOCOL, AttemptDecl, Declare, Hello, RankDecl, SeriesDecl, Statuses
from tests.world.daemons import metric

STREAMS: Final = 2_048
MOMENTS: Final = 10
"""Of one message, which is a second."""
EVERY_NS: Final = 1_000_000_000 // MOMENTS
READ_NS: Final = 2_000_000
GIB: Final = 1 << 30
PAGE: Final = 4096


# -- the service -----------------------------------------------------------------------------------


class Samples:
    """One node and the memory of its ranks: tens of GiB that flutter by some pages, as they do."""

    def __init__(self, number: int, streams: int) -> None:
        self._number, self._streams = number, streams
        dice = np.random.default_rng(number)
        level = dice.integers(20 * GIB, 60 * GIB, (RANKS, 1))
        self._values = level + PAGE * dice.integers(-256, 256, (RANKS, MOMENTS))
        self._series = np.arange(RANKS, dtype=np.uint32)
        self._capacity = np.full(RANKS, 80 * GIB, np.int64)

    def introduction(self) -> list[bytes]:
        now, name = NodeNs(time.time_ns()), str(self._number)
        first, world = self._number * RANKS, self._streams * RANKS
        ranks = [RankInfo(first + i, world, f"n{name}", f"b{name}", 1 + i) for i in range(RANKS)]
        devices = [SeriesInfo(i, SeriesKind.DEVICE_USED, f"GPU-{first + i}") for i in range(RANKS)]
        declare = Declare(
            attempts=(AttemptDecl(0, AttemptKey("bench", 0), world),),
            ranks=tuple(RankDecl(index, 0, info) for index, info in enumerate(ranks)),
            series=tuple(SeriesDecl(index, info) for index, info in enumerate(devices)),
        )
        hello = Hello(PROTOCOL, "bench", f"n{name}", f"b{name}", f"s{name}", now, NodeRawNs(now))
        live = Statuses(tuple(RankStatus(i, RankState.LIVE, now) for i in range(RANKS)))
        return [encode_agent(event) for event in (hello, declare, live)]

    def message(self, until_ns: int) -> bytes:
        """The second that ends at `until_ns`."""
        end = until_ns - EVERY_NS * np.arange(MOMENTS, dtype=np.int64)[::-1]
        return encode_agent(
            MemoryColumns(self._series, self._capacity, end - READ_NS, end, self._values)
        )


async def sample(address: str, streams: int) -> None:
    """`streams` agents that send their samples until killed; says when all are up."""
    connected = 0

    async def agent(number: int) -> None:
        nonlocal connected
        await asyncio.sleep(number * CONNECT_EVERY_S)  # agents do not connect together
        samples = Samples(number, streams)
        async with stream(address) as call:
            for message in samples.introduction():
                await call.write(message)
            connected += 1
            if connected == streams:
                print("connected", flush=True)
            due = time.time_ns()
            while True:
                due += MOMENTS * EVERY_NS
                await asyncio.sleep(max(due - time.time_ns(), 0) / 1e9)
                await call.write(samples.message(due))

    await asyncio.gather(*(agent(number) for number in range(streams)))


def service_cost(streams: int, settle_s: float, seconds: float) -> dict[str, Any]:
    with (
        service() as (pid, address, http),
        started(__file__, "--sample", address, "--streams", str(streams)) as agents,
    ):
        line(agents)
        time.sleep(settle_s)
        cost = watch(pid, http, seconds)
        refused = metric(http, "frd_ingest_refused_total")
        if refused:
            raise SystemExit(f"memory: {refused:.0f} refused: see the log")
    return {"series": streams * RANKS, "streams": streams, **cost}


# -- all of it -------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--sample", metavar="ADDRESS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if options.sample:
        asyncio.run(sample(options.sample, options.streams))
    else:
        report(options)


def report(options: argparse.Namespace) -> None:
    of_service = service_cost(options.streams, 10.0, options.seconds)
    of_agent = agent_cpu_share(options.seconds)
    result = {
        **{name: round(share, 4) for name, share in of_agent.items()},
        "service_cpu_share": round(of_service["cpu_share"], 3),
        "service": of_service,
        **recorded_cost(),
    }
    show(result, as_json=options.json)


if __name__ == "__main__":
    main()
