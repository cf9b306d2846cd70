"""Thresholds that the engine receives. Files, flags and environment are `frd.config`'s business."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from annotated_types import Ge, Gt, Le

from frd.model import INITIALIZATION

Seconds: TypeAlias = Annotated[float, Gt(0)]
Share: TypeAlias = Annotated[float, Gt(0), Le(1)]
Count: TypeAlias = Annotated[int, Gt(0)]


@dataclass(frozen=True, slots=True)
class Policy:
    """All times in seconds on the service's clock; all limits are counts."""

    stall_after_s: Annotated[float, Ge(1)] = 10.0
    """Floor of the stall threshold."""
    stall_after_max_s: Seconds = 3600.0
    """Ceiling of the adaptive stall threshold."""
    init_stall_after_s: Annotated[float, Ge(1)] = 60.0
    """How long ranks may wait in init_process_group or new_group for ranks that do not come."""
    critical_after_s: Annotated[float, Ge(0)] = 60.0
    """A finding about ranks that wait or are gone is a warning, and critical once it has been open
    for this long."""
    close_after_s: Seconds = 1.0
    """A finding closes when nothing of it has been stuck for this long."""
    lost_close_after_s: Seconds = 900.0
    """A finding closes when nothing new of it was seen for this long, as when the agents of its job
    are gone; a lost rank closes with its attempt."""
    telemetry_late_s: Seconds = 10.0
    """A rank whose `as_of` is older than this is late: its absence proves nothing. More than the
    time between two looks at the ring of a rank that moves, which agents keep below 7 s."""
    straggler_window_s: Seconds = 60.0
    """Stretch of time in which lateness is looked at."""
    straggler_share: Share = 0.01
    """A straggler is late in at least this share of the collectives of a group in that time,"""
    straggler_min_lost_s: Seconds = 1.0
    """and the group loses at least this much to it."""
    clock_unsynchronized_after_s: Seconds = 60.0
    """A node whose clock is unknown, or contradicts another's, for this long is reported."""
    standstill_after_s: Seconds = 600.0
    """A job that moved is reported as a standstill when nothing of it has moved for this long, or
    for ten times its longest earlier rest, and its ranks are seen at rest."""
    attempt_retention_s: Seconds = 900.0
    """An attempt that is over (its ranks are gone, or a newer one runs) is forgotten after this
    long."""
    deserted_after_s: Seconds = 3600.0
    """An attempt is over when no agent has spoken for any of its ranks for this long."""
    lost_after_s: Seconds = 180.0
    """An attempt is lost when all of its agents went on purpose, while ranks lived, and nothing was
    heard for this long."""
    failed_after_s: Annotated[float, Ge(0)] = 60.0
    """A job has failed when all ranks of its newest attempt are gone, not all cleanly and not on
    request, and no attempt began within this long,"""
    failed_for_s: Seconds = 86400.0
    """until it starts again, or for this long."""
    memory_warmup_s: Annotated[float, Ge(0)] = 60.0
    """Memory that rises within this long after a rank's first sample is judged afterwards."""
    memory_min_rise_bytes: Count = 64 * 1024 * 1024
    """A smaller rise of memory is ignored."""
    max_attempts: Annotated[int, Ge(0)] = 0
    """Attempts of all jobs; 0: as many as there is room for."""
    max_objects: Annotated[int, Ge(0)] = 0
    """What all attempts hold together, in objects of about 128 bytes; a job may have as many as it
    leaves free. 0: half of the memory that the service may use."""
    max_ranks: Count = 131_072
    """Per attempt."""
    max_groups: Count = 262_144
    """Per attempt."""
    max_findings: Count = 1_000
    """Closed findings that are remembered, of all jobs."""
    max_findings_per_job: Count = 100
    """Open findings of one job."""
    max_suspects: Count = 16
    """Suspects that one finding lists."""

    @property
    def stall_after_ns(self) -> int:
        return round(self.stall_after_s * 1e9)

    def call_stall_after_s(self, op: str) -> float:
        """How long a call that no recorder shows may take, if nothing was learned of it."""
        return self.init_stall_after_s if op in INITIALIZATION else self.stall_after_s
