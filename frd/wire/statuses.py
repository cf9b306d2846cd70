"""Bytes to what an agent says of its ranks: whether they live, how they ended, their phases."""

from __future__ import annotations

from frd.errors import WireError
from frd.model import PhaseSpan, Stage
from frd.v1 import stream_pb2 as pb
from frd.wire.declarations import Declared
from frd.wire.fields import read
from frd.wire.messages import MAX_PHASE_NAME, Statuses


def statuses(m: pb.StatusBatch, ranks: Declared) -> Statuses:
    """
    Raises:
        WireError: naming the field, as every function here.
    """
    batch = read(Statuses, m, "")
    for status in batch.statuses:
        ranks.attempt_of("statuses.rank_index", status.rank)
        if status.stage is not None:
            _check_stage(status.stage)
    for phases in batch.phases:
        ranks.attempt_of("phases.rank_index", phases.rank)
        for span in phases.spans:
            _check_span(span)
    return batch


def _check_stage(stage: Stage) -> None:
    if not 0 < stage.since_ns <= stage.as_of_ns:
        why = "since_ns or as_of_ns is 0, or as_of_ns is earlier: send both, in order"
        raise WireError("statuses.stage", "disagree", why)


def _check_span(span: PhaseSpan) -> None:
    if (longest := max(map(len, span.path))) > MAX_PHASE_NAME:
        why = f"{longest} characters: send names of {MAX_PHASE_NAME} or fewer"
        raise WireError("phases.spans.path", "too_large", why)
    if not span.since_ns or 0 < span.until_ns < span.since_ns:
        why = "since_ns is 0, or until_ns is earlier: send both, in order"
        raise WireError("phases.spans", "disagree", why)
