"""From rows and watermarks to findings: build a snapshot, ask the engine, add evidence of entries.

A dump is complete up to the moment at which it was taken: an op that it does not show had not
happened. The engine runs twice. The first time every wait counts, as if the dumps were from a job
that has stopped: the result is the candidates. The second time, waits that are known to be young
(`frd.offline.analysis.durations`) do not count, and each dump has its known time. A candidate that
the second run does not confirm is not proven: the job may have been healthy.

P2P ops in flight are by channel, with peers as global ranks. `frd.flight.progress` decides which
ops are in flight. If the recorder names no peer, as torchcomms does not, the op counts as a receive
from any source: the rank is known to be busy, and no peer is blamed for it. The same holds for an
op before an entry that cannot be read: that one may be the end of its batch. How many ops of a
channel came before is known if no record is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from frd.engine.clocks.alignment import RankClocks
from frd.engine.findings import text
from frd.engine.findings.attachments import shows_place
from frd.engine.hangs.diagnosis import Diagnosis, diagnose
from frd.engine.state.snapshot import (
    ANY_SEQ,
    ChannelSnapshot,
    PairColumns,
    Snapshot,
    StallTable,
)
from frd.flight.entry import Name
from frd.flight.progress import p2p_in_flight, p2p_runs, posted_before
from frd.flight.trace import Trace
from frd.model import (
    UNKNOWN_SEQ,
    AlignedNs,
    Bools,
    Finding,
    Int64s,
    Kind,
    RankState,
    Reason,
)
from frd.offline.analysis.clocks import FAR, Clocks
from frd.offline.analysis.durations import (
    DumpTimes,
    WaitDurations,
    wait_durations_of,
    waiting_pairs,
)
from frd.offline.analysis.evidence import finding_of
from frd.offline.analysis.matching import MatchedCollectives, facts_of
from frd.offline.analysis.rows import RankRows, Rows
from frd.offline.analysis.watermarks import PairWatermarks

_VALID_NS = 3_600_000_000_000
"""How long a dump stays valid after the latest moment of the trace: longer than any threshold."""
_EXACT_S = 0.25
"""A shorter interval is shown as one number."""
_PLACES = 3
"""Ranks whose line is shown with a wait that is not proven."""
_ANY_SOURCE = -1


@dataclass(frozen=True, slots=True)
class Waiting:
    """How long the ops behind a finding had waited when the dumps were taken, in seconds."""

    at_least_s: float
    at_most_s: float | None
    """None when nothing bounds it."""
    is_proven: bool
    """At least as long as the stall threshold."""
    is_before_timeout: bool = False
    """The dumps were taken before the op could have timed out, so not by torch at the timeout: the
    job was running."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings of a trace, and the snapshot that the engine judged."""

    snapshot: Snapshot
    findings: tuple[Finding, ...]
    waiting: tuple[Waiting, ...]
    """Parallel to `findings`."""
    unproven: tuple[str, ...]
    """One sentence for each candidate that is not proven, and for each backend that hides waits."""


def judge(
    rows: Rows,
    watermarks: PairWatermarks,
    matched: MatchedCollectives,
    clocks: Clocks,
    dump_times: DumpTimes,
    *,
    stall_after_s: float,
    earlier: Sequence[Trace],
) -> Verdict:
    """The findings of a trace, oldest first. `earlier` are older dumps of the same job."""
    snapshot = _snapshot(rows, watermarks, matched, clocks.offset_ns, dump_times.known_at)
    stalls = _stalls(rows, watermarks, snapshot)
    durations = wait_durations_of(
        rows,
        watermarks,
        clocks,
        dump_times,
        snapshot,
        stalls,
        stall_after_s=stall_after_s,
        earlier=earlier,
    )
    diagnoses = diagnose(snapshot, stalls)
    unproven: list[Diagnosis] = []
    if durations.is_young.any():
        candidates = diagnoses
        timed = _as_old_as_known(snapshot, dump_times, stall_after_s)
        diagnoses = _proven(candidates, timed, stalls, ~durations.is_young)
        unproven = [one for one in candidates if not _is_confirmed(one, diagnoses)]
    waiting = tuple(_waiting(diagnosis, stalls, durations) for diagnosis in diagnoses)
    return Verdict(
        snapshot,
        tuple(
            finding_of(rows, snapshot, diagnosis, clocks, is_open=_is_open(rows, diagnosis, lasted))
            for diagnosis, lasted in zip(diagnoses, waiting, strict=True)
        ),
        waiting,
        (
            *(_unproven_text(rows, v, _waiting(v, stalls, durations)) for v in unproven),
            *_unseen_texts(rows, [*diagnoses, *unproven]),
        ),
    )


