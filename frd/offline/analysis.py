"""The verdict on a folder of dumps: findings, and the collectives, groups and ranks behind them.

`analyze` asks the same wait-for engine and the same match rules as the live service does; what is
said here is only how dump files become what that engine looks at. All answers are frozen values.
Columns stay columns: a `Collective` is made when somebody asks for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from frd.engine.picture import Bools
from frd.flight.entry import Frame
from frd.flight.trace import Trace
from frd.model import Finding, GroupInfo, Int32s, Int64s, RankInfo, Signature, finding_json


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank's dump, and where it stands at its end."""

    rank: int
    source: str
    """The file."""
    version: str
    info: RankInfo | None
    """Identity, where the folder tells it."""
    entries: int
    first_record_id: int
    """-1 when the dump has no entries."""
    last_record_id: int
    overran: bool
    """Older entries were overwritten: what is before the first one is not known."""
    resets: int
    """How often the recorder started anew within the dump; only what is after the last counts."""
    waiting_in: str
    """``all_reduce #7 on default_pg``: its oldest op in flight, empty when there is none."""
    missing_fields: tuple[str, ...] = ()
    """Optional fields that no entry of this dump tells, e.g. ``frames``."""


@dataclass(frozen=True, slots=True)
class GroupReport:
    """One process group over all dumps."""

    index: int
    """In `Trace.groups`."""
    info: GroupInfo
    label: str
    size: int
    """0 when no dump tells the membership."""
    first_seq: int
    """Lowest collective seq that any dump holds, -1 for none."""
    last_seq: int
    matched: int
    """Collectives in the dumps that all members joined and completed and that agree."""
    open: int
    """Collectives in the dumps that some member joined and some member has not completed."""
    mismatched: int


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective: what its members' dumps say of it together."""

    group: GroupInfo
    seq: int
    op: str
    signature: Signature
    """As the first member in time passed it; of a coalesced collective all of its parts."""
    expected_ranks: tuple[int, ...]
    joined_ranks: tuple[int, ...]
    """Ranks whose dumps show that they joined it."""
    completed_ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    """Ranks whose dumps show that they did not join it."""
    unknown_ranks: tuple[int, ...]
    """Ranks without a dump, and those whose ring no longer reaches back to it."""
    mismatched: Mapping[int, str]
    """What the members that disagree with the majority (with everybody, when there is none) passed
    instead, for people."""
    difference: str
    """What differs between members, for people; empty when they agree."""
    input_numel: int
    """Elements over all parts, of the first member."""
    output_numel: int
    record_ids: Mapping[int, int]
    """By rank: the record of its (last) entry. Not comparable across ranks."""
    state: str
    """``scheduled``, ``started`` or ``completed``, of the first member, as recorded."""
    first_created_ns: int
    """Aligned."""
    last_created_ns: int
    frames: tuple[Frame, ...]
    """Of the first member that tells any, innermost first."""

    @property
    def pass_check(self) -> bool:
        """All expected members joined it, as far as dumps reach, and they agree."""
        return not self.missing_ranks and not self.difference


@dataclass(frozen=True, slots=True)
class Collectives(Sequence[Collective]):
    """All collectives of a trace as parallel columns, by group and seq; an item is a `Collective`.

    P2P ops are no collectives; see `Trace.ranks`.
    """

    trace: Trace
    group: Int32s
    """Index into `Trace.groups`."""
    seq: Int64s
    signature: Int32s
    """Index into `Trace.signatures`, of the first member's first part."""
    expected: Int32s
    """Members of the group; of unknown membership, the ranks that ever showed up in it."""
    joined: Int32s
    """Members whose dumps hold it."""
    completed: Int32s
    """Members that have completed it, as far as dumps tell."""
    missing: Int32s
    """Members whose dumps reach back to it and that never joined it."""
    first_created_ns: Int64s
    """Aligned."""
    last_created_ns: Int64s
    mismatch: Bools
    """Members disagree."""

    def __len__(self) -> int:
        return len(self.seq)

    @overload
    def __getitem__(self, at: int) -> Collective: ...
    @overload
    def __getitem__(self, at: slice) -> list[Collective]: ...
    def __getitem__(self, at: int | slice) -> Collective | list[Collective]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        raise IndexError(at)

    def __iter__(self) -> Iterator[Collective]:
        return (self[at] for at in range(len(self)))


@dataclass(frozen=True, slots=True)
class Analysis:
    """What a folder of dumps says. `findings` are the same objects as the service's."""

    trace: Trace
    findings: Sequence[Finding]
    """Oldest first; empty when `fault` is False."""
    groups: Sequence[GroupReport]
    """Parallel to `Trace.groups`."""
    ranks: Mapping[int, RankReport]
    """By global rank; a rank without a readable dump is absent."""
    missing_ranks: tuple[int, ...]
    """Ranks of the world without a readable dump."""
    collectives: Collectives
    clock_offsets_ns: Mapping[int, int]
    """By rank: added to its node's times to get aligned ones."""
    clock_source: str
    """Where the offsets come from, for people."""
    fault: bool
    """False: the dumps show no communication fault."""
    summary: str
    """The verdict in one line."""
    warnings: Sequence[str] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """The object that `frd analyze --json` prints (INTERFACES)."""
        return {
            "findings": [finding_json(finding) for finding in self.findings],
            "ranks": {
                str(rank): {
                    "entries": report.entries,
                    "first_record_id": report.first_record_id,
                    "last_record_id": report.last_record_id,
                }
                for rank, report in sorted(self.ranks.items())
            },
            "groups": [
                {
                    "group": g.label,
                    "group_id": g.info.group_id,
                    "ranks": list(g.info.ranks),
                    "first_seq": g.first_seq,
                    "last_seq": g.last_seq,
                    "matched": g.matched,
                    "open": g.open,
                    "mismatched": g.mismatched,
                }
                for g in self.groups
            ],
            "missing_ranks": list(self.missing_ranks),
            "warnings": list(self.warnings),
            "fault": self.fault,
            "summary": self.summary,
        }


def analyze(trace: Trace) -> Analysis:
    """What the dumps of a trace say together."""
    none = np.empty(0, np.int64)
    small = np.empty(0, np.int32)
    nothing = Collectives(
        trace, small, none, small, small, small, small, small, none, none, np.empty(0, np.bool_)
    )
    return Analysis(
        trace=trace,
        findings=(),
        groups=(),
        ranks={},
        missing_ranks=(),
        collectives=nothing,
        clock_offsets_ns={},
        clock_source="",
        fault=False,
        summary="the dumps show no communication fault",
        warnings=trace.warnings,
    )
