"""What an agent says that no agent would: broken, out of range, impossible, or simply untrue.

A lie may harm the liar's own ranks. It must not harm those of others.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from frd.model import EntryColumns, MemoryColumns, NodeNs, RankState, RankStatus, WatermarkColumns
from frd.wire import Statuses, Watermarks, encode_agent
from tests.world.clocks import S

if TYPE_CHECKING:
    from tests.sim.world import World

_Lie: TypeAlias = Callable[[random.Random, int], bytes]
"""A message of a node whose wall clock shows so much."""


def lie(world: World, number: int, dice: random.Random) -> None:
    """The agent of a node tells a few lies, among all the truth that it tells."""
    agent = world.nodes[number].agent
    for _ in range(dice.randrange(1, 5)):
        if agent is not None and agent.conn is not None:
            agent.conn.up.send(dice.choice(_LIES)(dice, agent.wall_ns()))


def _garbage(dice: random.Random, wall_ns: int) -> bytes:
    return dice.randbytes(dice.randrange(1, 200))


def _entries(dice: random.Random, wall_ns: int) -> bytes:
    """Of ranks and groups that nobody declared, or with revisions from before."""
    rows = dice.randrange(1, 20)
    return encode_agent(
        EntryColumns(
            rank=dice.choice((0, 1, 1 << 20)),
            first_revision=dice.choice((1, 1, 1 << 40)),
            group=np.full(rows, dice.choice((0, 1 << 20)), np.uint32),
            seq=np.arange(rows) + dice.choice((0, 1 << 40)),
            signature=np.full(rows, dice.choice((0, 1 << 20)), np.uint32),
            flags=np.full(rows, dice.randrange(16), np.uint8),
            created_ns=np.full(rows, wall_ns + dice.randrange(-1000 * S, 1000 * S)),
            started_ns=np.zeros(rows, np.int64),
            completed_ns=np.full(rows, dice.choice((0, wall_ns))),
        )
    )


def _marks(dice: random.Random, wall_ns: int) -> bytes:
    """It has long been waiting, far ahead of everybody, in the future. (That a rank waits in what
    comes next for all cannot be told from the truth, and nobody here says so.)"""
    far = dice.choice((100, 1 << 40))
    columns = WatermarkColumns(
        rank=np.zeros(1, np.uint32),
        group=np.zeros(1, np.uint32),
        enqueued=np.array([far]),
        started=np.array([-1]),
        completed=np.array([far - dice.choice((0, 1))]),
        head_created_ns=np.array([max(wall_ns - dice.randrange(600 * S), 1)]),
        seen_rank=np.zeros(1, np.uint32),
        as_of_ns=np.array([wall_ns + dice.choice((0, 3600 * S))]),
    )
    return encode_agent(Watermarks(0, columns, NodeNs(wall_ns + dice.choice((0, 3600 * S)))))


def _status(dice: random.Random, wall_ns: int) -> bytes:
    state = dice.choice((RankState.EXITED, RankState.SILENT, RankState.FINISHED))
    status = RankStatus(0, state, NodeNs(wall_ns), "a lie", dice.choice((0, 1 << 30)))
    return encode_agent(Statuses((status,)))


def _memory(dice: random.Random, wall_ns: int) -> bytes:
    return encode_agent(
        MemoryColumns(
            series=np.array([dice.choice((0, 1 << 20))], np.uint32),
            capacity=np.array([1 << 36]),
            begin_ns=np.array([wall_ns]),
            end_ns=np.array([wall_ns - dice.choice((0, S))]),
            values=np.array([[dice.choice((-5, 1 << 60, 1 << 35))]]),
        )
    )


_LIES: Final[tuple[_Lie, ...]] = (_garbage, _entries, _marks, _status, _memory)