# -- which waits lasted ---------------------------------------------------------------------------


def _as_old_as_known(snapshot: Snapshot, dump_times: DumpTimes, stall_after_s: float) -> Snapshot:
    """The snapshot with the times at which the dumps were taken, where these are known, and with
    this stall threshold."""
    valid_until = snapshot.now + _VALID_NS
    at = dump_times.rows(snapshot.rank.astype(np.int64))
    as_of = np.where(dump_times.latest[at] < FAR, dump_times.latest[at], valid_until)
    now = AlignedNs(int(as_of.max(initial=snapshot.now)))
    threshold_ns = np.full(len(snapshot.groups), round(stall_after_s * 1e9))
    return replace(snapshot, as_of=as_of, now=now, threshold_ns=threshold_ns)


def _proven(
    candidates: Sequence[Diagnosis], timed: Snapshot, stalls: StallTable, lasting: Bools
) -> list[Diagnosis]:
    """Diagnoses of waits that lasted, and candidates that are true however short the wait."""
    timeless = [one for one in candidates if _is_timeless(one)]
    rows = StallTable(
        stalls.group[lasting], stalls.rank[lasting], stalls.seq[lasting], stalls.since[lasting]
    )
    lasted = diagnose(timed, rows)
    others = [one for one in lasted if not _is_timeless(one)]
    return sorted((*timeless, *others), key=lambda one: (one.since, one.instance))


def _is_timeless(diagnosis: Diagnosis) -> bool:
    """True if the diagnosis is a fault however young it is: a mismatch, or collectives that ranks
    entered in different orders. A circle of sends and receives may be momentary, because they are
    posted ahead."""
    if diagnosis.kind is Kind.ORDER:
        return all(stuck.seq != UNKNOWN_SEQ for stuck in diagnosis.stalled)
    return diagnosis.kind is Kind.MISMATCH


def _is_open(rows: Rows, diagnosis: Diagnosis, waiting: Waiting) -> bool:
    """True if the dumps may be from a running job whose waits may still end: they were taken before
    the timeout, or some time apart, so that a rank seems to be behind while another one goes on."""
    if _is_timeless(diagnosis) or waiting.is_proven:
        return False
    alone = any(one.reason is Reason.IN_COLLECTIVE_ALONE for one in diagnosis.suspects)
    is_passing = alone or diagnosis.kind is Kind.ORDER
    involved = {*diagnosis.onsets, *diagnosis.victims, *diagnosis.unknown}
    return waiting.is_before_timeout or (is_passing and not rows.ranks.keys() <= involved)


def _is_confirmed(candidate: Diagnosis, diagnoses: Sequence[Diagnosis]) -> bool:
    """True if a diagnosis involves a rank of the candidate."""
    mine = {*candidate.onsets, *candidate.collective.waiting_ranks}
    return any(
        mine & {*one.onsets, *one.collective.waiting_ranks, *one.victims} for one in diagnoses
    )


def _waiting(diagnosis: Diagnosis, stalls: StallTable, durations: WaitDurations) -> Waiting:
    """How long the longest stalled op of a diagnosis had waited."""
    rows = np.zeros(len(stalls), np.bool_)
    for stuck in diagnosis.stalled:
        mine = (stalls.group == stuck.group) & (stalls.seq == stuck.seq)
        rows |= mine & (stalls.rank == stuck.rank) if stuck.rank >= 0 else mine
    if not rows.any():
        return Waiting(0.0, None, False)
    least, most = durations.at_least[rows], durations.at_most[rows]
    return Waiting(
        int(least.max()) / 1e9,
        None if most.max() >= FAR else int(most.max()) / 1e9,
        bool((least >= durations.stalled_after[rows]).any()),
        bool((most < durations.timeout[rows]).all()),
    )


def _unproven_text(rows: Rows, diagnosis: Diagnosis, waiting: Waiting) -> str:
    """``rank 0 had kept rank 1 waiting for 0.6 s when dumped (...); take another dump ...``."""
    named, ref = sorted(diagnosis.onsets), diagnosis.collective
    victims = sorted({*ref.waiting_ranks, *diagnosis.victims}.difference(named))
    waiters = victims or ref.waiting_ranks
    what = text.collective(ref.op, ref.seq, ref.group)
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


