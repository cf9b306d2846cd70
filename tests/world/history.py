"""The last ops of an attempt as values with seconds, and what tests read of its group map."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from frd.engine.attempt import Attempt
from frd.engine.clocks.alignment import Alignment
from frd.engine.views import CELL_STATES, GroupMap, History, RecentOps
from frd.model import Flags, Signature
from tests.world import observe
from tests.world.attempt import Job, S, at

BROADCAST = Signature("gloo", "broadcast", ((4,),), ((4,),), ("Float",), ("Float",))


class Op(NamedTuple):
    """Times in seconds of `tests.world.attempt.at`; None where the column has 0."""

    rank: int
    seq: int
    op: str
    enqueued: float | None
    started: float | None
    ended_from: float | None
    ended: float | None
    failed: bool


class Missing(NamedTuple):
    rank: int
    group: str
    seq: int
    op: str
    since: float | None


def history(attempt: Attempt, now: float) -> History:
    """As of now, up to which its agents have reported all ranks."""
    observe.watermarks(attempt, [], attempt.tables.ranks.sorted().tolist(), at(now))
    found = attempt.view(at(now)).history
    assert found is not None
    return found


def recent(job: Job, now: float, ranks: Collection[int] = range(8), most: int = 32) -> RecentOps:
    return history(job.attempt, now).ops(ranks, most)


def listed(ops: RecentOps) -> list[Op]:
    """In the order of the columns."""
    columns = (ops.rank, ops.seq, ops.op, ops.enqueued, ops.started, ops.ended_from, ops.ended)
    return [
        Op(
            rank,
            seq,
            _name(ops, op),
            _seconds(enqueued),
            _seconds(started),
            _seconds(ended_from),
            _seconds(end),
            failed,
        )
        for rank, seq, op, enqueued, started, ended_from, end, failed in zip(
            *(column.tolist() for column in (*columns, ops.failed)), strict=True
        )
    ]


def missing(ops: RecentOps) -> list[Missing]:
    of = ops.missing
    columns = (of.rank, of.group, of.seq, of.op, of.since)
    return [
        Missing(rank, ops.groups[group].label, seq, _name(ops, op), _seconds(since))
        for rank, group, seq, op, since in zip(*(c.tolist() for c in columns), strict=True)
    ]


def cells(of: GroupMap) -> dict[str, str]:
    """By label: the states of all ranks."""
    rows = (" ".join(CELL_STATES[code] for code in row) for row in of.cells.tolist())
    return dict(zip(of.labels, rows, strict=True))


def ended(job: Job, rank: int, seq: int, flags: int, *, created: float, now: float) -> None:
    """The end of an op, of which the recorder keeps no time."""
    observe.entries(
        job.attempt, rank, job.group, seq, flags,
        signature=observe.ALL_REDUCE, created=at(created), now=at(now),
    )  # fmt: skip


def joined(job: Job, rank: int, seq: int, created: float, signature: Signature) -> None:
    observe.entries(
        job.attempt, rank, job.group, seq, Flags.JOINED,
        signature=signature, created=at(created), now=at(created),
    )  # fmt: skip


def line(behind_s: float, rate: float = 0.0) -> Alignment:
    """The line of a clock that is so far behind aligned time at second 0."""
    return Alignment("", at(0), at(0) - round(behind_s * S), at(0), rate, 0)


def _name(ops: RecentOps, op: int) -> str:
    return ops.ops[op] if op >= 0 else ""


def _seconds(ns: int) -> float | None:
    return round((ns - at(0)) / S, 6) if ns else None
