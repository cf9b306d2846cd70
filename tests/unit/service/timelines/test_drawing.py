"""Timelines of findings of real engines, from what the engine remembers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from frd.engine.views import AttemptView, MemoryView
from frd.model import Finding, Flags, Kind, SeriesInfo, SeriesKind
from frd.service.timelines.drawing import drawn
from frd.service.timelines.timeline import MOMENT_NS
from tests.world import observe
from tests.world.job import Job, hanging
from tests.world.timelines import S
from tests.world.timelines import finding as made
from tests.world.views import attempt_view, rank_view


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


def test_lanes_of_the_ranks_that_are_asked_for() -> None:
    """Suspects first, then by rank; ranks that the job does not have are left out."""
    job = hanging(8)
    drawing = drawn(job.only(), view_of(job), job.now, (3, 77, 2, 0))
    assert [one.rank for one in drawing.lanes] == [2, 0, 3]
    assert {bar.rank for bar in drawing.bars} == {0, 2, 3}


def test_a_view_without_a_history() -> None:
    """It was not made by an engine: no lanes, and no fault."""
    view = attempt_view([rank_view(0), rank_view(1)])
    drawing = drawn(made(0), view, 5, None)
    assert (drawing.lanes, drawing.all_ranks, drawing.at) == ((), 2, 5)


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