def _unseen_texts(rows: Rows, diagnoses: Sequence[Diagnosis]) -> list[str]:
    """For each backend whose recorder does not show ends, unless a diagnosis is about it."""
    used = {rows.series[of].backend for of in np.unique(rows.pair_series[rows.calls.pair]).tolist()}
    named = {rows.series[one.instance.group].backend for one in diagnoses}
    return [
        f"no entry of {text.clean(backend)} shows whether its op has ended: whether ranks wait in "
        "ops that all of them have joined is not known"
        for backend in sorted(used - named)
        if not rows.facts.marks.show_ends(backend)
    ]


def _lasted_text(waiting: Waiting) -> str:
    least, most = waiting.at_least_s, waiting.at_most_s
    if most is None:
        return f"at least {least:.1f} s"
    return f"{least:.1f} s" if most - least < _EXACT_S else f"{least:.1f} to {most:.1f} s"


# -- the input of the engine ------------------------------------------------------------------


def _snapshot(
    rows: Rows,
    watermarks: PairWatermarks,
    matched: MatchedCollectives,
    offset_ns: Mapping[int, int],
    now: AlignedNs,
) -> Snapshot:
    ranks = np.fromiter(rows.ranks, np.int32, len(rows.ranks))
    count = len(ranks)
    return Snapshot(
        key=rows.trace.key,
        now=now,
        world_size=rows.trace.world_size,
        rank=ranks,
        as_of=np.full(count, now + _VALID_NS, np.int64),
        state=[RankState.LIVE] * count,
        state_since=np.zeros(count, np.int64),
        detail=[""] * count,
        connected=np.ones(count, np.bool_),
        left=np.zeros(count, np.bool_),
        gap=np.array(
            [bool(one.trace.holes) or r in rows.trace.outside for r, one in rows.ranks.items()],
            np.bool_,
        ),
        moved_at=np.zeros(count, np.int64),
        clocks=RankClocks(np.zeros(count, np.int32), np.zeros(count, np.int64)),
        info={r: one.trace.info for r, one in rows.ranks.items() if one.trace.info is not None},
        groups=[series.info for series in rows.series],
        threshold_ns=np.zeros(len(rows.series), np.int64),
        pairs=_pairs(rows, watermarks),
        op=_ops(rows, matched),
        channels=channels_of(rows, offset_ns),
        signatures=rows.signatures,
        mismatches=facts_of(rows, matched),
        placed={rank: now for rank, of in rows.trace.standing.items() if shows_place(of)},
    )


def _pairs(rows: Rows, watermarks: PairWatermarks) -> PairColumns:
    joined, done = watermarks.enqueued, watermarks.completed
    return PairColumns(
        first=np.cumsum([0, *(len(series.members) for series in rows.series)]),
        rank=rows.pair_rank,
        joined=joined,
        joined_most=np.where(watermarks.hidden | _is_misnumbered(rows), ANY_SEQ, joined),
        started=watermarks.started,
        completed=done,
        completed_most=np.where(watermarks.lost, ANY_SEQ, done),
        head_since=watermarks.head_since,
        moved_at=np.zeros(len(joined), np.int64),
        since=np.zeros(len(joined), np.int64),
    )


def _is_misnumbered(rows: Rows) -> Bools:
    """Over the pairs: those of ranks that recorded in groups that exclude them, and of these
    groups. It is unknown which ops the ranks of such numbers have joined."""
    outside = rows.trace.outside
    group = np.array([series.group for series in rows.series], np.int32)[rows.pair_series]
    groups = [at for of in outside.values() for at in of]
    return np.isin(rows.pair_rank, [*outside]) | np.isin(group, groups)


def _ops(rows: Rows, matched: MatchedCollectives) -> Callable[[int, int], str]:
    first = np.searchsorted(matched.series, np.arange(len(rows.series) + 1))

    def op(series: int, seq: int) -> str:
        end = int(first[series + 1])
        at = int(first[series]) + int(np.searchsorted(matched.seq[first[series] : end], seq))
        known = at < end and matched.seq[at] == seq
        return rows.signatures[int(matched.signature[at])].op if known else ""

    return op


