"""From rows and marks to findings: cut a picture, ask the engine, add what entries know.

A dump is a rank's last word: whatever time it was taken, nothing that it does not show happened
before. So every wait in it counts, however young it is beside the youngest entry, and waiting times
are told up to the latest moment that any dump tells, for nobody knows when the dumps were taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from frd.engine import compose, summary
from frd.engine.cause import Verdict, find
from frd.engine.claim import Claim
from frd.engine.moment import Moment
from frd.engine.picture import GroupPicture, Picture, StallTable
from frd.engine.policy import Policy
from frd.flight import user_frames_of
from frd.forms import span_text
from frd.model import (
    UNKNOWN_SEQ,
    AlignedNs,
    Confidence,
    Finding,
    FindingState,
    Kind,
    RankState,
    Reason,
    Suspect,
    Witness,
)
from frd.offline.channels import channels_of
from frd.offline.clocks import Clocks
from frd.offline.marks import Marks
from frd.offline.matching import Matched, facts_of
from frd.offline.rows import RankRows, Rows

_LAST_WORD_NS = 3_600_000_000_000
"""How long after the latest moment a dump still speaks: longer than any threshold."""
_POLICY = Policy(max_suspects=256)
_RECORD_NO_P2P = frozenset({"gloo"})


@dataclass(frozen=True, slots=True)
class Scene:
    """What the engine looked at, for those who want to know more of it."""

    picture: Picture
    findings: tuple[Finding, ...]


def judge(rows: Rows, marks: Marks, found: Matched, clocks: Clocks, now: AlignedNs) -> Scene:
    """The findings of a trace, oldest first; `now` is the latest moment that it tells."""
    picture = _picture(rows, marks, found, clocks.offset_ns, now)
    verdicts = find(picture, _stalls(rows, marks, picture), threshold_s=lambda group: 0.0)
    findings = (_finding(rows, picture, verdict, clocks) for verdict in verdicts)
    return Scene(picture, tuple(findings))


def _picture(
    rows: Rows, marks: Marks, found: Matched, offset_ns: Mapping[int, int], now: AlignedNs
) -> Picture:
    ranks = np.fromiter(rows.ranks, np.int32, len(rows.ranks))
    count = len(ranks)
    return Picture(
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
            GroupPicture(
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
        told = at < end and found.seq[at] == seq
        return rows.signatures[int(found.signature[at])].op if told else ""

    return op


def _stalls(rows: Rows, marks: Marks, picture: Picture) -> StallTable:
    there = np.isin(rows.pair_rank, picture.rank)
    pair = np.flatnonzero(there & (marks.enqueued > marks.completed))
    p2p = picture.channels
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
        node = summary.clean(domain.name)
        whose = "" if node == summary.ranks(domain.ranks) else f" ({summary.ranks(domain.ranks)})"
        yield Finding(
            id=compose.finding_id(key, Kind.CLOCK_UNSYNCHRONIZED, domain.name, now),
            kind=Kind.CLOCK_UNSYNCHRONIZED,
            state=FindingState.OPEN,
            job=key.job,
            attempt=key.attempt,
            opened_at=now,
            summary=f"the clock of {node}{whose} is wrong or has stepped: collectives put it off "
            f"by {span_text(domain.off_by_ns)} or more, so its ranks are not ordered with others: "
            "look at its time service",
        )


# -- findings --------------------------------------------------------------------------------


def _finding(rows: Rows, picture: Picture, verdict: Verdict, clocks: Clocks) -> Finding:
    """A verdict with the stack frames that entries and the folder know."""
    keys = compose.keys_of(picture, verdict)
    claim = Claim.of_verdict(picture.key, picture, verdict, keys, _POLICY)
    of, seq = verdict.instance.group, verdict.instance.seq
    for suspect in claim.bare:
        if stack := rows.trace.standing.get(suspect.rank):
            claim.attach(rank=suspect.rank, stack=stack, note="", dump=None)
    suspects = [
        _last_seen(rows, suspect)
        if suspect.reason is Reason.CPU_STUCK
        else _as_entered(suspect, stack_of(rows, suspect.rank, of, seq))
        for suspect in claim.finding.suspects
    ]
    finding = replace(
        claim.finding,
        severity=None,
        suspects=_with_onsets(suspects, verdict, clocks),
        witness=_witness(rows, of, seq, claim.finding),
    )
    return replace(finding, summary=summary.summarize(finding, timed=False))


def _with_onsets(
    suspects: Sequence[Suspect], verdict: Verdict, clocks: Clocks
) -> tuple[Suspect, ...]:
    """Each with the time since when it is missed, and whether that orders it with the others.

    Who is missed is known from those who wait, so it is the least exact clock of all that counts.
    """
    onset = {blame.rank: blame.onset for blame in verdict.suspects}
    involved = {suspect.rank for suspect in suspects} | {*verdict.waiting, *verdict.victims}
    bounds = [clocks.uncertainty_ns.get(rank) for rank in involved]
    known = [bound for bound in bounds if bound is not None]
    bound = max(known, default=0) if len(known) == len(bounds) else None
    # Of one node or not: whose clock told of whom is not known, so each is a clock of its own.
    moments = [Moment(onset[suspect.rank], suspect.rank, bound) for suspect in suspects]
    return compose.timed(suspects, moments)


def _as_entered(suspect: Suspect, stack: tuple[str, ...]) -> Suspect:
    """Who is inside it is best told by the line that led there."""
    if not stack or suspect.stack:
        return suspect
    words = f"{suspect.evidence}; entered it at {stack[0]}"
    return replace(suspect, stack=stack, evidence=words)


def _last_seen(rows: Rows, suspect: Suspect) -> Suspect:
    """Where it stands now no entry tells, but where it was last is known."""
    one = rows.ranks[suspect.rank]
    words = [suspect.evidence]
    confidence = suspect.confidence
    if not suspect.stack and len(one.current):
        row = int(one.current[-1])
        stack = frames_text(rows, int(one.trace.stack[row]))
        op = rows.trace.names[int(one.trace.name[row])].op
        label = summary.clean(rows.series[int(one.series[-1])].info.label)
        last = f"its last op was {op} on {label}"
        words.append(f"{last} at {stack[0]}" if stack else last)
    if _sends_unseen(rows, one) and confidence is Confidence.HIGH:
        confidence = Confidence.MEDIUM
        words.append("it may wait in a send or receive, which its backend does not record")
    return replace(suspect, evidence="; ".join(filter(None, words)), confidence=confidence)


def _sends_unseen(rows: Rows, one: RankRows) -> bool:
    """Ops of a group are numbered on while no entry shows them: P2P that Gloo does not record."""
    for of in np.unique(one.series).tolist():
        if rows.series[of].backend in _RECORD_NO_P2P:
            row = one.current[one.series == of]
            lead = one.trace.op_id[row] - one.trace.seq[row]
            if len(np.unique(lead)) > 1 or lead[0] > 0:
                return True
    return False


def _witness(rows: Rows, of: int, seq: int, finding: Finding) -> Witness | None:
    """The first of those who wait in the finding's collective of whom a dump tells the line."""
    waiting = finding.collective.waiting_ranks if finding.collective is not None else ()
    for rank in waiting:
        if rank in finding.victims and (stack := stack_of(rows, rank, of, seq)):
            return Witness(rank, stack)
    return None


def stack_of(rows: Rows, rank: int, of: int, seq: int) -> tuple[str, ...]:
    """From where a rank entered a collective, or its oldest P2P op of the group; user's first."""
    if rank not in rows.ranks:
        return ()
    one = rows.ranks[rank]
    mine = (one.series == of) & ~one.done
    if seq >= 0:
        mine = (one.series == of) & (one.trace.seq[one.current] == seq)
    at = np.flatnonzero(mine & (one.is_p2p == (seq < 0)))
    if not len(at):
        return ()
    return frames_text(rows, int(one.trace.stack[one.current[at[0]]]))


def frames_text(rows: Rows, stack: int) -> tuple[str, ...]:
    """The user's own frames of an entry, innermost first, as findings show them."""
    return user_frames_of(rows.trace.stacks[stack]) if stack >= 0 else ()
