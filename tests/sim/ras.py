"""What NCCL's RAS service says in a simulated job: how many collectives each rank has launched."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from frd.wire.waits import Communicator, Member, MemberState, RasReport
from tests.sim.ops import Group
from tests.sim.ranks import SimRank

if TYPE_CHECKING:
    from tests.sim.watched import Process


def report_of(rank: SimRank, job: Sequence[Process]) -> RasReport:
    """Of all communicators of one rank. `job`: the processes of all ranks, in order."""
    groups = [group for group in rank.seats if group.backend == "nccl"]
    return RasReport(tuple(_communicator(group, job) for group in groups))


def _communicator(group: Group, job: Sequence[Process]) -> Communicator:
    processes = [job[number] for number in group.ranks]
    members = [_member(at, process, group) for at, process in enumerate(processes)]
    name = f"{group.name}/{processes[0].info.pid}"
    number = zlib.crc32(name.encode()) << 16 | len(processes)
    return Communicator(f"{number:x}", len(processes), ("AllReduce",), tuple(members))


def _member(at: int, process: Process, group: Group) -> Member:
    rank, pid = process.rank, process.info.pid
    if not rank.alive:
        return Member(at, pid, rank.node, int(MemberState.MISSING | MemberState.DEAD))
    if rank.stopped:
        return Member(at, pid, rank.node, int(MemberState.MISSING | MemberState.UNRESPONSIVE))
    seat = rank.seats.get(group)
    return Member(at, pid, rank.node, counts=(seat.seq if seat is not None else 0,))
