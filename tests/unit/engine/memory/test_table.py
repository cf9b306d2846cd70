"""Samples of many nodes given as a table are the same samples."""

from __future__ import annotations

import numpy as np

from frd.engine.memory import Memory
from frd.engine.memory.incident import MemoryIncident
from frd.model import Int64s, MemoryColumns
from tests.world.memory import (
    GIB,
    MIB,
    History,
    Job,
    Row,
    S,
    Sampler,
    at,
    level,
    noise,
    play,
    plus,
    ramp,
)

READ_NS = MIB // 1000
CALM = level(40)
JOB = Job(
    [
        Row(0, plus(CALM, noise(30, 1))),
        Row(1, plus(CALM, ramp(30, 2)), sampler=Sampler(period=0.13, phase=0.05)),
        Row(2, plus(CALM, ramp(33, 9)), sampler=Sampler(stall=(20, 21.5))),
        Row(3, CALM, sampler=Sampler(start=3)),
    ],
    45,
    ticks=1,
)


def by_table(job: Job) -> list[MemoryIncident]:
    memory = Memory(job.policy)
    history = History(memory)
    rows = np.array([memory.series(row.info) for row in job.rows], np.int32)
    capacity = np.full(len(rows), 80 * GIB, np.int64)
    for second in range(1, int(job.until) + 3):
        begin, end, values = _table(job, second)
        assert memory.observe_table(MemoryColumns(rows, capacity, begin, end, values)) == 0
        history.advance(at(second))
    return history.versions


def _table(job: Job, second: int) -> tuple[Int64s, Int64s, Int64s]:
    """What every row read within a second; times stand still where one has no more."""
    begin = np.zeros((len(job.rows), 12), np.int64)
    end, values = begin.copy(), begin - 1
    for number, row in enumerate(job.rows):
        times = row.sampler.times(job.until)
        mine = slice(*times.searchsorted([second - 1, second]).tolist())
        count = mine.stop - mine.start
        if count:
            read = at(0) + np.round(times[mine] * S).astype(np.int64)
            begin[number], end[number] = read[-1], read[-1] + READ_NS
            begin[number, :count], end[number, :count] = read, read + READ_NS
            values[number, :count] = row.curve(times).clip(0, row.capacity).astype(np.int64)[mine]
    return begin, end, values


def test_a_table_says_what_batches_say() -> None:
    """Each rank samples at its own moments, one late, one with a gap: the same incidents."""

    def found(versions: list[MemoryIncident]) -> list[object]:
        return [(one.number, one.over, one.ranks, one.victims, one.limit) for one in versions]

    expected = found(play(JOB))
    assert expected
    assert found(by_table(JOB)) == expected


def test_a_table_refuses_what_cannot_be() -> None:
    """Values beyond sense, ends before beginnings, moments that do not rise; the rest is taken."""
    memory = Memory(JOB.policy)
    rows = np.array([memory.series(JOB.rows[0].info), -1], np.int32)
    begin = np.array([[10, 20, 20, 30, 40], [1, 2, 3, 4, 5]]) * S
    end = begin + np.array([[1, 1, 1, -1, 1], [1] * 5])
    values = np.array([[GIB, -7, GIB, GIB, 999 * GIB], [GIB] * 5])
    assert (
        memory.observe_table(MemoryColumns(rows, np.array([80 * GIB, 0]), begin, end, values)) == 4
    )
    assert memory.view().used.tolist() == [GIB]
