"""Which rank's memory rose first: scenes with a known answer, sampled as agents sample them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from frd.engine.memory import attempt_memory
from frd.engine.memory.attempt_memory import Memory
from frd.engine.memory.incident import MemoryIncident
from frd.engine.memory.walk.levels import SECOND, WINDOW_NS
from frd.engine.policy import Policy
from frd.engine.views import Attribution
from frd.model import (
    Confidence,
    Float64s,
    Kind,
    MemoryEvent,
    MemoryEventKind,
    NodeNs,
    SeriesInfo,
    SeriesKind,
)
from tests.world.memory import (
    GIB,
    MIB,
    Curve,
    Failure,
    History,
    Job,
    Row,
    S,
    Sampler,
    at,
    dips,
    ends,
    history_of,
    last_of_each,
    level,
    observe,
    only,
    play,
    plus,
    ramp,
    saw,
    seconds,
    stairs,
    step,
)

CALM = level(40)
POLICY = Policy(memory_warmup_s=10)


@dataclass(frozen=True)
class Truth:
    """What is expected of one incident."""

    first: tuple[int, ...]
    victims: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    common: bool = False
    confidence: Confidence = Confidence.HIGH


def rising(
    until: float,
    more: dict[int, Curve],
    *,
    of: int = 4,
    failures: Sequence[Failure] = (),
    policy: Policy = POLICY,
    **samplers: Sampler,
) -> Job:
    """Ranks at 40 GiB, and what some take in addition; read as ``r2=Sampler(..)`` says, else ten
    times a second."""
    return Job(
        [
            Row(
                rank,
                plus(CALM, more.get(rank, level(0))),
                sampler=samplers.get(f"r{rank}", Sampler()),
            )
            for rank in range(of)
        ],
        until,
        failures,
        policy,
    )


def victims(incident: MemoryIncident) -> tuple[int, ...]:
    return tuple(sorted(incident.victims))


FOLLOWED = [Truth((1,), victims=(2,))]
BOTH = [Truth((1, 2), confidence=Confidence.MEDIUM)]
OFF_BY_TWO = Sampler(clock_error=2, uncertainty=2)
SCENES: dict[str, tuple[Job, list[Truth]]] = {
    "one rank climbs, another follows": (rising(45, {1: ramp(30, 2), 2: ramp(33, 9)}), FOLLOWED),
    "clocks 2 s apart, within their uncertainty": (
        rising(45, {1: ramp(30, 2), 2: ramp(31, 2)}, r1=OFF_BY_TWO),
        BOTH,
    ),
    "clocks 2 s apart, but the lead is larger": (
        rising(45, {1: ramp(30, 2), 2: ramp(35, 9)}, r1=OFF_BY_TWO),
        FOLLOWED,
    ),
    "a climb with dips of half a GiB": (
        rising(45, {1: plus(ramp(30, 2), dips(3, GIB / 2)), 2: ramp(33, 9)}),
        FOLLOWED,
    ),
    "a climb while all others rise by next to nothing": (
        rising(45, {**dict.fromkeys(range(4), step(30, 4 * MIB / GIB)), 1: ramp(30, 2)}),
        [Truth((1,))],
    ),
    "a staircase with plateaus": (
        rising(85, {1: stairs(30, 5, every=7), 2: ramp(50, 9)}),
        FOLLOWED,
    ),
    "an early rise whose rank later grows much larger": (
        rising(60, {1: plus(step(30, 2), ramp(45, 9)), 2: plus(step(36, 8), ramp(38, 2))}),
        FOLLOWED,
    ),
    "an early rise, and another grows larger later": (
        rising(45, {1: ramp(30, 1, 9), 2: ramp(33, 9)}),
        FOLLOWED,
    ),
    "a slow leak, and a spike elsewhere": (
        rising(75, {1: ramp(20, 0.02), 2: ramp(60, 5)}),
        [Truth((2,))],
    ),
    "the sampler of another stalled over the onset": (
        rising(45, {1: ramp(32, 5), 2: ramp(30, 5)}, r2=Sampler(stall=(29, 34))),
        BOTH,
    ),
    "the sampler of another stalled for ever": (
        rising(45, {1: ramp(32, 5)}, r2=Sampler(stall=(29, 99))),
        [Truth((1,), unknown=(2,), confidence=Confidence.MEDIUM)],
    ),
    "all ranks together, but for what a step jitters": (
        rising(45, {rank: ramp(30 + 0.02 * rank, 9, 37) for rank in range(16)}, of=16),
        [Truth(tuple(range(16)), common=True, confidence=Confidence.LOW)],
    ),
    "the only rank of a job": (rising(45, {0: step(30, 37)}, of=1), [Truth((0,))]),
    "a spike that recovers, then another elsewhere": (
        rising(60, {1: step(30, 36, end=36), 2: step(50, 36)}),
        [Truth((1,)), Truth((2,))],
    ),
    "a spike that recovers, then another of the same height": (
        rising(60, {1: plus(step(30, 36, end=36), step(50, 36))}, of=2),
        [Truth((1,)), Truth((1,))],
    ),
    "a spike above a saw-tooth": (
        rising(60, {r: plus(saw(8, 0.7 + 0.1 * r), ramp(40, 4 * (r == 3))) for r in range(4)}),
        [Truth((3,))],
    ),
    "start-up ramps before the real spike": (
        Job([Row(r, plus(ramp(0.2 * r, 12, 40), step(40, 35 * (r == 2)))) for r in range(4)], 50),
        [Truth((2,))],
    ),
    "a rank that starts and warms up while another rises": (
        Job(
            [
                Row(0, CALM),
                Row(1, plus(CALM, ramp(30, 4))),
                Row(2, plus(level(1), ramp(29, 8, 35)), sampler=Sampler(start=24)),
            ],
            42,
        ),
        [Truth((1,))],
    ),
}


@pytest.mark.parametrize("name", SCENES)
def test_the_right_verdict(name: str) -> None:
    """Each scene of the table gives exactly the incidents that are known."""
    job, truths = SCENES[name]
    incidents = last_of_each(play(job))
    assert [
        Truth(one.ranks, victims(one), tuple(one.unknown), one.common, one.confidence)
        for one in incidents
    ] == truths
    assert all(one.kind is Kind.MEMORY_SPIKE for one in incidents)


def test_figures_of_a_rise() -> None:
    """Onset between two samples, bytes, rate, head room and the time that is left."""
    [first, *_] = play(SCENES["one rank climbs, another follows"][0])
    [rise] = first.rises.values()
    assert (rise.rank, rise.device) == (1, "GPU-1")
    assert seconds(rise.onset[0]) == pytest.approx(30, abs=0.11)
    assert seconds(rise.onset[1]) == pytest.approx(30.1, abs=0.11)
    assert rise.risen_bytes == pytest.approx(2 * GIB * rise.took_s, rel=0.05)
    assert rise.bytes_per_s == pytest.approx(2 * GIB, rel=0.05)
    assert rise.headroom_bytes == 40 * GIB - rise.risen_bytes
    assert rise.exhausted_in_s == pytest.approx(rise.headroom_bytes / (2 * GIB), rel=0.05)


def test_a_ramp_is_reported_within_two_seconds_of_becoming_large() -> None:
    """Host memory: as soon as it has taken the share that opens a finding, and goes on."""
    grows = plus(level(2), ramp(30, 0.4))
    rows = [
        Row(rank, grows if rank == 2 else level(2), SeriesKind.HOST_USED, capacity=16 * GIB)
        for rank in range(4)
    ]
    history = history_of(Job(rows, 45))
    is_large = 30 + 0.05 * 16 / 0.4
    opened = history.versions[0]
    assert opened.ranks == (2,)
    assert opened.on_host
    assert seconds(history.times[0]) <= is_large + 2
    assert opened.rises[2].attribution is Attribution.HOST


# -- whose memory it is --------------------------------------------------------------------------


def device(rank: int, **curves: Curve) -> list[Row]:
    """Series of one rank on a device that all share, by kind."""
    return [
        Row(rank, curve, SeriesKind(kind), "GPU-x", capacity=80 * GIB)
        for kind, curve in curves.items()
    ]


GROWS = plus(level(10), ramp(30, 5))
WHOSE: dict[str, tuple[list[Row], Attribution]] = {
    "allocator": (
        device(0, device_used=GROWS, process_used=GROWS, torch_reserved=GROWS),
        Attribution.ALLOCATOR,
    ),
    "allocator, its process unknown": (
        device(0, device_used=GROWS, torch_reserved=GROWS, torch_allocated=level(1)),
        Attribution.ALLOCATOR,
    ),
    "NCCL": (
        device(0, device_used=GROWS, process_used=GROWS, torch_reserved=level(8)),
        Attribution.DRIVER,
    ),
    "a process without torch's counters": (
        device(0, device_used=GROWS, process_used=GROWS),
        Attribution.PROCESS,
    ),
    "not the allocator, its process unknown": (
        device(0, device_used=GROWS, torch_reserved=level(8)),
        Attribution.OUTSIDE,
    ),
    "a device and nothing else": (device(0, device_used=GROWS), Attribution.UNKNOWN),
    "the process on the host": (
        [Row(0, GROWS, SeriesKind.HOST_USED), Row(0, GROWS, SeriesKind.CGROUP_USED)],
        Attribution.HOST,
    ),
}


@pytest.mark.parametrize("name", WHOSE)
def test_whose_memory_it_is(name: str) -> None:
    """What rose along with the device says whose the rise is."""
    rows, attribution = WHOSE[name]
    [opened, *_] = play(Job(rows, 45))
    assert [rise.attribution for rise in opened.rises.values()] == [attribution]


def test_the_neighbour_on_a_device_is_no_suspect() -> None:
    """Two ranks share a GPU: its level rises for both, but the process of one has grown."""
    rows = device(0, device_used=GROWS, process_used=GROWS)
    rows += device(1, device_used=GROWS, process_used=level(3))
    assert [one.ranks for one in last_of_each(play(Job(rows, 45)))] == [(0,)]


def in_cgroup(*own: Curve, whole: Curve, node: str = "a", first: int = 0) -> list[Row]:
    """Ranks of one cgroup: what each of them holds, and what all processes there hold."""
    rows = []
    for rank, curve in enumerate(own, first):
        rows.append(Row(rank, curve, SeriesKind.HOST_USED, node=node, capacity=32 * GIB))
        rows.append(Row(rank, whole, SeriesKind.CGROUP_USED, node=node, capacity=32 * GIB))
    return rows


def gpu(*own: Curve, whole: Curve) -> list[Row]:
    """The same for processes on one device."""
    return [
        Row(rank, one, kind, device="GPU-0")
        for rank, curve in enumerate(own)
        for kind, one in ((SeriesKind.DEVICE_USED, whole), (SeriesKind.PROCESS_USED, curve))
    ]


OWN = level(2)
TAKEN = {
    "another user of a session fills its cgroup": in_cgroup(
        OWN, OWN, whole=plus(level(9), ramp(30, 2, 23))
    ),
    "the only rank of a container, whose neighbour does": in_cgroup(
        OWN, whole=plus(level(9), ramp(30, 2))
    ),
    "another process fills a device that two ranks share": gpu(
        level(20), level(20), whole=plus(level(45), ramp(30, 3))
    ),
    "ranks grow a little, another process much": in_cgroup(
        *(plus(OWN, ramp(30, 0.1, 1)) for _ in range(2)), whole=plus(level(9), ramp(30, 2))
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_others_take_accuses_no_rank(name: str) -> None:
    """It is said only when it will run out within a minute, and names no rank."""
    [incident, *_] = versions = play(Job(TAKEN[name], 45))
    assert incident.of_others
    assert len(last_of_each(versions)) == 1
    assert incident.rises[0].exhausted_in_s is not None
    assert incident.rises[0].exhausted_in_s < WINDOW_NS / SECOND


CALM_THERE = {
    "far from full": in_cgroup(OWN, OWN, whole=plus(level(9), ramp(30, 0.1, 12))),
    "nearly full, with a minute and more left": in_cgroup(
        OWN, OWN, whole=plus(level(28), ramp(30, 0.01, 2))
    ),
    "full from one sample to the next, and then still": in_cgroup(
        OWN, OWN, whole=plus(level(9), step(30, 22))
    ),
    "slowly, for minutes": in_cgroup(OWN, OWN, whole=plus(level(9), ramp(12, 0.02))),
    "on a device": gpu(level(20), level(20), whole=plus(level(45), step(30, 33))),
}


@pytest.mark.usefixtures("short_leaks")
@pytest.mark.parametrize("name", CALM_THERE)
def test_what_others_take_slowly_is_no_incident(name: str) -> None:
    """Others use memory of the node, as they may: it will not run out soon."""
    assert play(Job(CALM_THERE[name], 250)) == []


def test_others_add_no_victim_and_hide_no_suspect() -> None:
    """Memory of rank 1 rises on its own node while another process fills the node of ranks 2-3,
    and before that a little of the node of ranks 0-1."""
    rows = in_cgroup(OWN, plus(OWN, ramp(30, 2)), whole=plus(level(9), step(27, 1), ramp(30, 2)))
    rows += in_cgroup(OWN, OWN, whole=plus(level(9), ramp(29, 3)), node="b", first=2)
    own, others = sorted(last_of_each(play(Job(rows, 38))), key=lambda one: one.of_others)
    assert (own.ranks, own.victims, own.unknown) == ((1,), set(), set())
    assert own.confidence is Confidence.HIGH
    assert (others.of_others, others.ranks) == (True, (2, 3))


@pytest.mark.usefixtures("short_leaks")
def test_a_leak_of_one_rank_in_a_shared_cgroup() -> None:
    """All ranks of a pod have the series of the rank that leaks, which is named alone."""
    leak = ramp(12, 0.02)
    rows = in_cgroup(OWN, plus(OWN, leak), OWN, whole=plus(level(9), leak))
    incident = only(play(Job(rows, 250)))
    assert (incident.leak, incident.common, incident.ranks) == (True, False, (1,))


@pytest.mark.parametrize("foreseen", [False, True])
def test_a_kill_where_others_took_the_memory_accuses_no_rank(foreseen: bool) -> None:
    """Another process fills the cgroup, and the kernel kills rank 1, which held what it always
    does: an OOM of rank 1 whose cause is none of the ranks."""
    whole = plus(level(9), ramp(30, 2) if foreseen else step(34, 22))
    kill = Failure(34.6, rank=1, device="", kind=MemoryEventKind.OOM_KILL)
    *_, last = play(Job(in_cgroup(OWN, OWN, whole=whole), 37, [kill]))
    assert (last.kind, last.of_others, last.failed) == (Kind.OOM, True, {1})


@pytest.mark.parametrize("noise_gib", [0.0, 0.01])
def test_the_neighbours_in_a_cgroup_are_no_suspects(noise_gib: float) -> None:
    """Four ranks share a container, whose usage rises for all of them; a moment before, something
    else in it took a few pages."""
    rows = []
    for rank in range(4):
        own = plus(level(2), ramp(30, 1)) if rank == 3 else level(2)
        rows.append(Row(rank, own, SeriesKind.HOST_USED, node="a", capacity=32 * GIB))
        whole = plus(level(9), step(27, noise_gib), ramp(30, 1))
        rows.append(Row(rank, whole, SeriesKind.CGROUP_USED, node="a", capacity=32 * GIB))
    [incident] = last_of_each(play(Job(rows, 45)))
    assert incident.ranks == (3,)
    assert incident.rises[3].headroom_bytes < 23 * GIB, "of the container, not of the rank"


def test_two_processes_under_one_rank() -> None:
    """A rank that two processes claim has both of their series; the one that rises names it."""
    rows = [
        Row(0, CALM),
        Row(1, level(1), SeriesKind.TORCH_RESERVED, source="4711"),
        Row(1, GROWS, SeriesKind.TORCH_RESERVED, source="4712"),
    ]
    assert [one.ranks for one in last_of_each(play(Job(rows, 45)))] == [(1,)]


# -- what is no incident -------------------------------------------------------------------------

HEALTHY: dict[str, Job] = {
    "warm-up in steps, at different times": Job(
        [Row(r, plus(step(1 + r, 30), step(4 + 0.5 * r, 42))) for r in range(4)], 40
    ),
    "a short peak at every step": rising(60, dict.fromkeys(range(4), saw(20, 1.3))),
    "an evaluation on one rank, far from full": rising(60, {1: step(30, 8, end=40)}),
    "caches that fill up to a third": Job(
        [Row(r, plus(level(5), ramp(12, 0.02, 20))) for r in range(4)], 300
    ),
    "a small rise that nearly fills a full device": rising(
        45, {0: level(36), 1: plus(level(36), step(30, 0.9)), 2: level(36)}, of=3
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_no_incident(name: str) -> None:
    """Healthy jobs are left alone."""
    assert play(HEALTHY[name]) == []


def test_warm_up_is_judged_when_it_does_not_stop() -> None:
    """A rank that climbs from its start on, and goes on when the others have stopped, is named."""
    rows = [Row(r, ramp(1, 10, 40) if r != 2 else ramp(1, 2.5)) for r in range(4)]
    history = history_of(Job(rows, 40))
    assert history.versions[0].ranks == (2,)
    assert seconds(history.times[0]) > 10


# -- failed allocations --------------------------------------------------------------------------


def test_an_allocation_fails_without_a_rise_before() -> None:
    """One request was too large: no memory rose, and the rank that requested it is named."""
    failures = [Failure(30, rank=1, requested=50 * GIB)]
    incident = only(play(rising(40, {}, of=3, failures=failures)))
    assert (incident.kind, incident.ranks, incident.failed) == (Kind.OOM, (1,), {1})
    assert incident.rises[1].requested_bytes == 50 * GIB
    assert incident.confidence is Confidence.MEDIUM


def test_the_first_cause_is_not_who_ran_out() -> None:
    """Ranks 2 and 3 run out of memory, but that of rank 1 rose before."""
    failures = [Failure(36.0, rank=2), Failure(36.2, rank=3)]
    more = {1: ramp(30, 3, 30), 2: step(34, 20)}
    *_, last = play(rising(40, more, failures=failures))
    assert (last.kind, last.ranks, last.failed) == (Kind.OOM, (1,), {2, 3})


def test_many_ranks_run_out_at_once() -> None:
    """Forty ranks fail within the uncertainty of the clocks, and no memory rose before."""
    failures = [Failure(30.2 + 0.00001 * r, rank=r) for r in range(40)]
    incident = only(play(rising(36, {}, of=40, failures=failures)))
    assert incident.common
    assert incident.ranks == tuple(range(40))
    assert incident.failed == set(range(40))


def test_a_failure_as_early_as_the_first_arrives_late() -> None:
    """Ranks 1 and 2 failed within the uncertainty of the clocks: a tie. Rank 0 failed later."""
    failures = [Failure(30, rank=1), Failure(30.001, rank=2), Failure(30.5, rank=0)]
    reports = play(rising(36, {}, failures=failures))
    assert (reports[0].ranks, reports[-1].ranks, reports[-1].victims) == ((1,), (1, 2), {0})


def test_the_first_of_two_failures_of_a_rank_counts() -> None:
    """1 runs out of memory, then 2, then 1 again, reported together: 1 was the first."""
    failures = [Failure(30.1, rank=1), Failure(30.3, rank=2), Failure(30.5, rank=1)]
    incident = only(play(rising(36, {}, failures=failures)))
    assert (incident.ranks, incident.victims, incident.failed) == ((1,), {2}, {1, 2})


def test_a_kill_is_about_host_memory() -> None:
    """The kernel kills in the cgroup of a rank whose GPU is full as well."""
    rows = [Row(0, level(79)), Row(0, plus(level(2), ramp(30, 2)), SeriesKind.HOST_USED)]
    failure = Failure(35, rank=0, device="", kind=MemoryEventKind.OOM_KILL)
    assert [one.on_host for one in last_of_each(play(Job(rows, 37, [failure])))] == [True, True]


# -- leaks ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_leaks")
def test_a_leak_is_called_one() -> None:
    """The floor of a saw-tooth rises slowly: reported for one rank, long before memory is short."""
    more = dict.fromkeys(range(3), saw(6, 0.9)) | {1: plus(saw(6, 0.9), ramp(20, 0.02))}
    incident = only(play(rising(200, more, of=3)))
    assert incident.leak
    assert incident.ranks == (1,)
    assert incident.rises[1].bytes_per_s == pytest.approx(0.02 * GIB, rel=0.3)


@pytest.mark.usefixtures("short_leaks")
def test_a_leak_of_all_ranks_is_common_though_some_windows_end_later() -> None:
    """All ranks leak alike; agents started one after the other, so their windows end apart."""
    leaking = plus(CALM, saw(6, 0.9), ramp(20, 0.02))
    rows = [Row(rank, leaking, sampler=Sampler(start=1.4 * rank)) for rank in range(4)]
    reports = play(Job(rows, 150))
    assert reports[0].leak
    assert reports[0].common


@pytest.mark.usefixtures("short_leaks")
def test_a_leak_that_stops_is_over() -> None:
    """The trend has not been seen for a while."""
    reports = play(rising(320, {1: ramp(20, 0.02, 3.2)}, of=2))
    assert [one.over for one in reports] == ["", "", "memory no longer rises"]


# -- the end of incidents ------------------------------------------------------------------------


def test_what_has_stood_still_is_over() -> None:
    """A level that lasts has become the usual one; what rises from there is another incident."""
    more = {1: plus(step(30, 34), step(360, 5))}
    assert ends(play(rising(370, more, of=2))) == [
        (Kind.MEMORY_SPIKE, ""),
        (Kind.MEMORY_SPIKE, "memory has not changed for 300 s"),
        (Kind.MEMORY_SPIKE, ""),
    ]


def test_a_rise_goes_on_through_dips_that_are_usual() -> None:
    """Memory is high for 4 s of every 16 s, as in a long step; the rise shows in these 4 s only."""

    def busy(t: Float64s) -> Float64s:
        return np.where(t % 16 < 4, 10.0 * GIB, 0.0)

    calm = plus(level(62), busy)
    rows = [Row(0, calm), Row(1, plus(calm, step(70, 6)))]
    assert ends(play(Job(rows, 130))) == [(Kind.MEMORY_SPIKE, "")]


def test_when_all_ranks_follow_the_first_is_not_certain() -> None:
    """An evaluation begins on all ranks within two seconds, and takes nearly all of the device."""
    late = (1.2, 0.3, 0.9, 2.0)
    rows = [
        Row(rank, plus(level(30), step(100 + by, 44)), kind=SeriesKind.TORCH_RESERVED)
        for rank, by in enumerate(late)
    ]
    reports = play(Job(rows, until=120))
    assert {one.ranks for one in reports} == {(1,)}
    assert reports[-1].victims == {0, 2, 3}
    assert reports[-1].confidence is Confidence.MEDIUM


class Read:
    """Series of two ranks that are read ten times a second, one batch a second."""

    def __init__(self, kind: SeriesKind = SeriesKind.HOST_USED, capacity: int = 64 * GIB) -> None:
        self.memory = Memory(POLICY)
        names = ("", "") if kind is SeriesKind.HOST_USED else ("GPU-0", "GPU-1")
        series = (SeriesInfo(rank, kind, name) for rank, name in enumerate(names))
        self.handles = [self.memory.series(info) for info in series]
        self.history = History(self.memory)
        self.capacity = capacity
        self.second = 0

    def run(self, until: int, gib: Callable[[int], float]) -> None:
        """Rank 0 stays at 1 GiB, rank 1 is at so many in each second."""
        while self.second < until:
            self.add([round(gib(self.second) * GIB)] * 10)

    def add(self, sizes: list[int]) -> None:
        times = self.second + np.arange(10) / 10
        observe(self.memory, self.handles, times, [GIB] * 10 + sizes, self.capacity)
        self.second += 1
        self.history.advance(at(self.second))


def test_a_process_that_is_replaced_has_no_past() -> None:
    """The rank's new process starts small, and its incident is over."""
    read = Read()
    read.run(27, lambda second: 2 + 4 * max(0, second - 20))
    read.memory.forget(1)
    read.history.advance(at(27))
    read.run(30, lambda second: 2)
    assert ends(read.history.versions) == [
        (Kind.MEMORY_SPIKE, ""),
        (Kind.MEMORY_SPIKE, "its processes were replaced"),
    ]


