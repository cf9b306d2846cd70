"""From a diagnosis to a finding: evidence from entries, stacks and identities of the folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from frd.engine.clocks.alignment import UncertainTime
from frd.engine.findings import builder, headlines, text
from frd.engine.findings.attachments import Attachments, Evidence
from frd.engine.hangs.attribution import lowered
from frd.engine.hangs.detector import claim_of
from frd.engine.hangs.diagnosis import Diagnosis
from frd.engine.policy import Policy
from frd.engine.state.snapshot import Snapshot
from frd.flight.stacks.text import user_frames_of
from frd.model import Confidence, Finding, Kind, Reason, Signature, Suspect, Witness
from frd.offline.analysis.clocks import Clocks
from frd.offline.analysis.rows import RankRows, Rows

_POLICY = Policy(max_suspects=256)
_GLOO = "gloo"


def finding_of(
    rows: Rows, snapshot: Snapshot, diagnosis: Diagnosis, clocks: Clocks, *, is_open: bool = False
) -> Finding:
    """A diagnosis with stack frames of entries and of the folder.

    `is_open`: the job may have been healthy, so that no rank is named with high confidence. Nor is
    one where the recorder does not show that the others wait.
    """
    of, seq = diagnosis.instance.group, diagnosis.instance.seq
    backend = rows.series[of].backend
    is_unseen = diagnosis.kind is not Kind.MISMATCH and not rows.facts.marks.show_ends(backend)
    if is_open or is_unseen:
        diagnosis = replace(diagnosis, suspects=tuple(lowered(diagnosis.suspects)))
    claim = claim_of(snapshot, diagnosis, _POLICY)
    opened = builder.finding_of(snapshot.key, claim, snapshot.now)
    attachments = Attachments()
    for suspect in opened.suspects:
        attachments.add(Evidence(suspect.rank, rows.trace.standing.get(suspect.rank)))
    opened = attachments.attached_to(opened, opened.suspects)
    suspects = [
        _last_seen(rows, suspect)
        if suspect.reason is Reason.CPU_STUCK
        else _as_entered(suspect, stack_of(rows, suspect.rank, of, seq))
        for suspect in opened.suspects
    ]
    if diagnosis.kind is Kind.MISMATCH and (notes := _of_mismatch(rows, snapshot, diagnosis)):
        suspects = [
            replace(suspect, evidence="; ".join((suspect.evidence, *notes))) for suspect in suspects
        ]
    if is_unseen:
        note = f"no entry of {text.clean(backend)} shows whether its op has ended"
        suspects = [replace(one, evidence=f"{one.evidence}; {note}") for one in suspects]
    finding = replace(
        opened,
        severity=None,
        suspects=builder.listed(_with_onsets(suspects, diagnosis, clocks)),
        witness=_witness(rows, of, seq, opened),
    )
    return headlines.worded(finding, timed=False)


def _of_mismatch(rows: Rows, snapshot: Snapshot, diagnosis: Diagnosis) -> list[str]:
    """Notes on a mismatch: dtypes, consequence, and what else the recorder may have meant."""
    of, seq = diagnosis.instance.group, diagnosis.instance.seq
    facts = (f.classes for f in snapshot.mismatches if (f.group, f.seq) == (of, seq))
    classes = next(facts, ())
    notes = []
    dtypes = [
        f"{text.ranks(ranks)} passed {text.clean(dtypes)}"
        for signature, ranks in classes
        if (dtypes := _dtypes(signature))
    ]
    shapes = {replace(signature, input_dtypes=(), output_dtypes=()) for signature, _ in classes}
    if len(shapes) == 1 and len(dtypes) > 1:
        notes.append(", ".join(dtypes))
    backend = rows.series[of].backend
    if classes and not diagnosis.collective.waiting_ranks:
        knows = backend in rows.facts.marks.completion  # Gloo's does not show whether it succeeded
        ended = "it completed, so" if knows else "no rank is seen waiting in it: unless it failed,"
        notes.append(f"{ended} its result is wrong")
    if backend == _GLOO and any(signature.op == "all_reduce" for signature, _ in classes):
        notes.append("Gloo records reduce_scatter as all_reduce, so it may have been either")
    return notes


def _dtypes(signature: Signature) -> str:
    """``Float``, or ``Float to Half`` where input and output differ."""
    before, after = (
        "/".join(dict.fromkeys(d)) for d in (signature.input_dtypes, signature.output_dtypes)
    )
    return before if before == after or not after else f"{before} to {after}"


def _with_onsets(
    suspects: Sequence[Suspect], diagnosis: Diagnosis, clocks: Clocks
) -> tuple[Suspect, ...]:
    """Each with its onset, and whether that orders it with the others.

    A rank's absence is seen by the waiting ranks, so the least exact of their clocks counts.
    """
    waiting = diagnosis.collective.waiting_ranks
    involved = {suspect.rank for suspect in suspects}.union(waiting, diagnosis.victims)
    bounds = [clocks.uncertainty_ns.get(rank) for rank in involved]
    known = [bound for bound in bounds if bound is not None]
    bound = max(known, default=0) if len(known) == len(bounds) else None
    # It is unknown which rank's clock gave the time, so each onset is on a separate clock.
    moments = [
        UncertainTime(diagnosis.onsets[suspect.rank].at, suspect.rank, bound)
        for suspect in suspects
    ]
    return builder.timed(suspects, moments)


def _as_entered(suspect: Suspect, stack: tuple[str, ...]) -> Suspect:
    """For a rank inside the op, the line that entered it is the best evidence."""
    if not stack or suspect.stack:
        return suspect
    words = f"{suspect.evidence}; entered it at {stack[0]}"
    return replace(suspect, stack=stack, evidence=words)


def _last_seen(rows: Rows, suspect: Suspect) -> Suspect:
    """Adds the last op of a rank that has not joined, with its line if no current line is known."""
    one = rows.ranks[suspect.rank]
    words = [suspect.evidence]
    confidence = suspect.confidence
    if not suspect.stack and len(one.current):
        row = int(one.current[-1])
        stack = frames_text(rows, int(one.trace.stack[row]))
        op = rows.trace.names[int(one.trace.name[row])].op
        label = text.clean(rows.series[int(one.series[-1])].info.label)
        last = f"its last op was {op} on {label}"
        words.append(f"{last} at {stack[0]}" if stack else last)
    if _sends_unseen(rows, one) and confidence is Confidence.HIGH:
        confidence = Confidence.MEDIUM
        words.append("it may wait in a send or receive, which its backend does not record")
    return replace(suspect, evidence="; ".join(filter(None, words)), confidence=confidence)


def _sends_unseen(rows: Rows, one: RankRows) -> bool:
    """True if op numbers of a group advance without entries: P2P ops that Gloo does not record."""
    for of in np.unique(one.series).tolist():
        if rows.series[of].backend == _GLOO:
            row = one.current[one.series == of]
            lead = one.trace.op_id[row] - one.trace.seq[row]
            if len(np.unique(lead)) > 1 or lead[0] > 0:
                return True
    return False


def _witness(rows: Rows, of: int, seq: int, finding: Finding) -> Witness | None:
    """The first waiting rank of the finding's collective whose line is in a dump."""
    waiting = finding.collective.waiting_ranks if finding.collective is not None else ()
    for rank in waiting:
        if rank in finding.victims and (stack := stack_of(rows, rank, of, seq)):
            return Witness(rank, stack)
    return None


def stack_of(rows: Rows, rank: int, of: int, seq: int) -> tuple[str, ...]:
    """Where a rank entered a collective, or its oldest P2P op of the group, innermost first."""
    if rank not in rows.ranks:
        return ()
    one = rows.ranks[rank]
    mine = (one.series == of) & ~one.state.done
    if seq >= 0:
        mine = (one.series == of) & (one.trace.seq[one.current] == seq)
    at = np.flatnonzero(mine & (one.is_p2p == (seq < 0)))
    if not len(at):
        return ()
    return frames_text(rows, int(one.trace.stack[one.current[at[0]]]))


def frames_text(rows: Rows, stack: int) -> tuple[str, ...]:
    """The user's own frames of an entry, innermost first, as findings show them."""
    return user_frames_of(rows.trace.stacks[stack]) if stack >= 0 else ()
