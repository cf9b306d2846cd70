"""Scripted snapshots for tests of the engine, from the position of each rank.

Ages are seconds before `NOW`; every rank is live, connected and freshly reported unless a scene
says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from frd.engine.clocks.alignment import RankClocks
from frd.engine.hangs.diagnosis import Diagnosis, diagnose
from frd.engine.policy import Policy
from frd.engine.state.snapshot import (
    ANY_SEQ,
    ChannelSnapshot,
    Mismatch,
    PairColumns,
    Snapshot,
    StallTable,
)
from frd.model import (
    UNKNOWN_SEQ,
    AlignedNs,
    AttemptKey,
    Confidence,
    ExitInfo,
    Finding,
    GroupInfo,
    NodeNs,
    RankInfo,
    RankState,
    Reason,
    Signature,
    UnrecordedWait,
    WaitSource,
)

NOW = AlignedNs(1_700_000_000_000_000_000)


def ago(seconds: float) -> AlignedNs:
    return AlignedNs(NOW - round(seconds * 1e9))


@dataclass
class Mark:
    """One rank in one group."""

    enqueued: int = UNKNOWN_SEQ
    started: int = UNKNOWN_SEQ
    completed: int = UNKNOWN_SEQ
    since: int = 0
    moved: int = 0


@dataclass
class Standing:
    """One rank as its agent sees it."""

    state: RankState = RankState.LIVE
    state_age: float = 0.0
    detail: str = ""
    as_of_age: float = 0.1
    connected: bool = True
    left: bool = False
    gap: bool = False
    moved_age: float = 60.0
    declared: bool = True
    exit: ExitInfo | None = None


@dataclass
class Scene:
    world: int
    threshold_s: float = 5.0
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    ops: dict[tuple[str, int], str] = field(default_factory=dict)
    marks: dict[tuple[str, int], Mark] = field(default_factory=dict)
    channels: list[tuple[Any, ...]] = field(default_factory=list)
    signatures: list[Signature] = field(default_factory=list)
    facts: list[Mismatch] = field(default_factory=list)
    standings: dict[int, Standing] = field(default_factory=dict)
    unrecorded: dict[int, list[UnrecordedWait]] = field(default_factory=dict)
    learned_s: dict[str, float] = field(default_factory=dict)
    """How long calls may take, as far as the job has shown."""
    unread: set[int] = field(default_factory=set)
    """Ranks whose collectives cannot be read."""
    hidden: set[tuple[str, int]] = field(default_factory=set)
    """(group, rank) whose marks are not known."""
    forgotten: set[tuple[str, int]] = field(default_factory=set)
    """(group, rank) whose op may be over."""

    def __post_init__(self) -> None:
        for rank in range(self.world):
            self.standings[rank] = Standing()

    # -- the script --------------------------------------------------------------------------

    def group(self, name: str, ranks: Iterable[int], **ops: str) -> Scene:
        """A group; ops by seq as ``s7="broadcast"``, ``all_reduce`` otherwise."""
        self.groups[name] = tuple(sorted(ranks))
        self.ops |= {(name, int(seq[1:])): op for seq, op in ops.items()}
        for rank in self.groups[name]:
            self.marks[name, rank] = Mark()
        return self

    def passed(self, name: str, seq: int, ranks: Iterable[int]) -> Scene:
        """These ranks completed `seq` and have nothing outstanding in the group."""
        for rank in ranks:
            self.marks[name, rank] = Mark(seq, UNKNOWN_SEQ, seq)
        return self

    def waits(
        self, name: str, seq: int, ranks: Iterable[int], age: float = 12.0, ahead: int = 0
    ) -> Scene:
        """These ranks are inside `seq`, and have enqueued `ahead` more of the group."""
        for rank in ranks:
            self.marks[name, rank] = Mark(seq + ahead, UNKNOWN_SEQ, seq - 1, ago(age))
        return self

    def started(self, name: str, seq: int, ranks: Iterable[int]) -> Scene:
        for rank in ranks:
            self.marks[name, rank].started = seq
        return self

    def moved(self, name: str, ranks: Iterable[int], age: float) -> Scene:
        """These ranks reached their position `age` seconds ago."""
        for rank in ranks:
            self.marks[name, rank].moved = ago(age)
        return self

    def flying(
        self,
        rank: int,
        name: str,
        peer: int,
        *,
        send: bool,
        age: float = 12.0,
        count: int = 1,
        batch: int = 0,
        signature: Signature | None = None,
        posted: int | None = None,
    ) -> Scene:
        """A P2P op in flight; `peer` -1 receives from any. `posted` of its channel came before, or
        those that are in flight."""
        if signature is not None and signature not in self.signatures:
            self.signatures.append(signature)
        number = -1 if signature is None else self.signatures.index(signature)
        if posted is None:
            posted = sum(of[4] for of in self.channels if of[:4] == (rank, name, peer, send))
        self.channels.append((rank, name, peer, send, count, ago(age), batch, number, posted))
        return self

    def calls(
        self,
        rank: int,
        op: str,
        peers: Iterable[int] = (),
        *,
        age: float = 8.0,
        seen_age: float = 0.5,
        source: WaitSource = WaitSource.STACK,
        detail: str = "",
    ) -> Scene:
        """A wait that no recorder shows, since `age`, last seen `seen_age` ago."""
        since, as_of = NodeNs(ago(age)), NodeNs(ago(seen_age))
        wait = UnrecordedWait(rank, source, op, since, as_of, tuple(peers), detail)
        self.unrecorded.setdefault(rank, []).append(wait)
        return self

    def mismatch(self, fact: Mismatch) -> Scene:
        self.facts.append(fact)
        return self

    def rank(self, number: int, **changes: Any) -> Scene:
        self.standings[number] = replace(self.standings[number], **changes)
        return self

    # -- results -----------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        ranks = [r for r in sorted(self.standings) if self.standings[r].declared]
        seen = [self.standings[r] for r in ranks]
        names = list(self.groups)
        return Snapshot(
            key=AttemptKey("job", 0),
            now=NOW,
            world_size=self.world,
            rank=np.array(ranks, np.int32),
            as_of=np.array([ago(s.as_of_age) for s in seen], np.int64),
            state=[s.state for s in seen],
            state_since=np.array([ago(s.state_age) for s in seen], np.int64),
            detail=[s.detail for s in seen],
            connected=np.array([s.connected for s in seen], np.bool_),
            left=np.array([s.left for s in seen], np.bool_),
            gap=np.array([s.gap for s in seen], np.bool_),
            info={
                r: RankInfo(r, self.world, f"node{r // 8}", f"boot{r // 8}", r + 1) for r in ranks
            },
            groups=[GroupInfo(name, name, members) for name, members in self.groups.items()],
            threshold_ns=np.full(len(names), round(self.threshold_s * 1e9)),
            pairs=self._pairs(),
            op=lambda group, seq: self.ops.get((names[group], seq), "all_reduce"),
            channels=self._channel_snapshot(names),
            signatures=self.signatures,
            mismatches=self.facts,
            moved_at=np.array([ago(s.moved_age) for s in seen], np.int64),
            clocks=RankClocks(np.zeros(len(ranks), np.int32), np.zeros(len(ranks), np.int64)),
            unread=frozenset(self.unread),
            unrecorded=self.unrecorded,
            call_threshold_ns={op: round(s * 1e9) for op, s in self.learned_s.items()},
            exits={r: s.exit for r, s in zip(ranks, seen, strict=True) if s.exit is not None},
        )

    def _pairs(self) -> PairColumns:
        pairs = [(name, rank) for name, members in self.groups.items() for rank in members]
        marks = [self.marks[pair] for pair in pairs]
        joined = np.array([mark.enqueued for mark in marks], np.int64)
        completed = np.array([mark.completed for mark in marks], np.int64)
        hidden = [pair in self.hidden or self.standings[pair[1]].gap for pair in pairs]
        forgotten = [pair in self.forgotten for pair in pairs]
        return PairColumns(
            first=np.cumsum([0, *map(len, self.groups.values())]),
            rank=np.array([rank for _, rank in pairs], np.int32),
            joined=joined,
            joined_most=np.where(hidden, ANY_SEQ, joined),
            started=np.array([mark.started for mark in marks], np.int64),
            completed=completed,
            completed_most=np.where(forgotten, ANY_SEQ, completed),
            head_since=np.array([mark.since for mark in marks], np.int64),
            moved_at=np.array([mark.moved for mark in marks], np.int64),
            since=np.array([mark.moved for mark in marks], np.int64),
        )

    def _channel_snapshot(self, names: Sequence[str]) -> ChannelSnapshot:
        rows = [(rank, names.index(name), *of_op) for rank, name, *of_op in self.channels]
        table = np.array(rows, np.int64).reshape(len(rows), 9).T
        return ChannelSnapshot.of(table)

    def stalls(self) -> StallTable:
        names = list(self.groups)
        rows = [
            (names.index(name), rank, mark.completed + 1, mark.since)
            for (name, rank), mark in self.marks.items()
            if mark.enqueued > mark.completed
        ] + [
            (names.index(name), rank, UNKNOWN_SEQ, since)
            for rank, name, _, _, _, since, *_ in self.channels
        ]
        late = [row for row in rows if self._confirmed(row[1], row[3])]
        table = np.array(late, np.int64).reshape(len(late), 4).T
        return StallTable(table[0].astype(np.int32), table[1].astype(np.int32), table[2], table[3])

    def _confirmed(self, rank: int, since: int) -> bool:
        standing = self.standings[rank]
        running = standing.state in (RankState.LIVE, RankState.SILENT)
        age_ns = ago(standing.as_of_age) - since
        return standing.declared and running and age_ns >= self.threshold_s * 1e9

    def find(self) -> list[Diagnosis]:
        policy = Policy(stall_after_s=self.threshold_s, telemetry_late_s=5.0)
        return diagnose(self.snapshot(), self.stalls(), policy)

    def only(self) -> Diagnosis:
        """The diagnosis of a scene that is one incident."""
        (diagnosis,) = self.find()
        return diagnosis


def named(diagnosis: Diagnosis | Finding) -> dict[int, Reason | None]:
    """The suspects: rank and reason."""
    return {suspect.rank: suspect.reason for suspect in diagnosis.suspects}


def blamed(diagnosis: Diagnosis | Finding) -> dict[int, tuple[Reason, Confidence]]:
    """The suspects: rank, reason and confidence."""
    return {suspect.rank: (suspect.reason, suspect.confidence) for suspect in diagnosis.suspects}