def test_moments_without_a_sample_are_not_within_the_band() -> None:
    """A batch has two ranks; one has no sample in the half second in which its memory rose."""
    read = Read()
    read.run(30, lambda second: 2)
    read.add([-1] * 5 + [60 * GIB] * 5)
    read.run(40, lambda second: 60)
    rise = only(read.history.versions).rises[1]
    assert seconds(rise.onset[0]) <= 29.9
    assert seconds(rise.onset[1]) == pytest.approx(30.5, abs=0.01)


def test_headroom_of_a_device_of_unknown_size_is_unknown() -> None:
    """Its memory rises until an allocation fails; no agent reports its capacity."""
    read = Read(SeriesKind.DEVICE_USED, capacity=0)
    read.run(30, lambda second: 2 + max(0, second - 20))
    event = MemoryEvent(1, MemoryEventKind.OOM, NodeNs(0), "GPU-1", GIB)
    read.memory.event(event, at(29.9), S // 1000, at(30))
    read.history.advance(at(31))
    assert ends(read.history.versions) == [(Kind.OOM, "")]
    rise = read.history.versions[0].rises[1]
    assert (rise.headroom_bytes, rise.exhausted_in_s) == (-1, None)
    assert rise.risen_bytes == pytest.approx(9 * GIB, rel=0.2)


# -- input ---------------------------------------------------------------------------------------


def test_series_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too many is turned away and counted, and its samples do no harm."""
    monkeypatch.setattr(attempt_memory, "MAX_SERIES", 1)
    memory = Memory(Policy())
    info = SeriesInfo(0, SeriesKind.HOST_USED)
    assert memory.series(info) == memory.series(info) == 0
    assert memory.series(replace(info, rank=1)) == -1
    assert memory.evicted == {"memory_series": 1}
    assert observe(memory, [-1], [0, 1, 2], [0, 1, 2]) == 0


def test_a_view_shows_the_newest_and_some_before() -> None:
    """Sorted by rank, with the highest value of every two seconds."""
    memory = Memory(Policy())
    later, earlier = (memory.series(SeriesInfo(rank, SeriesKind.HOST_USED)) for rank in (1, 0))
    for part in np.split(np.arange(70), 7):
        observe(memory, [later], part / 10, part * MIB)
        memory.advance(at(7))
    view = memory.view()
    assert [info.rank for info in view.series] == [0, 1]
    assert view.used.tolist() == [-1, 69 * MIB]
    assert view.capacity.tolist() == [0, 64 * GIB]
    assert view.recent[0].tolist() == [-1] * 16
    assert (view.recent[1, -4:] / MIB).tolist() == [19, 39, 59, 69]
    assert earlier != later
