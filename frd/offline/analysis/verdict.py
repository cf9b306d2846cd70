"""From rows and marks to findings: cut a snapshot, ask the engine, add what entries know.

A dump is a rank's last word: whatever time it was taken, nothing that it does not show happened
before. The engine is asked twice. The first time every wait counts, and the dumps are taken to be
those of a job that stopped: these are the candidates. The second time the waits that are known to
be young (`frd.offline.analysis.durations`) do not count, and the dumps are as old as they are known
to be. A candidate without a finding of the second kind is not proven: the job may have been
healthy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from frd.engine.findings import builder, text
from frd.engine.hangs.claims import collective_of
from frd.engine.hangs.diagnosis import Diagnosis, diagnose
from frd.engine.state.snapshot import Bools, GroupSnapshot, Snapshot, StallTable
from frd.flight.trace import Trace
from frd.forms import span_text
from frd.model import (
    UNKNOWN_SEQ,
    AlignedNs,
    Finding,
    FindingState,
    Kind,
    RankState,
)
from frd.offline.analysis.channels import channels_of
from frd.offline.analysis.clock_bounds import FAR
from frd.offline.analysis.clocks import Clocks
from frd.offline.analysis.durations import (
    STALL_AFTER_S,
    Taken,
    Waited,
    taken_of,
    waited_of,
    waiting_pairs,
)
from frd.offline.analysis.evidence import finding_of
from frd.offline.analysis.matching import Matched, facts_of
from frd.offline.analysis.rows import Rows
from frd.offline.analysis.watermarks import Marks

_LAST_WORD_NS = 3_600_000_000_000
"""How long after the latest moment a dump still speaks: longer than any threshold."""
_EXACT_S = 0.25
"""A shorter interval is shown as one number."""
_PLACES = 3
"""Ranks whose line is shown with a wait that is not proven."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """How long what a verdict rests on had waited when the dumps were taken, in seconds."""

    at_least_s: float
    at_most_s: float | None
    """None when nothing bounds it."""
    is_proven: bool
    """At least as long as the stall threshold."""
    is_before_timeout: bool = False
    """The dumps were taken before the op could have timed out: not by torch, but by a person who
    looked at a job that ran."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The engine's input, for further evidence."""

    snapshot: Snapshot
    findings: tuple[Finding, ...]
    waiting: tuple[Waiting, ...]
    """Parallel to `findings`."""
    unproven: tuple[str, ...]
    """What would be a finding if it had lasted, for people."""


def judge(
    rows: Rows,
    marks: Marks,
    found: Matched,
    clocks: Clocks,
    now: AlignedNs,
    *,
    stall_after_s: float = STALL_AFTER_S,
    earlier: Sequence[Trace] = (),
) -> Scene:
    """The findings of a trace, oldest first; `now` is its latest time.

    `earlier` are older dumps of the same job.
    """
    snapshot = _picture(rows, marks, found, clocks.offset_ns, now)
    stalls, taken = _stalls(rows, marks, snapshot), taken_of(rows, clocks)
    waited = waited_of(
        rows,
        marks,
        clocks,
        taken,
        snapshot,
        stalls,
        stall_after_s=stall_after_s,
        earlier=earlier,
    )
    verdicts = diagnose(snapshot, stalls, threshold_s=lambda group: 0.0)
    unproven: list[Diagnosis] = []
    if waited.is_young.any():
        candidates = verdicts
        timed = _as_old_as_known(snapshot, taken)
        verdicts = _proven(candidates, timed, stalls, ~waited.is_young, stall_after_s)
        unproven = [one for one in candidates if not _is_covered(one, verdicts)]
    waiting = tuple(_waiting(verdict, stalls, waited) for verdict in verdicts)
    return Scene(
        snapshot,
        tuple(
            finding_of(rows, snapshot, verdict, clocks, is_open=_is_open(verdict, lasted))
            for verdict, lasted in zip(verdicts, waiting, strict=True)
        ),
        waiting,
        tuple(_unproven_text(rows, snapshot, v, _waiting(v, stalls, waited)) for v in unproven),
    )


