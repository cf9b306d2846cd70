"""What a replica of a cluster costs more than a service without one, in processor time.

Three real NATS servers that sync each write, one real replica that owns all 64 cells, and a service
without a cluster, in turns on the same two processors. The agents of `bench.ingest` send entries,
each at most as far ahead of the acknowledgements as a real agent; then none is connected; then the
agents of `bench.fleet` report a job that is well. With ``--before``, the services of another
working tree take turns, too, with the agents of that tree. Processor time is that of the whole `frd
serve` process; the NATS servers' own is reported apart from it, as are the messages and bytes that
they receive, from each other as well. Rates by wall clock say little while all share two
processors.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

import grpc.aio
import numpy as np

from bench import ingest
from bench.fleet import fleet_agents
from bench.ingest import NODES, RANKS, ROWS, Node, started
from bench.report import show
from frd.model import EntryColumns
from frd.rpc import CHANNEL_OPTIONS, StreamCall, job_metadata, open_stream
from frd.wire.codec import decode_service, encode_agent
from frd.wire.messages import Ack, Goodbye
from tests.world.daemons import end, first_line, metric, serve_command, start, until
from tests.world.fleet import Fleet, fleet

TREE: Final = Path(__file__).parents[1]
AHEAD: Final = 8
"""Messages of each rank that are not acknowledged: 256,000 entries of a node, of the 400,000 that
an agent keeps."""
SETTLE_S: Final = 10.0
SERVICES: Final = ("embedded", "cluster", "before", "cluster_before")
_PATIENCE_S: Final = 120.0


class Traffic(NamedTuple):
    """What NATS servers have received."""

    msgs: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """A service that takes entries."""

    tree: Path
    pid: int
    grpc: str
    http: str
    nats: tuple[int, ...] = ()
    """Processes of its NATS servers."""
    traffic: Callable[[], Traffic] = Traffic

    def used_s(self) -> tuple[float, float]:
        """Processor time of the service, and of the NATS servers."""
        return ingest._cpu_s(self.pid), sum(map(ingest._cpu_s, self.nats))


# -- the services --------------------------------------------------------------------------------


@contextlib.contextmanager
def alone(tree: Path) -> Iterator[Target]:
    """`frd serve` of a working tree, without a cluster."""
    env = {"PYTHONPATH": str(tree), "FRD_LOG__LEVEL": "error"}
    with tempfile.TemporaryDirectory(prefix="frd-bench-") as folder:
        # `python -m` looks into the working directory first.
        command = serve_command(Path(folder))
        process = start(command, env=env, without=("PYTHONPATH",), cwd=tree)
        try:
            ready = json.loads(first_line(process))
            yield Target(tree, process.pid, ready["grpc"], ready["http"])
        finally:
            end(process)


@contextlib.contextmanager
def replica(tree: Path) -> Iterator[Target]:
    """The only replica of a cluster, from a working tree."""
    env = {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1", "FRD_LOG__LEVEL": "error"}
    with (
        tempfile.TemporaryDirectory(prefix="frd-bench-") as folder,
        fleet(Path(folder), 1, env) as whole,
    ):
        (one,) = whole.replicas.values()
        pids = tuple(server.pid for server in whole.nats.all)
        yield Target(tree, one.process.pid, one.grpc, one.http, pids, lambda: _received(whole))


def _received(whole: Fleet) -> Traffic:
    answers = [server.ask("varz") for server in whole.nats.all]
    return Traffic(*(sum(int(one[key]) for one in answers) for key in ("in_msgs", "in_bytes")))


# -- entries -------------------------------------------------------------------------------------


def jittered(batch: EntryColumns, dice: np.random.Generator) -> EntryColumns:
    """The same entries with times as real ones have them."""
    created = batch.created_ns + dice.normal(0, 5_000, len(batch)).astype(np.int64)
    took = 30_000 + dice.integers(0, 50_000, len(batch))
    return replace(batch, created_ns=created, completed_ns=created + took)


async def send(address: str, messages: int) -> None:
    """All ranks of `NODES` nodes send `messages` each, and wait until all are acknowledged."""
    nodes = [Node(number, NODES) for number in range(NODES)]
    ready = asyncio.Barrier(NODES)

    async def agent(node: Node) -> None:
        dice = np.random.default_rng(node.number)
        made = [
            [encode_agent(jittered(node.entries(rank, number), dice)) for rank in range(RANKS)]
            for number in range(messages)
        ]
        async with _stream(address) as (call, acked):
            for message in node.introduction():
                await call.write(message)
            await ready.wait()
            for number, batch in enumerate(made):
                await acked.reached((number - AHEAD) * ROWS)
                for message in batch:
                    await call.write(message)
            await acked.reached(messages * ROWS)
            await call.write(encode_agent(Goodbye("done")))

    await asyncio.gather(*map(agent, nodes))


class _Acknowledged:
    """Reads what the service answers."""

    def __init__(self, call: StreamCall) -> None:
        self._call = call
        self._revisions = dict.fromkeys(range(RANKS), 0)
        self._news = asyncio.Condition()
        self._over = False

    async def reached(self, revision: int) -> None:
        """All ranks' rows up to `revision` are acknowledged."""
        async with self._news:
            await self._news.wait_for(
                lambda: self._over or min(self._revisions.values()) >= revision
            )
        if self._over and min(self._revisions.values()) < revision:
            raise SystemExit("cluster_cost: the service ended a stream: see its log")

    async def read(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            while isinstance(data := await self._call.read(), bytes):
                event = decode_service(data)
                if isinstance(event, Ack):
                    async with self._news:
                        self._revisions |= event.revisions
                        self._news.notify_all()
        async with self._news:
            self._over = True
            self._news.notify_all()


@contextlib.asynccontextmanager
async def _stream(address: str) -> Any:
    options = [("grpc.use_local_subchannel_pool", 1), *CHANNEL_OPTIONS]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        call = open_stream(channel, metadata=job_metadata(ingest.JOB), wait_for_ready=True)
        acked = _Acknowledged(call)
        reading = asyncio.create_task(acked.read())
        yield call, acked
        await call.done_writing()
        await reading


def rows(target: Target, messages: int) -> dict[str, float]:
    """Processor time for each entry, in ns, and entries a second by the clock."""
    total = messages * NODES * RANKS * ROWS
    (own, nats), received, began = target.used_s(), target.traffic(), time.monotonic()
    with started(__file__, "--send", target.grpc, "--messages", str(messages)) as process:
        if process.wait(_PATIENCE_S * 5):
            raise SystemExit("cluster_cost: not all entries were acknowledged")
    took_s = time.monotonic() - began
    until(lambda: metric(target.http, "frd_ingest_entries_total") == total, "entries", _PATIENCE_S)
    own_after, nats_after = target.used_s()
    return {
        "ns_per_row": (own_after - own) / total * 1e9,
        "nats_ns_per_row": (nats_after - nats) / total * 1e9,
        "nats_bytes_per_row": (target.traffic().bytes - received.bytes) / total,
        "rows_per_s_by_clock": total / took_s,
    }


# -- a job that is well ----------------------------------------------------------------------------


def well(target: Target, count: int, seconds: float) -> dict[str, float]:
    """Without agents, and with `count` agents of the target's tree, whose job is well."""
    time.sleep(SETTLE_S)
    none = _shares(target, seconds)
    with fleet_agents(target.tree, count, target.grpc):
        time.sleep(3 * SETTLE_S)
        some = _shares(target, seconds)
    return {
        **{f"{key}_without_agents": value for key, value in none.items()},
        **some,
        "us_per_agent_and_s": (some["share"] - none["share"]) / count * 1e6,
        "nats_us_per_agent_and_s": (some["nats_share"] - none["nats_share"]) / count * 1e6,
    }


def _shares(target: Target, seconds: float) -> dict[str, float]:
    (own, nats), received, began = target.used_s(), target.traffic(), time.monotonic()
    time.sleep(seconds)
    took_s = time.monotonic() - began
    (own_after, nats_after), received_after = target.used_s(), target.traffic()
    return {
        "share": (own_after - own) / took_s,
        "nats_share": (nats_after - nats) / took_s,
        "nats_msgs_per_s": (received_after.msgs - received.msgs) / took_s,
        "nats_bytes_per_s": (received_after.bytes - received.bytes) / took_s,
        "rss_bytes": ingest._rss_bytes(target.pid),
    }


# -- in turns ------------------------------------------------------------------------------------


def turns(options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Measurements of each service, one a turn; each turn of a service has a new process."""
    services: dict[str, Callable[[], contextlib.AbstractContextManager[Target]]] = {
        "embedded": lambda: alone(TREE),
        "cluster": lambda: replica(TREE),
    }
    if options.before is not None:
        before = options.before.resolve()
        services["before"] = lambda: alone(before)
        services["cluster_before"] = lambda: replica(before)
    services = {name: one for name, one in services.items() if name in (options.only or services)}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in services}
    names = list(services)
    for turn in range(options.runs):
        for name in names if turn % 2 == 0 else reversed(names):
            measured: dict[str, float] = {}
            if options.messages:
                with services[name]() as target:
                    measured |= rows(target, options.messages)
            if turn < options.well_runs:
                with services[name]() as target:
                    measured |= well(target, options.agents, options.seconds)
            found[name].append(measured)
            print(f"{turn} {name} {_rounded(measured)}", file=sys.stderr, flush=True)
    return found


def summary(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians of each service, and medians of ratios within a turn."""
    result: dict[str, Any] = {}
    for name, measured in found.items():
        keys = {key: None for one in measured for key in one}
        result[name] = _rounded(
            {key: statistics.median(one[key] for one in measured if key in one) for key in keys}
        )
    ratios = {
        "cluster_rows_ratio": ("embedded", "cluster", "ns_per_row"),
        "cluster_well_ratio": ("cluster", "embedded", "us_per_agent_and_s"),
        "embedded_to_before_rows_ratio": ("before", "embedded", "ns_per_row"),
        "embedded_to_before_well_ratio": ("embedded", "before", "us_per_agent_and_s"),
    }
    for ratio, (upper, lower, key) in ratios.items():
        if pairs := _pairs(found.get(upper, ()), found.get(lower, ()), key):
            result[ratio] = round(statistics.median(pairs), 3)
            result[f"{ratio}_all"] = [round(one, 3) for one in pairs]
    return result


def _pairs(
    upper: Sequence[dict[str, float]], lower: Sequence[dict[str, float]], key: str
) -> list[float]:
    both = zip(upper, lower, strict=False)
    return [one[key] / other[key] for one, other in both if key in one and key in other]


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {key: float(f"{value:.4g}") for key, value in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--messages", type=int, default=80, help="of each rank, in each turn; or 0")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--well-runs", type=int, default=3, help="turns with jobs that are well")
    parser.add_argument("--agents", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each share")
    parser.add_argument("--before", type=Path, metavar="TREE", help="compare its services, too")
    parser.add_argument("--only", nargs="+", choices=SERVICES, help="these services")
    parser.add_argument("--send", metavar="ADDRESS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if options.send:
        asyncio.run(send(options.send, options.messages))
        return
    show(summary(turns(options)), as_json=options.json)


if __name__ == "__main__":
    main()
