"""Error of the clock estimates of a job, the claimed bound, and the cost.

On loopback: a real service and a real agent read the same clocks, so that the offset which the
service reports should be 0. In simulated networks: 16 hosts whose clocks drift, pinged like real
ones; the error of a pair of hosts is what comparing their ranks suffers. Lives of single agents
(`tests/world/clock_lives.py`), in which no claim may be wrong. And the processor time of
2,048 clocks in one service: what is learned from pings once a second, and all that the service does
with clocks besides the network.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, Final

sys.path.append(str(FilePath(__file__).parents[1]))  # `bench` and `tests` are not installed

import numpy as np

from bench.ingest import line, started
from bench.report import show
from frd.engine.clocks.alignment import Alignment
from frd.engine.clocks.estimator import Exchange
from frd.model import AlignedNs, NodeNs, NodeRawNs, ServiceRawNs, WatermarkColumns
from frd.service.clocks.agent_clocks import AgentClocks, guess
from frd.service.clocks.pings import PAIR, pause_s
from frd.service.clocks.real_time import RealTime
from frd.wire.clock import Readings
from frd.wire.messages import Watermarks
from tests.world.clock_lives import Life
from tests.world.clocks import EPOCH, MS, US, Agent, Clock, Host, Network, Path, S
from tests.world.daemons import fetch

HOSTS: Final = 16
SEEDS: Final = 6
DRIFT_PPB: Final = 20_000
AGENTS: Final = 2_048
LARGE_JOB_EVERY: Final = round(pause_s(AGENTS))
"""Seconds between pings of one of them."""
CHUNK: Final = 250
"""Lives that one process simulates at a time."""
COSTED: Final = 64
"""Of the agents, so many are simulated to reckon the cost of all."""
WAKING: Final = 100 * US
"""Mean delay of either way of a ping after a pause."""
WARM_S: Final = 20
RUNS: Final = 3
"""Of which the least costly counts: others on the machine make none cheaper."""


# -- loopback --------------------------------------------------------------------------------------


@contextlib.contextmanager
def pair() -> Iterator[str]:
    """A real service and a real agent; gives the service's HTTP address."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        addresses = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
        data_dir = ("--data-dir", f"{folder}/data")
        service = stack.enter_context(started("-m", "frd", "serve", *addresses, *data_dir))
        ready = json.loads(line(service))
        FilePath(folder, "run").mkdir(mode=0o700)
        run_dir = ("--run-dir", f"{folder}/run")
        stack.enter_context(started("-m", "frd_agent", "run", "--service", ready["grpc"], *run_dir))
        yield ready["http"]


def reported_offsets(http: str, seconds: float) -> tuple[list[float], list[float]]:
    """Offset and uncertainty that the service reports, in µs, twice a second."""
    offsets, bounds = [], []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.5)
        lines = fetch(http).splitlines()
        samples = {
            line.split("{")[0]: float(line.rpartition(" ")[2]) for line in lines if "{" in line
        }
        if "frd_clock_uncertainty_seconds" in samples:
            offsets.append(samples["frd_clock_offset_seconds"] * 1e6)
            bounds.append(samples["frd_clock_uncertainty_seconds"] * 1e6)
    return offsets, bounds


def spin() -> None:
    while True:
        pass


def loopback(seconds: float) -> dict[str, float]:
    """Idle, and then with a busy loop on every core besides."""
    result: dict[str, float] = {}
    with pair() as http:
        reported_offsets(http, 10.0)
        result |= _summary("loopback_idle", *reported_offsets(http, seconds))
        burners = [multiprocessing.Process(target=spin, daemon=True) for _ in cores()]
        for burner in burners:
            burner.start()
        result |= _summary("loopback_busy", *reported_offsets(http, seconds))
        for burner in burners:
            burner.kill()
    return result


def cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def _summary(name: str, errors_us: Sequence[float], bounds_us: Sequence[float]) -> dict[str, float]:
    errors = [abs(error) for error in errors_us]
    return {
        f"{name}_median_us": round(statistics.median(errors), 1),
        f"{name}_max_us": round(max(errors), 1),
        f"{name}_bound_us": round(statistics.median(bounds_us), 1),
    }


# -- simulated networks ----------------------------------------------------------------------------


def lan(dice: random.Random) -> Network:
    """60 µs and exponentially 40 more; one way is longer by up to 30 µs, on every host another."""
    return lopsided(Path(60 * US, 40 * US), 30 * US, dice)


