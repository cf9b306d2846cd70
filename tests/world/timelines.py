"""Findings and timelines by hand, in seconds since `T0`; and a keeper of timelines over a scripted
job."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from frd.engine.views import AttemptView
from frd.model import (
    AlignedNs,
    Change,
    CollectiveRef,
    Confidence,
    Finding,
    FindingEvent,
    FindingState,
    Kind,
    Reason,
    Suspect,
    Witness,
)
from frd.service.state import ServiceState
from frd.service.timelines.timeline import Bar, Curve, Gap, Lane, Timeline
from frd.service.timelines.timelines import Timelines
from frd.store.timelines import TimelineStore
from tests.world.job import hanging

T0 = 1_700_000_000
S = 1_000_000_000


def at(seconds: float) -> AlignedNs:
    return AlignedNs(round((T0 + seconds) * S))


def suspect(rank: int, onset: float | None = None) -> Suspect:
    return Suspect(
        rank, "node0", Reason.CPU_STUCK, Confidence.HIGH, "evidence",
        onset_at=None if onset is None else at(onset),
        onset_uncertainty_s=None if onset is None else 0.5,
    )  # fmt: skip


def finding(
    *suspects: int,
    missing: Sequence[int] = (),
    waiting: Sequence[int] = (),
    victims: Sequence[int] = (),
    unknown: Sequence[int] = (),
    witness: int | None = None,
    kind: Kind = Kind.STALL,
    opened: float = 10.0,
    **others: Any,
) -> Finding:
    collective = CollectiveRef(
        "dp", "g", len(missing) + len(waiting), 7, "all_reduce", tuple(waiting), tuple(missing), 5.0
    )
    made = Finding(
        id="ab12",
        kind=kind,
        state=FindingState.OPEN,
        job="job",
        attempt=0,
        opened_at=at(opened),
        collective=collective if missing or waiting else None,
        suspects=tuple(suspect(rank) for rank in suspects),
        victims=tuple(victims),
        unknown=tuple(unknown),
        witness=Witness(witness, ()) if witness is not None else None,
        summary="it hangs",
    )
    return dataclasses.replace(made, **others)


def closed(of: Finding, seconds: float) -> Finding:
    return dataclasses.replace(of, state=FindingState.CLOSED, closed_at=at(seconds))


def bar(
    rank: int,
    seq: int,
    enqueued: float,
    ended: float | None = None,
    *,
    ended_from: float | None = None,
    group: str = "g",
    failed: bool = False,
) -> Bar:
    earliest = ended if ended_from is None else ended_from
    return Bar(
        rank, group, seq, "all_reduce", at(enqueued), 0,
        0 if earliest is None else at(earliest), 0 if ended is None else at(ended), failed,
    )  # fmt: skip


def gap(rank: int, seq: int, since: float, until: float | None = None, *, group: str = "g") -> Gap:
    return Gap(rank, group, seq, "all_reduce", at(since), None if until is None else at(until))


def lane(rank: int, role: str = "other", uncertainty_ns: int | None = 1000) -> Lane:
    return Lane(rank, f"node{rank}", role, uncertainty_ns)


def curve(rank: int, values: dict[int, int], capacity: int = 0) -> Curve:
    return Curve(rank, "host_used", "", capacity, values)


def timeline(seconds: float, *parts: Lane | Bar | Gap | Curve, **others: Any) -> Timeline:
    """As of so many seconds; lanes are made for ranks of bars and gaps that have none."""
    bars = tuple(one for one in parts if isinstance(one, Bar))
    gaps = tuple(one for one in parts if isinstance(one, Gap))
    lanes = {one.rank: one for one in parts if isinstance(one, Lane)}
    named = {one.rank for one in bars} | {one.rank for one in gaps}
    lanes |= {rank: lane(rank) for rank in sorted(named - lanes.keys())}
    return Timeline(
        at=at(seconds),
        lanes=tuple(lanes.values()),
        groups=others.pop("groups", {"g": "dp"}),
        bars=bars,
        gaps=gaps,
        curves=tuple(one for one in parts if isinstance(one, Curve)),
        all_ranks=len(lanes),
        **others,
    )


class Keeper:
    """A job of four ranks, of which rank 2 hangs; what becomes of its findings is up to the test,
    and so is the time."""

    def __init__(self, folder: Path) -> None:
        self.job = hanging(8)
        self.store = TimelineStore(folder / "timelines.sqlite3")
        self.findings = list(self.job.open())
        self.timelines = Timelines(self.store, lambda: self.state, lambda: self.job.now)

    @property
    def state(self) -> ServiceState:
        view = self.job.engine.status_view(self.job.now)
        return ServiceState(dataclasses.replace(view, findings=self.findings))

    @property
    def attempt(self) -> AttemptView:
        (view,) = self.state.status_view.attempts
        return view

    def look(self, after_s: float = 0.0) -> None:
        self.job.now = AlignedNs(self.job.now + round(after_s * S))
        asyncio.run(self.timelines.look())

    def close(self, one: Finding) -> Finding:
        """The finding closes now."""
        done = dataclasses.replace(one, state=FindingState.CLOSED, closed_at=self.job.now)
        self.findings = [other for other in self.findings if other.id != one.id]
        self.timelines.see([FindingEvent(Change.CLOSED, done)])
        return done

    def kept_at(self, one: Finding) -> float | None:
        """Seconds after the opening of what is stored."""
        body = self.store.get(one.id)
        return None if body is None else (Timeline.decode(body).at - one.opened_at) / S
