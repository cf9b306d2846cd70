"""Timelines of findings of real engines, from what the engine remembers."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frd.engine.views import AttemptView, MemoryView
from frd.model import Finding, Flags, Kind, SeriesInfo, SeriesKind
from frd.service.timelines.drawing import drawn, lanes_of, roles_of
from frd.service.timelines.timeline import MOMENT_NS
from tests.world import observe
from tests.world.job import Job, hanging
from tests.world.timelines import S
from tests.world.timelines import finding as made


def view_of(job: Job) -> AttemptView:
    (view,) = job.engine.status_view(job.now).attempts
    return view


def test_a_hang() -> None:
    """Rank 2 does not join op 1: it is the first lane, with a gap; the others have an open bar."""
    job = hanging(8)
    drawing = drawn(job.only(), view_of(job), job.now, None)
    assert [(one.rank, one.node, one.role) for one in drawing.lanes] == [
        (2, "node1", "suspect"),
        (0, "node0", "waiting"),
        (1, "node0", "waiting"),
        (3, "node1", "waiting"),
    ]
    assert [(bar.rank, bar.seq, bar.ended > 0) for bar in drawing.bars] == [
        (0, 0, True), (0, 1, False), (1, 0, True), (1, 1, False), (2, 0, True),
        (3, 0, True), (3, 1, False),
    ]  # fmt: skip
    (gap,) = drawing.gaps
    began = next(bar.enqueued for bar in drawing.bars if bar.seq == 1)
    assert (gap.rank, gap.seq, gap.op, gap.since, gap.until) == (2, 1, "all_reduce", began, None)
    assert drawing.groups == {gap.group: "dp"}
    assert (drawing.at, drawing.all_ranks, drawing.has_unknown_ends) == (job.now, 4, False)
    assert (drawing.curves, drawing.lateness) == ((), ())


# -- lanes -------------------------------------------------------------------------------------

RANKS = st.lists(st.integers(0, 60), max_size=30, unique=True)


def test_those_that_matter_most_come_first() -> None:
    """Sixteen lanes of a thousand ranks: suspects, the witness, some of the missing, then waiting
    ones at even distances, the first and the last of them included."""
    of = made(500, 7, missing=(500, 7, *range(100, 120)), waiting=range(200, 301), witness=250)
    chosen = lanes_of(of, range(1000), 16)
    assert chosen[:3] == [500, 7, 250]
    assert len(chosen) == len({*chosen}) == 16
    missing = [rank for rank in chosen if 100 <= rank < 120]
    assert (len(missing), missing[-1]) == (3, 119)
    waiting = [rank for rank in chosen[3:] if 200 <= rank <= 300]
    assert waiting[:1] + waiting[-1:] == [200, 300]
    steps = [b - a for a, b in pairwise(waiting)]
    assert max(steps) - min(steps) <= 2


def test_other_ranks_fill_the_lanes() -> None:
    """Rank 3 is the only one that is involved: others are shown for comparison."""
    assert lanes_of(made(3), range(8), 4) == [3, 0, 4, 7]


def test_more_suspects_than_have_room() -> None:
    """Forty suspects of four lanes, and of sixteen: others have their lanes too."""
    of = made(*range(40), waiting=range(40, 80))
    assert lanes_of(of, range(80), 4) == [0, 1, 2, 3]
    chosen = lanes_of(of, range(80), 16)
    assert chosen[:8] == [*range(8)]
    assert [rank for rank in chosen if rank >= 40] == chosen[8:]


@given(RANKS, RANKS, RANKS, RANKS, st.integers(0, 60), st.integers(1, 20))
def test_lanes_are_bounded_and_of_known_ranks(
    ranks: list[int], suspects: list[int], missing: list[int], waiting: list[int], who: int, n: int
) -> None:
    """Whatever a finding says: at most so many lanes, each of a known rank, none twice, and none
    is left free that a rank could have."""
    of = made(*suspects, missing=missing, waiting=waiting, witness=who)
    chosen = lanes_of(of, sorted(ranks), n)
    assert {*chosen} <= {*ranks}
    assert len({*chosen}) == len(chosen) == min(n, len(ranks))


def test_the_role_of_a_rank() -> None:
    """A rank has the role that says most: a suspect that is missing is a suspect."""
    of = made(1, missing=(1, 2), waiting=(3, 4), victims=(5,), unknown=(6, 4), witness=4)
    assert roles_of(of, range(8)) == {
        0: "other",
        1: "suspect",
        2: "member",
        3: "waiting",
        4: "witness",
        5: "waiting",
        6: "member",
        7: "other",
    }
    assert roles_of(of, [3]) == {3: "waiting"}
    assert roles_of(made(), [0]) == {0: "other"}


# -- a straggler -------------------------------------------------------------------------------


def straggling(ops: int = 20) -> tuple[Finding, Job]:
    """Rank 3 enqueues each op 300 ms after ranks 0 to 2, which do so a millisecond apart."""
    job = Job(4).group("dp", range(4))
    for seq in range(ops):
        for rank in range(4):
            late = 300_000_000 if rank == 3 else rank * 1_000_000
            observe.entries(
                job.attempt, rank, job.handles["dp"], seq, Flags.JOINED | Flags.COMPLETED,
                created=job.now + seq * S + late, now=job.now,
            )  # fmt: skip
    job.now = type(job.now)(job.now + (ops + 1) * S)
    return made(3, kind=Kind.STRAGGLER, victims=(0, 1, 2)), job


def test_how_late_a_straggler_is() -> None:
    """Of each op: when its first rank enqueued it, and how much later the suspect and some others
    did."""
    of, job = straggling()
    drawing = drawn(of, view_of(job), job.now, None)
    by_rank: dict[int, set[int]] = {}
    for one in drawing.lateness:
        by_rank.setdefault(one.rank, set()).add(one.late_ns)
    assert by_rank == {0: {0}, 1: {1_000_000}, 2: {2_000_000}, 3: {300_000_000}}
    assert len(drawing.lateness) == 4 * 20


@pytest.mark.parametrize("victims", [(), (77,)])
def test_a_straggler_without_peers(victims: tuple[int, ...]) -> None:
    """No other rank is known that one could compare it with."""
    of, job = straggling()
    of = dataclasses.replace(of, victims=victims)
    assert drawn(of, view_of(job), job.now, None).lateness == ()


# -- memory ------------------------------------------------------------------------------------


def with_memory(*series: SeriesInfo) -> AttemptView:
    """Series whose last three values are 1, unknown and 3, one each two seconds."""
    view = view_of(hanging(8))
    recent = np.tile(np.array([1, -1, 3]), (len(series), 1))
    used = np.full(len(series), 3)
    last = np.full(len(series), view.rank_columns.as_of.max())
    memory = MemoryView(series, used, used * 9, recent, 2.0, last - 9 * S // 4, last)
    return dataclasses.replace(view, memory=memory)


def test_memory_of_suspects_and_some_others() -> None:
    """All series of the suspect; of others those of the same kinds, but not those of a cgroup,
    which ranks share."""
    host, cgroup, device = SeriesKind.HOST_USED, SeriesKind.CGROUP_USED, SeriesKind.DEVICE_USED
    view = with_memory(
        *(SeriesInfo(0, host), SeriesInfo(0, cgroup), SeriesInfo(1, device, "GPU-1")),
        *(SeriesInfo(2, host), SeriesInfo(2, cgroup), SeriesInfo(3, host)),
    )
    of = made(2, kind=Kind.MEMORY_SPIKE, victims=(0, 1))
    curves = drawn(of, view, view.rank_columns.as_of.max(), None).curves
    assert [(one.rank, one.kind) for one in curves] == [
        (2, "host_used"), (2, "cgroup_used"), (0, "host_used"), (3, "host_used"),
    ]  # fmt: skip
    last = int(view.rank_columns.as_of.max())
    assert curves[0].values == {(last - 9 * S // 4) // MOMENT_NS: 1, last // MOMENT_NS: 3}
    assert curves[0].capacity == 27
    assert drawn(made(2), view, 1, None).curves == ()  # of a hang


def test_no_memory_is_known() -> None:
    """An allocation failed, and no agent reports memory: nothing to draw, and no fault."""
    view = view_of(hanging(8))
    assert drawn(made(2, kind=Kind.OOM), view, 1, None).curves == ()


def test_memory_is_bounded() -> None:
    """A suspect with a hundred devices: a few curves."""
    series = [SeriesInfo(2, SeriesKind.DEVICE_USED, f"GPU-{n}") for n in range(100)]
    view = with_memory(*series)
    assert len(drawn(made(2, kind=Kind.OOM), view, 1, None).curves) == 16