def bad(dice: random.Random) -> Network:
    """2 ms and exponentially 1 more; one way is longer by up to 3 ms."""
    return lopsided(Path(2 * MS, MS), 3 * MS, dice)


def lopsided(path: Path, most: int, dice: random.Random) -> Network:
    longer = replace(path, least=path.least + dice.randrange(most))
    return Network(longer, path) if dice.random() < 0.5 else Network(path, longer)


def woken(network: Network) -> Network:
    """The same for a ping after a pause: both hosts sleep."""
    there, back = (replace(way, mean=way.mean + WAKING) for way in (network.there, network.back))
    return Network(there, back)


class Job:
    """Hosts that drift, and their agents: eight pings at connect, then two in a row every so many
    seconds, of which the first wakes both hosts and is slow."""

    def __init__(self, network: Any, seed: int, every: int) -> None:
        self.every = every
        dice = self.dice = random.Random(seed)
        service = Host(Clock(dice.randrange(1, 10**16)), Clock(EPOCH))
        self.agents = []
        for _ in range(HOSTS):
            drift = dice.randint(-DRIFT_PPB, DRIFT_PPB)
            node = Host(Clock(dice.randrange(1, 10**16), drift), Clock(EPOCH + dice.randint(-S, S)))
            self.agents.append(Agent(node, service, network(dice), dice))
        self.next = [S + dice.randrange(S) for _ in self.agents]
        for i, agent in enumerate(self.agents):
            for _ in range(8):
                agent.ping(self.next[i])
                self.next[i] += 10 * MS

    def look(self) -> tuple[list[int], list[int]]:
        """After two pings: of a stamp that each host made within the last half second the error,
        and what is claimed of the present."""
        errors, bounds = [], []
        for i, agent in enumerate(self.agents):
            at = self.next[i]
            quick, agent.network = agent.network, woken(agent.network)
            agent.ping(at)
            agent.network = quick
            now = agent.ping(at + 10 * MS)
            alignment = agent.alignment(now)
            error, bound = agent.error(alignment, now - self.dice.randrange(S // 2))
            errors.append(error)
            bounds.append(alignment.uncertainty_ns(alignment.at_ns) or 0)
            if bound is not None and abs(error) > bound:
                raise SystemExit(f"clock: a stamp is {error} ns off, claimed were {bound}")
            self.next[i] = at + self.every * S + self.dice.randrange(-S // 5, S // 5)
        return errors, bounds


def simulated(name: str, network: Any, seconds: int, every: int = 1) -> dict[str, float]:
    """Over all pairs of hosts, once in ten seconds, after `WARM_S`."""
    errors: list[float] = []
    bounds: list[float] = []
    for seed in range(SEEDS):
        job = Job(network, seed, every)
        for second in range(0, seconds, every):
            off, claimed = job.look()
            if second >= WARM_S and second // every % 10 == 0:
                pairs = list(itertools.combinations(range(HOSTS), 2))
                errors += [(off[a] - off[b]) / 1e3 for a, b in pairs]
                bounds += [(claimed[a] + claimed[b]) / 1e3 for a, b in pairs]
    return _summary(f"{name}_pair", errors, bounds)


# -- lives -----------------------------------------------------------------------------------------


def live(seeds: range) -> tuple[list[int], list[str]]:
    """What is claimed in the lives of these seeds, and where a claim is wrong."""
    claims: list[int] = []
    broken: list[str] = []
    for seed in seeds:
        life = Life(seed)
        life.live()
        claims += life.claims
        broken += life.broken
    return claims, broken


def lives(count: int) -> dict[str, float]:
    """As many lives as `tests/property/test_clock.py` simulates, or more, on all cores."""
    chunks = [range(begin, min(begin + CHUNK, count)) for begin in range(0, count, CHUNK)]
    claimed, wrong, medians = 0, 0, []
    with multiprocessing.Pool(len(cores())) as pool:
        for claims, broken in pool.imap_unordered(live, chunks):
            claimed += len(claims)
            wrong += len(broken)
            medians.append(statistics.median(claims) / 1e3)
            for line in broken[:3]:
                print(line, file=sys.stderr)  # the seed repeats it
    return {
        "lives": count,
        "claims": claimed,
        "wrong_claims": wrong,
        "claimed_median_us": round(statistics.median(medians), 1),
    }


# -- cost ------------------------------------------------------------------------------------------


class Moment:
    """What the service's clocks show while simulated messages come in."""

    def __init__(self) -> None:
        self.at = 0

    def now(self) -> AlignedNs:
        return AlignedNs(EPOCH + self.at)

    def raw(self) -> ServiceRawNs:
        return ServiceRawNs(self.at)


def agents(moment: Moment, dice: random.Random) -> list[Agent]:
    service = Host(Clock(0), Clock(EPOCH))
    nodes = [
        Host(Clock(dice.randrange(1, 10**16), dice.randint(-DRIFT_PPB, DRIFT_PPB)), Clock(EPOCH))
        for _ in range(COSTED)
    ]
    return [Agent(node, service, lan(dice), dice) for node in nodes]


def trip(agent: Agent, at: int) -> Exchange:
    """Of a ping that was sent at `at`."""
    came = at + agent.network.there.delay(agent.dice)
    went = came + 50 * US
    return agent.exchange(at, came, went, went + agent.network.back.delay(agent.dice))


def learning(seconds: int) -> float:
    """Seconds that one clock takes a second, with an exchange in it."""
    moment, spent = Moment(), 0.0
    running = agents(moment, random.Random(1))
    for second in range(1, seconds):
        moment.at = second * S + MS
        work = [(agent.clock, trip(agent, second * S - S // 2)) for agent in running]
        began = time.thread_time()
        for clock, (t1, t2, t3, t4) in work:
            clock.exchange(Exchange(t1, t2, t3, t4))
            clock.newest(moment.raw())
        spent += time.thread_time() - began
    return spent / (seconds - 1) / COSTED


def serving(seconds: int) -> float:
    """The same for all that a service of 2,048 agents does with a clock: a reading comes with the
    watermarks of every second, and pings as often as it asks for them."""
    moment, dice, spent = Moment(), random.Random(1), 0.0
    clocks = AgentClocks(RealTime(moment.now, moment.raw))
    nothing = np.empty(0, np.int64)
    marks: Any = WatermarkColumns(*[nothing] * 8)  # type: ignore[arg-type]
    every = LARGE_JOB_EVERY
    connected = []
    for number, agent in enumerate(agents(moment, dice)):
        first = guess(agent.node.raw(S), AlignedNs(EPOCH + S))
        connected.append((agent, clocks.connected(("boot", str(number)), "node", first, 1, ignore)))
    for second in range(1, seconds):
        work = []
        for number, (agent, clock) in enumerate(connected):
            real, raw = NodeNs(agent.node.real(second * S)), NodeRawNs(agent.node.raw(second * S))
            pinged = second < 4 or (second + number) % every == 0
            ways = [trip(agent, second * S - (PAIR - i) * 10 * MS) for i in range(PAIR)]
            exchanges = ways if pinged else []
            work.append((clock, Watermarks(0, marks, real, raw, 200), exchanges))
        moment.at = second * S + 100 * US
        began = time.thread_time()
        for clock, watermarks, exchanges in work:
            clocks.heard(clock, watermarks)
            for exchange in exchanges:
                clocks.learn(clock, Readings(nothing, nothing, nothing), exchange)
        spent += time.thread_time() - began
    return spent / (seconds - 1) / COSTED


def ignore(_: Alignment) -> None:
    pass


def cost(seconds: int) -> dict[str, float]:
    learn_s = min(learning(seconds) for _ in range(RUNS))
    serve_s = min(serving(seconds) for _ in range(RUNS))
    return {
        "learning_us": round(learn_s * 1e6, 2),
        "learning_cpu_share": round(learn_s * AGENTS, 4),
        "service_us": round(serve_s * 1e6, 2),
        "service_cpu_share": round(serve_s * AGENTS, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seconds", type=int, default=120, help="simulated, and half of it real")
    parser.add_argument("--lives", type=int, help="only simulate so many lives with real clocks")
    options = parser.parse_args()
    if options.lives:
        show(lives(options.lives), as_json=options.json)
        return
    if options.seconds <= WARM_S:
        parser.error(f"--seconds: {options.seconds}: the first {WARM_S} do not count: give more")
    result = {
        **loopback(options.seconds / 2),
        **simulated("lan", lan, options.seconds),
        **simulated("lan_of_many", lan, 10 * options.seconds, LARGE_JOB_EVERY),
        **simulated("bad", bad, options.seconds),
        **cost(options.seconds),
    }
    show(result, as_json=options.json)


if __name__ == "__main__":
    main()