# -- what had lasted ---------------------------------------------------------------------------


def _as_old_as_known(snapshot: Snapshot, taken: Taken) -> Snapshot:
    """The snapshot with the times at which the dumps were taken, where these are known."""
    last_word = snapshot.now + _LAST_WORD_NS
    at = taken.rows(snapshot.rank.astype(np.int64))
    as_of = np.where(taken.latest[at] < FAR, taken.latest[at], last_word)
    return replace(snapshot, as_of=as_of, now=AlignedNs(int(as_of.max(initial=snapshot.now))))


def _proven(
    candidates: Sequence[Diagnosis],
    timed: Snapshot,
    stalls: StallTable,
    lasting: Bools,
    stall_after_s: float,
) -> list[Diagnosis]:
    """Verdicts that rest on waits that lasted, and candidates that need no time to be true."""
    timeless = [one for one in candidates if _is_timeless(one)]
    rows = StallTable(
        stalls.group[lasting], stalls.rank[lasting], stalls.seq[lasting], stalls.since[lasting]
    )
    lasted = diagnose(timed, rows, threshold_s=lambda group: stall_after_s, late_s=float("inf"))
    others = [one for one in lasted if not _is_timeless(one)]
    return sorted((*timeless, *others), key=lambda one: (one.since, one.instance))


def _is_timeless(verdict: Diagnosis) -> bool:
    """Wrong however young it is. Collectives that ranks entered in different orders are; sends and
    receives are posted ahead of what they wait for, so a circle of them may be a moment's."""
    if verdict.kind is Kind.ORDER:
        return all(stuck.seq != UNKNOWN_SEQ for stuck in verdict.stalled)
    return verdict.kind is Kind.MISMATCH


def _is_open(verdict: Diagnosis, waiting: Waiting) -> bool:
    """A running job may be healthy, and the length of its waits is unknown."""
    return not _is_timeless(verdict) and not waiting.is_proven and waiting.is_before_timeout


def _is_covered(candidate: Diagnosis, verdicts: Sequence[Diagnosis]) -> bool:
    """A finding is about some of its ranks."""
    mine = {*_named(candidate), *candidate.waiting}
    return any(mine & {*_named(one), *one.waiting, *one.victims} for one in verdicts)


def _named(verdict: Diagnosis) -> set[int]:
    return {blame.rank for blame in verdict.suspects}


def _waiting(verdict: Diagnosis, stalls: StallTable, waited: Waited) -> Waiting:
    """Of all that is stalled in it, the longest."""
    rows = np.zeros(len(stalls), np.bool_)
    for stuck in verdict.stalled:
        mine = (stalls.group == stuck.group) & (stalls.seq == stuck.seq)
        rows |= mine & (stalls.rank == stuck.rank) if stuck.rank >= 0 else mine
    if not rows.any():
        return Waiting(0.0, None, False)
    least, most = waited.at_least[rows], waited.at_most[rows]
    return Waiting(
        int(least.max()) / 1e9,
        None if most.max() >= FAR else int(most.max()) / 1e9,
        bool((least >= waited.patience[rows]).any()),
        bool((most < waited.timeout[rows]).all()),
    )


def _unproven_text(rows: Rows, snapshot: Snapshot, verdict: Diagnosis, waiting: Waiting) -> str:
    """``rank 0 had kept rank 1 waiting for 0.6 s when dumped (...); take another dump ...``."""
    named = sorted(_named(verdict))
    waiters = sorted({*verdict.waiting, *verdict.victims}.difference(named)) or verdict.waiting
    about = collective_of(snapshot, verdict)
    what = text.collective(about.op, about.seq, about.group)
    lasted = _lasted_text(waiting)
    if named:
        kept = f"{text.ranks(named)} had kept {text.ranks(waiters)} waiting for {lasted}"
    else:
        kept = f"{text.ranks(waiters)} had waited for {lasted}"
    activities = {rank: rows.trace.standing.get(rank) for rank in named[:_PLACES]}
    places = (
        f"rank {rank} was at {text.place(one.stack[0], ' in ')}"
        + (f", {one.doing}" if one.doing else "")
        for rank, one in activities.items()
        if one is not None and one.stack
    )
    words = [f"in {what}", *places]
    return f"{kept} when dumped ({'; '.join(words)}); take another dump in a minute"


