"""Bytes to what an agent says of its ranks: whether they live, how they ended, their phases."""

from __future__ import annotations

from typing import Final

from frd.errors import WireError
from frd.model import (
    ExitInfo,
    ExitKind,
    NodeRawNs,
    PhaseSpan,
    RankPhases,
    RankState,
    RankStatus,
    Stage,
)
from frd.v1 import stream_pb2 as pb
from frd.wire.declarations import Declared
from frd.wire.fields import check_most, check_text, check_texts, check_time, enum_member, texts_of
from frd.wire.messages import (
    MAX_PHASE_NAME,
    Leaving,
    Statuses,
    Unreadable,
)

_MAX_SIGNAL: Final = 64
_MAX_EXIT_STATUS: Final = 255


def statuses(m: pb.StatusBatch, ranks: Declared) -> Statuses:
    """
    Raises:
        WireError: naming the field, as every function here.
    """
    return Statuses(
        statuses=tuple([_status(status, ranks) for status in m.statuses]),
        phases=tuple([_phases(phases, ranks) for phases in m.phases]),
        unreadable=_unreadable(m.unreadable) if m.HasField("unreadable") else None,
        leaving=Leaving(m.leaving.live_ranks) if m.HasField("leaving") else None,
    )


def _unreadable(m: pb.Unreadable) -> Unreadable:
    return Unreadable(check_texts("unreadable.texts", m.texts))


def _status(m: pb.Status, ranks: Declared) -> RankStatus:
    ranks.attempt_of("statuses.rank_index", m.rank_index)
    check_time("statuses.at_ns", m.at_ns)
    check_time("statuses.as_of_ns", m.as_of_ns)
    check_most("statuses.gap_entries", m.gap_entries, 2**63 - 1)
    return RankStatus(
        rank=m.rank_index,
        state=enum_member("statuses.state", RankState, m.state),
        at_ns=NodeRawNs(m.at_ns),
        detail=check_text("statuses.detail", m.detail),
        gap_entries=m.gap_entries,
        exit=_exit(m.exit) if m.HasField("exit") else None,
        as_of_ns=m.as_of_ns,
        stage=_stage(m.stage) if m.HasField("stage") else None,
        unread=check_text("statuses.unread", m.unread),
    )


def _exit(m: pb.Exit) -> ExitInfo:
    check_most("statuses.exit.signal", m.signal, _MAX_SIGNAL)
    check_most("statuses.exit.status", m.status, _MAX_EXIT_STATUS)
    return ExitInfo(
        kind=enum_member("statuses.exit.kind", ExitKind, m.kind, ExitKind.UNKNOWN),
        signal=m.signal,
        status=m.status if m.HasField("status") else None,
        **texts_of("statuses.exit", m, "exception", "where", "note"),
    )


def _stage(m: pb.Stage) -> Stage:
    check_time("statuses.stage.since_ns", m.since_ns)
    check_time("statuses.stage.as_of_ns", m.as_of_ns)
    if not 0 < m.since_ns <= m.as_of_ns:
        why = "since_ns or as_of_ns is 0, or as_of_ns is earlier: send both, in order"
        raise WireError("statuses.stage", "disagree", why)
    texts = texts_of("statuses.stage", m, "op", "where")
    since_ns, as_of_ns = NodeRawNs(m.since_ns), NodeRawNs(m.as_of_ns)
    return Stage(since_ns=since_ns, as_of_ns=as_of_ns, rests=m.rests, **texts)


def _phases(m: pb.RankPhases, ranks: Declared) -> RankPhases:
    ranks.attempt_of("phases.rank_index", m.rank_index)
    return RankPhases(m.rank_index, tuple([_span(span) for span in m.spans]))


def _span(m: pb.PhaseSpan) -> PhaseSpan:
    path = check_texts("phases.spans.path", m.path)
    if not path:
        raise WireError("phases.spans.path", "missing", "empty: send the names of the phase")
    if (longest := max(map(len, path))) > MAX_PHASE_NAME:
        why = f"{longest} characters: send names of {MAX_PHASE_NAME} or fewer"
        raise WireError("phases.spans.path", "too_large", why)
    check_time("phases.spans.since_ns", m.since_ns)
    check_time("phases.spans.until_ns", m.until_ns)
    if not m.since_ns or 0 < m.until_ns < m.since_ns:
        why = "since_ns is 0, or until_ns is earlier: send both, in order"
        raise WireError("phases.spans", "disagree", why)
    return PhaseSpan(path, NodeRawNs(m.since_ns), NodeRawNs(m.until_ns))
