"""Nodes of the wait-for graph: waits, the members that they wait for, and unknown ranks."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

from frd.engine.hangs.ops_in_flight import Instance, Op


class Ending(Enum):
    """What the last node of a chain of waits is."""

    MISMATCH = "members whose signatures disagree"
    ALONE = "members still inside an op that a peer has completed"
    DEVICE = "members whose device never started what their peers' devices started"
    GONE = "a rank with positive evidence that its process exited or stopped"
    IDLE = "a rank that is alive and in no collective"
    ORDER = "ranks that wait for each other in a circle"
    MOVING = "a rank that makes progress elsewhere"
    UNKNOWN = "a rank of which nothing fresh is known"
    NO_RANK = "an op that all members have joined and none completes"


class TelemetryFault(Enum):
    """Why nothing can be claimed about a rank."""

    NEVER_SEEN = "no agent has reported it"
    DISCONNECTED = "its agent is not connected"
    LATE = "its telemetry is late"
    GAP = "its telemetry has gaps"
    UNPROVEN = "its telemetry is too old to prove it"


class Wait(NamedTuple):
    """All ranks whose oldest op in flight (their *head*) is this one.

    Ranks whose device has started a collective, and ranks whose device has not, are two nodes. So
    are the two ends of a P2P channel.
    """

    instance: Instance
    started: bool = False
    rank: int = -1


def wait_of(rank: int, op: Op) -> Wait:
    """The node in which a rank waits for an op that it has in flight."""
    if op.instance.is_p2p:
        return Wait(op.instance, rank=rank)
    return Wait(op.instance, started=op.started)


class Member(NamedTuple):
    """A member for which other ranks wait."""

    rank: int


class UnknownRank(NamedTuple):
    """A rank for which other ranks wait, and whose telemetry does not show what it does."""

    rank: int
    fault: TelemetryFault


Node: TypeAlias = Wait | Member | UnknownRank
"""Tuples, because a big job has tens of thousands of them. Each class has its own number of fields,
so that nodes of different classes are never equal."""
