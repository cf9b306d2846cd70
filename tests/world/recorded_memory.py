"""Rises of memory in recordings, written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from frd.engine.views import Attribution, RiseSuspect
from frd.model import Confidence, SeriesKind
from frd.offline.memory.analysis import MemoryAnalysis, RecordedRise
from frd.offline.phases.answer import Certainty, PhaseAnswer
from tests.world.memory import EPOCH, GIB, S


def a_rise(
    analysis: MemoryAnalysis,
    *,
    ranks: Sequence[int],
    at_s: float,
    common: bool = False,
    series: SeriesKind = SeriesKind.DEVICE_USED,
) -> MemoryAnalysis:
    """The analysis with one more rise, of 2 GiB in its first job; the first rank is the suspect."""
    job = analysis.jobs[0]
    rise = RecordedRise(
        job=job.job,
        ranks=tuple(ranks),
        suspects=() if common else (RiseSuspect(ranks[0], Confidence.HIGH),),
        series=series,
        device=f"device 0 of rank {ranks[0]}",
        onset=(EPOCH + round(at_s * S), EPOCH + round((at_s + 0.1) * S)),
        end_ns=EPOCH + S,
        bytes=2 * GIB,
        took_s=1.0,
        peak_bytes=23 * GIB,
        fell_back=False,
        alarming=False,
        common_cause=common,
        next_rank=None,
        lead_ns=0,
        unknown=(),
        attribution=Attribution.ALLOCATOR,
        phase=PhaseAnswer(Certainty.NONE),
        text=f"memory of rank {ranks[0]} rose first: +2.0 GiB",
    )
    return replace(analysis, rises=(*analysis.rises, rise))