def _lasted_text(waiting: Waiting) -> str:
    least, most = waiting.at_least_s, waiting.at_most_s
    if most is None:
        return f"at least {least:.1f} s"
    return f"{least:.1f} s" if most - least < _EXACT_S else f"{least:.1f} to {most:.1f} s"


# -- what the engine looks at ------------------------------------------------------------------


def _picture(
    rows: Rows, marks: Marks, found: Matched, offset_ns: Mapping[int, int], now: AlignedNs
) -> Snapshot:
    ranks = np.fromiter(rows.ranks, np.int32, len(rows.ranks))
    count = len(ranks)
    return Snapshot(
        key=rows.trace.key,
        now=now,
        world_size=rows.trace.world_size,
        rank=ranks,
        as_of=np.full(count, now + _LAST_WORD_NS, np.int64),
        state=[RankState.LIVE] * count,
        state_since=np.zeros(count, np.int64),
        detail=[""] * count,
        connected=np.ones(count, np.bool_),
        gap=np.zeros(count, np.bool_),
        info={r: one.trace.info for r, one in rows.ranks.items() if one.trace.info is not None},
        groups=[
            GroupSnapshot(
                info=series.info,
                members=series.members,
                enqueued=marks.enqueued[series.pairs],
                started=marks.started[series.pairs],
                completed=marks.completed[series.pairs],
                head_since=marks.head_since[series.pairs],
                ops=_ops(rows, found, of),
                hidden=marks.hidden[series.pairs],
            )
            for of, series in enumerate(rows.series)
        ],
        channels=channels_of(rows, offset_ns),
        mismatches=facts_of(rows, found, marks),
    )


def _ops(rows: Rows, found: Matched, series: int) -> Callable[[int], str]:
    first, end = np.searchsorted(found.series, [series, series + 1]).tolist()

    def op(seq: int) -> str:
        at = first + int(np.searchsorted(found.seq[first:end], seq))
        known = at < end and found.seq[at] == seq
        return rows.signatures[int(found.signature[at])].op if known else ""

    return op


def _stalls(rows: Rows, marks: Marks, snapshot: Snapshot) -> StallTable:
    pair = waiting_pairs(rows, marks)
    p2p = snapshot.channels
    return StallTable(
        np.concatenate((rows.pair_series[pair], p2p.group)),
        np.concatenate((rows.pair_rank[pair], p2p.rank)),
        np.concatenate((marks.completed[pair] + 1, np.full(len(p2p.rank), UNKNOWN_SEQ))),
        np.concatenate((marks.head_since[pair], p2p.since)),
    )


def contradicted(rows: Rows, clocks: Clocks, now: AlignedNs) -> Iterator[Finding]:
    """A finding of each clock that cannot be what it says."""
    key = rows.trace.key
    for domain in clocks.domains:
        if not domain.off_by_ns:
            continue
        node = text.clean(domain.name)
        whose = "" if node == text.ranks(domain.ranks) else f" ({text.ranks(domain.ranks)})"
        yield Finding(
            id=builder.finding_id(key, Kind.CLOCK_UNSYNCHRONIZED, domain.name, now),
            kind=Kind.CLOCK_UNSYNCHRONIZED,
            state=FindingState.OPEN,
            job=key.job,
            attempt=key.attempt,
            opened_at=now,
            summary=f"the clock of {node}{whose} is wrong or has stepped, by "
            f"{span_text(domain.off_by_ns)} or more as its collectives show, so times of its ranks "
            "are not compared with those of others: check its time synchronization (chrony, PTP)",
        )
