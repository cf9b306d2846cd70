"""Short recordings of memory with a known answer, as people have them.

Thirty to a few hundred samples, ten a second or one, of a few ranks. The truth of each is which
rank's memory rose first, whatever became of it. All curves are seeded; a prefix of a recording has
the same samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from frd.model import SeriesKind
from tests.world.memory import (
    GIB,
    Curve,
    Job,
    Row,
    Sampler,
    dips,
    level,
    noise,
    plus,
    ramp,
    saw,
    stairs,
    step,
)

CALM = level(20)


@dataclass(frozen=True)
class Answer:
    first: tuple[int, ...] = ()
    """The ranks that must be named, exactly; none if all rose together or no memory rose."""
    common: bool = False
    """The first rise is that of (nearly) all ranks."""
    starts: bool = False
    """Before it all ranks rise together, because the job starts."""
    is_open: bool = False
    """There is a rise, and nothing may be said of whether it was first."""
    rises: bool = True
    is_high: bool = False
    """The confidence is high; in any other recording it must not be."""
    fell_back: bool = False


@dataclass(frozen=True)
class Recording:
    job: Job
    answer: Answer


def recording(
    *curves: Curve,
    until: float,
    answer: Answer,
    period: float = 0.1,
    kind: SeriesKind = SeriesKind.DEVICE_USED,
    **samplers: Sampler,
) -> Recording:
    """A rank for each curve; samplers are out of step, as samplers are. ``r2=Sampler(..)``."""
    rows = [
        Row(
            rank,
            curve,
            kind,
            sampler=samplers.get(f"r{rank}", Sampler(period=period, phase=_phase(rank) * period)),
        )
        for rank, curve in enumerate(curves)
    ]
    return Recording(Job(rows, until), answer)


def _phase(rank: int) -> float:
    return (rank * 0.37) % 1


def named(*ranks: int, high: bool = True, starts: bool = False, back: bool = False) -> Answer:
    return Answer(ranks, is_high=high, starts=starts, fell_back=back)


def quiet(mib: float, count: int, seed: int = 0) -> Sequence[Curve]:
    return [plus(CALM, noise(mib, seed * 100 + rank)) for rank in range(count)]


def one_of(curves: Sequence[Curve], **changes: Curve) -> list[Curve]:
    """``r2=curve`` is added to rank 2."""
    return [
        plus(curve, changes[f"r{rank}"]) if f"r{rank}" in changes else curve
        for rank, curve in enumerate(curves)
    ]


START = ramp(0, 5, 10)
"""Two seconds to ten GiB."""
NONE = Answer(rises=False)
TOGETHER = Answer(common=True)
FLAT = [CALM] * 4
NOISY = quiet(8, 4, seed=1)
TEETH = [plus(CALM, saw(3, 0.7 + 0.13 * rank)) for rank in range(4)]


RECORDINGS: dict[str, Recording] = {
    "half a GiB, a second before its peer": recording(
        plus(CALM, step(2, 0.5)), plus(CALM, step(3, 0.5)), until=4, answer=named(0, high=False)
    ),
    "half a GiB, and no other rises": recording(
        *one_of(FLAT, r2=step(2, 0.5)), until=4, answer=named(2)
    ),
    "thirty samples, a step at the twentieth": recording(
        *one_of(NOISY, r1=step(2, 1)), until=3, answer=named(1)
    ),
    "ten samples, a step at the seventh": recording(
        *one_of(FLAT, r1=step(0.65, 1)), until=1, answer=named(1, high=False)
    ),
    "a climb with dips of a byte": recording(
        *one_of(FLAT, r2=plus(ramp(10, 0.5), dips(2, 1))), until=20, answer=named(2)
    ),
    "a climb with dips of half a GiB": recording(
        *one_of(FLAT, r2=plus(ramp(10, 1), dips(3, GIB / 2))), until=20, answer=named(2, high=False)
    ),
    "a start-up ramp, and a spike at 5 s": recording(
        *one_of([plus(level(1), START)] * 4, r1=step(5, 4)),
        until=9,
        answer=named(1, starts=True),
    ),
    "ranks start one after the other, and a spike at 5 s": recording(
        *one_of([plus(level(1), ramp(0.3 * r, 6, 12)) for r in range(4)], r3=step(5, 4)),
        until=9,
        answer=named(3, starts=True),
    ),
    "a start-up ramp that a spike at 5 s interrupts": recording(
        *one_of([plus(level(1), ramp(0, 0.4))] * 4, r1=ramp(5, 8, 12)),
        until=9,
        answer=named(1, starts=True, high=False),
    ),
    "a start-up with an overshoot, and a spike below it": recording(
        *one_of([plus(level(1), START, step(0.5, 6, end=2))] * 4, r2=step(6, 2)),
        until=10,
        answer=named(2, starts=True),
    ),
    "a staircase": recording(
        *one_of(FLAT, r3=stairs(6, 0.25, 1.5), r0=ramp(15, 3)), until=20, answer=named(3)
    ),
    "a staircase of steps that are too small alone": recording(
        *one_of(FLAT, r3=stairs(6, 40 / 1024, 1.1)), until=20, answer=named(3)
    ),
    "an earlier but smaller rise": recording(
        *one_of(NOISY, r2=step(8, 0.2), r0=ramp(12, 5)), until=18, answer=named(2)
    ),
    "a slow ramp before a jump": recording(
        *one_of(FLAT, r1=ramp(10, 0.05), r0=step(11, 3)), until=20, answer=named(1)
    ),
    "a leak that had hardly begun before a jump": recording(
        *one_of(FLAT, r1=ramp(10, 0.008), r0=step(12, 3)),
        until=30,
        answer=named(0, 1, high=False),
    ),
    "a leak, one sample a second": recording(
        *one_of(FLAT, r2=ramp(200, 0.002)), until=600, period=1, answer=named(2)
    ),
    "a climb, one sample a second": recording(
        *one_of(NOISY, r0=ramp(30, 0.1)), until=60, period=1, answer=named(0)
    ),
    "nothing": recording(*FLAT, until=30, answer=NONE),
    "noise": recording(*quiet(20, 4, seed=2), until=30, answer=NONE),
    "much noise": recording(*quiet(200, 4, seed=3), until=30, answer=NONE),
    "steps of training, each rank at its own pace": recording(*TEETH, until=30, answer=NONE),
    "a spike above steps of training": recording(
        *one_of(TEETH, r3=step(20, 9)), until=30, answer=named(3)
    ),
    "a spike above noise": recording(
        *one_of(quiet(60, 4, seed=4), r1=step(20, 2)), until=30, answer=named(1)
    ),
    "one rank has steps, another rises": recording(
        *one_of([CALM, TEETH[0], CALM, CALM], r2=step(15, 1)), until=25, answer=named(2)
    ),
    "all ranks together": recording(*[plus(CALM, step(5, 2))] * 4, until=10, answer=TOGETHER),
    "all ranks together, with jitter": recording(
        *[plus(CALM, step(5 + 0.02 * rank, 2)) for rank in range(8)], until=10, answer=TOGETHER
    ),
    "all ranks leak together": recording(
        *[plus(CALM, noise(5, rank), ramp(5, 0.05 + 0.002 * rank)) for rank in range(4)],
        until=30,
        answer=TOGETHER,
    ),
    "all ranks together, then one alone": recording(
        *one_of([plus(CALM, step(5, 2))] * 4, r1=step(12, 3)),
        until=18,
        answer=replace(named(1), starts=True),
    ),
    "one rank a second before all others": recording(
        *one_of([plus(CALM, step(9, 2))] * 4, r2=step(8, 2)),
        until=14,
        answer=named(2, high=False),
    ),
    "a spike that falls back, then another elsewhere": recording(
        *one_of(NOISY, r1=step(5, 4, end=7), r2=step(12, 9)), until=18, answer=named(1, back=True)
    ),
    "a spike of one sample": recording(
        *one_of(FLAT, r1=step(10, 0.5, end=10.1)), until=20, answer=named(1, back=True)
    ),
    "a reading of nothing, then a rise": recording(
        *one_of(FLAT, r1=step(5, -20, end=5.1), r2=step(12, 0.5)), until=18, answer=named(2)
    ),
    "memory is released, and later rises": recording(
        *one_of(FLAT, r1=plus(step(0, 4, end=8), step(15, 1))), until=20, answer=named(1)
    ),
    "two ranks between the same samples": recording(
        *one_of(FLAT, r0=step(10.02, 2), r1=step(10.03, 2)),
        until=15,
        answer=named(0, 1, high=False),
    ),
    "clocks of two hosts": recording(
        *one_of(FLAT, r0=step(10, 2), r2=step(10.8, 2)),
        until=20,
        answer=named(0, 2, high=False),
        r2=Sampler(clock_error=0.3),
    ),
    "the sampler of another stalled over the onset": recording(
        *one_of(FLAT, r1=step(10, 2), r2=step(9, 2)),
        until=18,
        answer=named(1, 2, high=False),
        r2=Sampler(stall=(8, 12)),
    ),
    "the samples of another end before the onset": recording(
        *one_of(FLAT, r1=step(10, 2)),
        until=18,
        answer=named(1, high=False),
        r3=Sampler(stall=(7, 99)),
    ),
    "only the allocator is sampled": recording(
        *one_of(NOISY, r2=ramp(8, 1)), until=15, answer=named(2), kind=SeriesKind.TORCH_RESERVED
    ),
    "host memory": recording(
        *one_of(NOISY, r2=ramp(8, 1)), until=15, answer=named(2), kind=SeriesKind.HOST_USED
    ),
    "sixty-four ranks, one of which rises": recording(
        *one_of(quiet(8, 64, seed=5), r37=ramp(10, 2)), until=15, answer=named(37)
    ),
    "a job of one rank": recording(plus(CALM, ramp(10, 1)), until=15, answer=named(0)),
    "rising from the first sample on": recording(
        *one_of(FLAT, r1=ramp(0, 1)), until=10, answer=Answer(is_open=True)
    ),
    "a jump in the last sample": recording(
        *one_of(FLAT, r3=step(9.905, 5)), until=10, answer=Answer(is_open=True)
    ),
}


def missing_rank() -> Recording:
    """Rank 2 of four is in no file, and rank 1 rises."""
    whole = recording(*one_of(NOISY, r1=step(8, 2)), until=12, answer=named(1, high=False))
    rows = [row for row in whole.job.rows if row.rank != 2]
    return replace(whole, job=replace(whole.job, rows=rows))


RECORDINGS["a rank is missing"] = missing_rank()
