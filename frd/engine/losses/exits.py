"""How rank processes left: each exit with its time and its *manner*.

A job that dies leaves a mess of exits. One process is killed, raises or simply returns; its peers
raise because their connection broke; the launcher terminates the rest. Why a process left says more
about the first cause than when it did, because agents may see an end late. What follows from all of
them together is decided in `frd.engine.losses.lost_ranks`.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

import numpy as np

from frd.engine.clocks.alignment import UncertainTime
from frd.engine.state.snapshot import Snapshot
from frd.model import UNKNOWN_SEQ, AlignedNs, ExitInfo, ExitKind, Int64s, RankState

TOGETHER_NS: Final = 50_000_000
"""Exits closer than this have no order."""
SEEN_LATE_NS: Final = 2_000_000_000
"""How much later the exit of a process without a record may be seen, and how far apart the ranks of
one job end that end for one reason: an interpreter with torch takes a second or more to leave."""

_RECORD = re.compile(r"\b[\w.]*(?:Error|Exception)\b")
_INTERRUPTED = re.compile(r"\b(?:KeyboardInterrupt|SystemExit|SignalException)\b")
"""Both read the text on a rank that never had a process group, which has no `ExitInfo`."""
_GROUP_OR_STORE = re.compile(
    r"\bgloo\b|[nhrx]ccl|\buc[cx]\b|\bmpi\b|tensorpipe|\bc10d\b|ProcessGroup|store.based barrier"
    r"|(?:TCP|File|Hash|Prefix)Store|store->|Dist(?:Backend|Network|Store)?Error|monitoredBarrier",
    re.IGNORECASE,
)
"""What texts of torch about a process group or a store name."""
_FAILURE = re.compile(
    r"\bclosed\b|\breset\b|tim(?:ed?|ing).?out\b|\babort|\brefused\b|broken pipe|unreachable"
    r"|0 bytes|\beof\b|remote process|network error|remote ?error|system ?error"
    r"|collective mismatch|failed to pass|received errors|connectFullMesh|message truncated"
    r"|call to rank \d+ failed",
    re.IGNORECASE,
)
"""What they say if the communication failed. Checks of arguments say nothing of it."""
_LACKS_A_NAME = re.compile(
    r"RuntimeError: (?:Connection (?:closed|reset) by peer|Broken pipe|Socket Timeout)"
    r"|by peer \[[^]]+\]:\d|client socket has timed out|pair closure|waiting for key: "
    r"|for (?:send|recv) operation to complete|op\.preamble\.length"
    r"|Detected mismatch between collectives|SocketImpl\(|wait timeout after \d+ms, keys: "
)
"""Such failures whose texts name neither: of stores of older releases of torch, of Gloo as
frameworks quote it, and of torch with TORCH_DISTRIBUTED_DEBUG=DETAIL. Python's own
ConnectionResetError and BrokenPipeError are about connections of the program."""
_OWN = re.compile(
    r"(?:[\w.]*\.)?(?!Dist|Rendezvous)\w*(?:Connection|Timeout|NotFound|HTTP|Endpoint|OS)\w*Error\b"
    r"|.*(?:\b(?:cuda|hip) error|shared memory segment|no space left)",
    re.IGNORECASE,
)
"""Exceptions of Python and of its clients of other servers, whatever word their addresses contain,
and failures of the rank's own machine, whichever library noticed them."""
_CHECKPOINT = re.compile(r"CheckpointException ranks:dict_keys\(\[([\d, ]*)\]\)")
"""torch.distributed.checkpoint raises the exceptions of these ranks in all ranks."""
_WORKER_STOPPED = re.compile(r"killed by signal: (?:Terminated|Interrupt)")
"""A data loader's worker got the SIGTERM or SIGINT that was meant for the whole job."""
_ASKS: Final = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGINT})


class Manner(IntEnum):
    """Why a process ended; the lower, the likelier it is the first cause."""

    OWN = 0
    """It returned, called exit, raised an exception that blames no peer, crashed, or got SIGKILL,
    which no launcher sends before SIGTERM."""
    SILENT = 1
    """It is gone without an exit record: killed, probably."""
    ABORTED = 2
    """SIGABRT: its own fault, or its watchdog's answer to a peer's."""
    REACTED = 3
    """It raised an exception that blames a peer, or its library aborted because members of its
    group disagree."""
    ASKED = 4
    """Ctrl-C, SIGTERM, SIGHUP: a person or the launcher wanted it to stop."""