def _stalls(rows: Rows, watermarks: PairWatermarks, snapshot: Snapshot) -> StallTable:
    pair = waiting_pairs(rows, watermarks)
    p2p, at = snapshot.channels, np.flatnonzero(snapshot.channels.in_flight)
    return StallTable(
        np.concatenate((rows.pair_series[pair], p2p.group[at])),
        np.concatenate((rows.pair_rank[pair], p2p.rank[at])),
        np.concatenate((watermarks.completed[pair] + 1, np.full(len(at), UNKNOWN_SEQ))),
        np.concatenate((watermarks.head_since[pair], p2p.since[at])),
    )


def channels_of(rows: Rows, offset_ns: Mapping[int, int]) -> ChannelSnapshot:
    """All sends and receives in flight, in aligned time."""
    found = [np.empty((9, 0), np.int64)]
    for rank, one in rows.ranks.items():
        if not one.is_p2p.any():
            continue
        at, is_whole = np.flatnonzero(one.is_p2p), _is_whole(one)
        entries, done = one.trace, one.state.done[at]
        is_open = p2p_in_flight(entries, one.current[at], one.series[at], done, rows.facts)
        if is_open.any():
            ops = _p2p_ops(rows, rank, at, is_open, offset_ns.get(rank, 0), is_whole=is_whole)
            runs = p2p_runs(ops)
            found.append(np.vstack([np.full(runs.shape[1], rank), runs]))
        if is_whole and (over := [(rank, *row) for row in _over(rows, rank, at, is_open)]):
            found.append(np.array(over, np.int64).T)
    return ChannelSnapshot.of(np.concatenate(found, axis=1))


def _p2p_ops(
    rows: Rows, rank: int, p2p: Int64s, is_open: Bools, offset_ns: int, *, is_whole: bool
) -> Iterator[tuple[int, ...]]:
    """Those in flight. What follows an op is unknown if an entry after it cannot be read."""
    one, facts = rows.ranks[rank], rows.facts
    trace, at, series = one.trace, one.current[p2p], one.series[p2p]
    created = np.where(trace.created_ns[at] > 0, trace.created_ns[at] + offset_ns, 0)
    groups = [rows.trace.groups[of.group] for of in rows.series]
    readable = np.array([trace.unread_before(group) for group in groups])[series] <= at
    name = trace.name[at]
    posted = posted_before(series.astype(np.int64) * len(rows.trace.names) + name)
    columns = (
        series,
        np.where(readable, name, -1),
        created,
        trace.p2p_seq[at].clip(0),
        np.where(trace.damaged[at] != 0, -1, trace.signature[at]),
        np.where(is_whole, posted, -1),
        facts.is_any_source[name],
    )
    wanted = [column[is_open].tolist() for column in columns]
    for of, number, *op, before, takes_any in zip(*wanted, strict=True):
        peer = _peer(rows, of, rows.trace.names[number]) if number >= 0 else (_ANY_SOURCE, 0)
        yield of, *peer, *op, before if takes_any or peer[0] >= 0 else -1


def _over(rows: Rows, rank: int, p2p: Int64s, is_open: Bools) -> Iterator[tuple[int, ...]]:
    """Channels of a whole recorder with nothing in flight, and how many of their ops are over."""
    one = rows.ranks[rank]
    keys = np.stack((one.series[p2p], one.trace.name[one.current[p2p]]))
    channels, which, size = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    idle = np.setdiff1d(np.arange(len(size)), which.reshape(-1)[is_open])
    for of, number, count in zip(*channels[:, idle].tolist(), size[idle].tolist(), strict=True):
        peer, is_send = _peer(rows, of, rows.trace.names[number])
        if peer >= 0:
            yield of, peer, is_send, 0, 0, 0, -1, count


def _is_whole(one: RankRows) -> bool:
    """No record is missing, and the recorder was not reset: no group had sends before."""
    trace, at = one.trace, one.current[one.is_p2p]
    first = at[np.unique(trace.pg_id[at], return_index=True)[1]]
    lacks = one.has_holes or one.resets or trace.holes or (trace.p2p_seq[first] > 1).any()
    return int(trace.record_id[0]) == 0 and not lacks


def _peer(rows: Rows, series: int, name: Name) -> tuple[int, int]:
    """Global rank of the peer, and 1 for a send; an unknown peer counts as any source."""
    is_send = name.op.endswith("send")
    local = name.dst if is_send else name.src
    ranks = rows.series[series].info.ranks
    if local is None or local >= len(ranks) or not rows.series[series].is_known:
        return _ANY_SOURCE, 0
    return ranks[local], int(is_send)
