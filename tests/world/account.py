"""An account of every collective that the ranks of a job have recorded.

The ranks know what they recorded; the journal holds the rows that the service has applied (those of
all replicas together, in a cluster), and its
metrics count the rows known to be missing. The account must balance to the last row, whatever was
killed or cut in between: recorded = applied + missing, and missing rows were counted as a gap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from frd.model import AttemptKey, EntryColumns, Flags, RankInfo
from frd.store.journal import read
from frd.store.records import Record, RecordKind
from frd.wire.codec import Decoder
from frd.wire.messages import Declare, Hello

Seqs: TypeAlias = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Stream:
    """Attempts and ranks by their index."""

    decoder: Decoder = field(default_factory=Decoder)
    session: str = ""
    attempts: list[AttemptKey] = field(default_factory=list)
    ranks: list[tuple[AttemptKey, RankInfo]] = field(default_factory=list)


class Logged(NamedTuple):
    """Rows of one rank, as an agent has sent them."""

    session: str
    attempt: AttemptKey
    rank: RankInfo
    rows: EntryColumns


def logged(records: Iterable[Record]) -> Iterator[Logged]:
    """All rows of one journal after the other, in order of arrival."""
    streams: dict[int, _Stream] = {}
    for record in records:
        if record.kind is RecordKind.OPENED:
            streams[record.stream] = _Stream()
        elif record.kind is RecordKind.MESSAGE:
            stream = streams[record.stream]
            match stream.decoder.decode(record.payload):
                case Hello() as hello:
                    stream.session = hello.session
                case Declare() as declare:
                    stream.attempts += [attempt.key for attempt in declare.attempts]
                    stream.ranks += [
                        (stream.attempts[r.attempt_index], r.info) for r in declare.ranks
                    ]
                case EntryColumns() as rows:
                    yield Logged(stream.session, *stream.ranks[rows.rank], rows)
                case _:
                    pass


@dataclass(slots=True)
class _RankRows:
    """All rows of one rank, in order of arrival."""

    joined: list[Seqs] = field(default_factory=list)
    completed: list[Seqs] = field(default_factory=list)
    revisions: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """First and last of each batch, by session of the agent."""


@dataclass(frozen=True, slots=True)
class Account:
    """The account of one job. It counts facts: a rank joined a collective, a rank completed one."""

    recorded: int
    """By the ranks."""
    applied: int
    """By the service, each counted once."""
    repeated: int
    """Sent again: after a reconnect, by a new agent, or to a new service."""
    open: int
    """Joined and not completed."""
    missing: Mapping[int, tuple[int, ...]]
    """By rank: collectives of which the service lacks a fact."""
    invented: Mapping[int, tuple[int, ...]]
    """By rank: collectives that the rank never recorded like this."""
    rows_missing: int
    """Rows that an agent has numbered and that never arrived, before the last one that did."""

    def balances(self, gap: int) -> bool:
        """True if all missing rows have been counted as a gap, and no row is invented."""
        missing = sum(map(len, self.missing.values()))
        return missing == gap and not self.invented and not self.rows_missing

    def __str__(self) -> str:
        return (
            f"{self.recorded} recorded = {self.applied} applied + missing of "
            f"{ {rank: seqs[:8] for rank, seqs in self.missing.items()} }; {self.repeated} "
            f"repeated, {self.open} open, {self.rows_missing} rows missing, invented "
            f"{dict(self.invented)}"
        )


def account(
    journals: Iterable[Path], job: str, joined: Mapping[int, int], completed: Mapping[int, int]
) -> Account:
    """Ranks have joined the collectives 1 to `joined` and completed those to `completed`.

    Journals may still be written: a record that is cut off is left out.
    """
    records = chain.from_iterable(read(journal, lambda warning: None) for journal in journals)
    by_rank = _read(records, job)
    applied = repeated = rows_missing = 0
    missing: dict[int, tuple[int, ...]] = {}
    invented: dict[int, tuple[int, ...]] = {}
    for rank, last in joined.items():
        of_rank = by_rank.get(rank, _RankRows())
        lacking, beyond = [], []
        for batches, last_true in ((of_rank.joined, last), (of_rank.completed, completed[rank])):
            seqs = np.concatenate([np.empty(0, np.int64), *batches])
            known = np.unique(seqs)
            expected = np.arange(1, last_true + 1)
            applied += len(known)
            repeated += len(seqs) - len(known)
            lacking.append(np.setdiff1d(expected, known, assume_unique=True))
            beyond.append(np.setdiff1d(known, expected, assume_unique=True))
        if len(lack := np.union1d(*lacking)):
            missing[rank] = tuple(lack.tolist())
        if len(extra := np.union1d(*beyond)):
            invented[rank] = tuple(extra.tolist())
        rows_missing += sum(_holes(batches) for batches in of_rank.revisions.values())
    total, done = sum(joined.values()), sum(completed.values())
    return Account(total + done, applied, repeated, total - done, missing, invented, rows_missing)


def _holes(batches: list[tuple[int, int]]) -> int:
    """Revisions from 1 on that are in no batch."""
    reached = holes = 0
    for first, last in sorted(batches):
        holes += max(first - reached - 1, 0)
        reached = max(reached, last)
    return holes


def _read(records: Iterable[Record], job: str) -> dict[int, _RankRows]:
    """By global rank."""
    by_rank: defaultdict[int, _RankRows] = defaultdict(_RankRows)
    for session, attempt, rank, rows in logged(records):
        if attempt.job == job:
            of_rank = by_rank[rank.rank]
            of_rank.joined.append(rows.seq[(rows.flags & Flags.JOINED) != 0])
            of_rank.completed.append(rows.seq[(rows.flags & Flags.COMPLETED) != 0])
            if rows.first_revision:
                last = rows.first_revision + len(rows) - 1
                of_rank.revisions[session].append((rows.first_revision, last))
    return by_rank