@dataclass(frozen=True, slots=True)
class Exit:
    """One rank that is gone."""

    rank: int
    seen: UncertainTime
    how: ExitInfo
    manner: Manner
    earliest: AlignedNs
    """When it was last known to run, if its process left no record of its end: an agent may find an
    exit long after it, as when the agent was down meanwhile."""
    is_known_to_end: bool = False
    """Everything that it did is known, to its end."""
    deserted: bool = False
    """Its peers joined a collective that it never joined, as far as it is known to its end."""
    is_unheard: bool = False
    """No exit was reported: its agent has gone, and its peers lost their connections to it."""

    @property
    def at(self) -> AlignedNs:
        return self.seen.at

    @property
    def is_clean(self) -> bool:
        return self.how.kind is ExitKind.CLEAN

    @property
    def is_bad(self) -> bool:
        """Something to explain: not clean, or clean too early."""
        return not self.is_clean or self.deserted

    @property
    def has_record(self) -> bool:
        """The process itself wrote down when it ended; other exits are seen later."""
        return self.how.kind not in (ExitKind.SIGNAL, ExitKind.UNKNOWN)

    @property
    def is_interrupt(self) -> bool:
        """By Ctrl-C, which no launcher sends by itself."""
        return self.manner is Manner.ASKED and (
            self.how.kind is ExitKind.INTERRUPT or self.how.signal == signal.SIGINT
        )

    @property
    def way(self) -> tuple[object, ...]:
        """What exits for the same reason have in common. The text of an exception may contain
        numbers, a signal that comes after it says nothing, and a rank without an exit record may
        have been killed."""
        how = self.how
        if self.manner is Manner.SILENT or how.signal == signal.SIGKILL:
            return ("killed",)
        if how.kind is ExitKind.EXCEPTION:
            return self.manner, how.exception.partition(":")[0], how.where
        return how.kind, how.signal, how.status


def manner_of(how: ExitInfo, rank: int) -> Manner:
    if how.kind is ExitKind.EXCEPTION:
        if _WORKER_STOPPED.search(how.exception):
            return Manner.ASKED
        return Manner.REACTED if _blames_a_peer(how.exception, rank) else Manner.OWN
    if how.kind is ExitKind.INTERRUPT or (how.signal in _ASKS and how.kind is not ExitKind.CLEAN):
        return Manner.ASKED
    if how.kind is ExitKind.UNKNOWN:
        return Manner.SILENT
    if how.signal == signal.SIGABRT:
        return Manner.ABORTED
    return Manner.REACTED if how.signal == signal.SIGPIPE else Manner.OWN


def _blames_a_peer(exception: str, rank: int) -> bool:
    """Only a failed communication of a process group or a store does: a failed download says
    "connection" and "remote" as well, and a check of arguments names the process group."""
    if failed := _CHECKPOINT.search(exception):
        return str(rank) not in failed[1].split(", ")
    if _LACKS_A_NAME.search(exception):
        return True
    is_named = _GROUP_OR_STORE.search(exception) and _FAILURE.search(exception)
    return bool(is_named) and not _OWN.match(exception)


def was_asked(detail: str) -> bool:
    """The text on a process that is gone says that a person or the launcher stopped it, not while
    it ended by its own exception."""
    killed = any(f"killed by {one.name}" in detail for one in _ASKS)
    return (killed and not _RECORD.search(detail)) or _INTERRUPTED.search(detail) is not None


def how_it_ended(snapshot: Snapshot, row: int) -> ExitInfo:
    """What the agent sent. A rank that never had a process group, or went on as another one, has
    finished without it."""
    known = snapshot.exits.get(int(snapshot.rank[row]))
    is_clean = snapshot.state[row] is RankState.FINISHED
    return known or ExitInfo(ExitKind.CLEAN if is_clean else ExitKind.UNKNOWN)


def exits(snapshot: Snapshot) -> list[Exit]:
    """All ranks of the attempt that are gone, earliest first."""
    gone = np.flatnonzero(snapshot.in_state(RankState.EXITED, RankState.FINISHED))
    known = _known_to_end(snapshot, gone)
    deserters = _deserters(snapshot, known)
    disagree = {rank for m in snapshot.mismatches for rank in snapshot.groups[m.group].ranks}
    found = []
    for row, rank in zip(gone.tolist(), snapshot.rank[gone].tolist(), strict=True):
        how = how_it_ended(snapshot, row)
        at = snapshot.moment(rank, AlignedNs(int(snapshot.state_since[row])))
        manner = manner_of(how, rank)
        if manner is Manner.ABORTED and rank in disagree:
            manner = Manner.REACTED
        one = Exit(rank, at, how, manner, at.at, rank in known, rank in deserters)
        if not one.has_record:
            one = replace(one, earliest=AlignedNs(min(at.at, int(snapshot.as_of[row]) or at.at)))
        found.append(one)
    return sorted(found, key=lambda exited: (exited.at, exited.rank))


def _known_to_end(snapshot: Snapshot, gone: Int64s) -> set[int]:
    """Ranks of the rows `gone` that finished and are known to their end."""
    return {
        rank
        for row, rank in zip(gone.tolist(), snapshot.rank[gone].tolist(), strict=True)
        if snapshot.state[row] is RankState.FINISHED
        and rank in snapshot.exits
        and not snapshot.gap[row]
        and 0 < snapshot.state_since[row] <= snapshot.as_of[row]
    }


def _deserters(snapshot: Snapshot, known: set[int]) -> set[int]:
    """Ranks of `known` that have not joined what their peers joined."""
    if not known:
        return set()
    pairs = snapshot.pairs
    mine = np.isin(pairs.rank, list(known)) & (pairs.joined > UNKNOWN_SEQ)
    mine &= pairs.joined_most == pairs.joined
    groups = pairs.groups()
    highest = np.full(len(snapshot.groups), UNKNOWN_SEQ, np.int64)
    np.maximum.at(highest, groups, pairs.joined)
    return set(pairs.rank[mine & (pairs.joined < highest[groups])].tolist())
