"""A folder of dumps as columns: the offline counterpart of the wire's batches.

A dump of 2,000 entries as Python objects costs milliseconds and megabytes; as numpy columns over
shared dictionaries it costs a fraction. A `RankTrace` holds the rows of one rank in recording
order; groups, names, signatures and stacks are indexes into the dictionaries of its `Trace`.
Nothing is matched or judged here, and no column is invented: a value missing in a format is the
value that its field's note names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from frd.flight.entry import Frame, Hole, Status
from frd.flight.names import Name
from frd.model import (
    Activity,
    AlignedNs,
    AttemptKey,
    Bools,
    Float64s,
    GroupInfo,
    Int32s,
    Int64s,
    RankInfo,
    Signature,
    UInt8s,
)

STATES = ("scheduled", "started", "completed")
SCHEDULED, STARTED, COMPLETED = range(3)
"""Values of the `state` column, indexes into `STATES`."""


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank's recorder as columns of shape (n,), one element an entry, in recording order."""

    rank: int
    source: str
    """The file, for people."""
    version: str
    info: RankInfo | None
    """Identity, if the folder has it (`frd dump` folders do)."""
    clock_offset_ns: int | None
    """Service clock minus node clock, if the folder has it."""
    record_id: Int64s
    group: Int32s
    """Index into `Trace.groups`."""
    pg_id: Int64s
    """Process-local; the key of `status` and of nothing else."""
    seq: Int64s
    """`collective_seq_id`."""
    p2p_seq: Int64s
    op_id: Int64s
    is_p2p: UInt8s
    """1 when the entry, or its op's name, says so."""
    name: Int32s
    """Index into `Trace.names`."""
    signature: Int32s
    """Index into `Trace.signatures`."""
    state: UInt8s
    """`SCHEDULED`, `STARTED` or `COMPLETED`."""
    retired: UInt8s
    """0 or 1."""
    damaged: UInt8s
    """1 when the signature says nothing, see `Dump.damaged`."""
    created_ns: Int64s
    """CLOCK_REALTIME of the node, ns since the epoch, as are the next two; 0 when unknown."""
    started_ns: Int64s
    """When torch noticed the start; 0 when unknown."""
    completed_ns: Int64s
    """When torch noticed the completion; 0 when unknown."""
    duration_ms: Float64s
    """On the device, ms; NaN when unknown."""
    stack: Int32s
    """Index into `Trace.stacks`, -1 for none."""
    thread: Int32s
    """Index into `Trace.threads`, -1 when unknown."""
    timeout_ms: Int64s
    """0 when unknown."""
    status: Mapping[int, Status] = field(default_factory=dict)
    """Raw `pg_status` by `pg_id`."""
    holes: tuple[Hole, ...] = ()
    """Entries that cannot be read."""
    member_of: tuple[int, ...] = ()
    """Index into `Trace.groups` of groups whose members the dump has, used or not."""
    clock_uncertainty_ns: int | None = None
    """Bound on the error of `clock_offset_ns`; None if the folder has none."""
    dumped_from_ns: int = 0
    """The dump was not taken before this time of the node's clock; 0 when unknown."""
    dumped_until_ns: int = 0
    """Nor after this one; 0 when unknown."""

    def __len__(self) -> int:
        return len(self.seq)

    @property
    def newest_ns(self) -> int:
        """The latest time in the dump; 0 when unknown."""
        columns = (self.created_ns, self.started_ns, self.completed_ns)
        return max(int(column.max(initial=0)) for column in columns)

    def unread_before(self, group: GroupInfo) -> int:
        """The row that follows all entries that cannot be read and may be of this group."""
        return max((one.before for one in self.holes if one.group in (None, group.name)), default=0)

    def take(self, rows: Int64s | Bools) -> RankTrace:
        """The columns of some rows. Of holes it stays unknown what follows them."""
        columns: dict[str, Any] = {
            name: column[rows]
            for name in self.__slots__
            if isinstance(column := getattr(self, name), np.ndarray)
        }
        return replace(self, **columns)


@dataclass(frozen=True, slots=True)
class Trace:
    """All ranks of one job from one folder of dumps."""

    key: AttemptKey
    ranks: Mapping[int, RankTrace]
    """By global rank; a rank without a readable file is absent."""
    groups: Sequence[GroupInfo]
    """Distinguished by name and ranks; `ranks` is empty if no dump has the membership."""
    names: Sequence[Name]
    signatures: Sequence[Signature]
    stacks: Sequence[tuple[Frame, ...]]
    """Innermost first."""
    threads: Sequence[str]
    world_size: int
    """Maximum over identities and groups; 0 if unknown."""
    warnings: Sequence[str] = ()
    """Each names a file that was left out, and why."""
    standing: Mapping[int, Activity] = field(default_factory=dict)
    """What a rank's program was doing when the dump was taken, if the folder holds its stack."""
    taken_at: AlignedNs | None = None
    """When the dumps were taken, if the folder has it."""
    stall_after_s: float | None = None
    """The stall threshold of the service that took the dumps, if the folder has it."""
    folder: str = ""
    """Where the dumps were found."""
    outside: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """By rank, groups that it recorded in although they exclude it: these entries are not
    judged."""


def minor_version(version: str) -> tuple[int, int]:
    """Of a dump's format; an unreadable version counts as old."""
    major, _, minor = version.partition(".")
    return int(major) if major.isdigit() else 2, int(minor) if minor.isdigit() else 0
