"""False messages of an agent: malformed, out of range, impossible, or simply untrue.

They may harm the agent's own ranks. They must not harm the ranks of other agents.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from frd.model import MemoryColumns, NodeNs, RankState, RankStatus
from frd.wire.codec import encode_agent
from frd.wire.messages import Statuses
from tests.world.clocks import S
from tests.world.messages import entry_columns, watermarks

if TYPE_CHECKING:
    from tests.sim.world import World

_Lie: TypeAlias = Callable[[random.Random, int], bytes]
"""Dice and the node's time to a message."""


def lie(world: World, number: int, dice: random.Random) -> None:
    """The agent of a node sends a few false messages among its true ones."""
    agent = world.nodes[number].agent
    for _ in range(dice.randrange(1, 5)):
        if agent is not None and agent.conn is not None:
            agent.conn.up.send(dice.choice(_LIES)(dice, agent.raw_ns()))


def _garbage(dice: random.Random, node_ns: int) -> bytes:
    return dice.randbytes(dice.randrange(1, 200))


def _entries(dice: random.Random, node_ns: int) -> bytes:
    """Rows of ranks and groups that no agent declared, or with earlier revisions."""
    rows = dice.randrange(1, 20)
    # Frozen lives depend on the order in which these are drawn.
    rank, revision = dice.choice((0, 1, 1 << 20)), dice.choice((1, 1, 1 << 40))
    group, start = dice.choice((0, 1 << 20)), dice.choice((0, 1 << 40))
    return encode_agent(
        entry_columns(
            range(start, start + rows),
            rank=rank,
            revision=revision,
            group=group,
            signature=dice.choice((0, 1 << 20)),
            flags=dice.randrange(16),
            created=node_ns + dice.randrange(-1000 * S, 1000 * S),
            completed=dice.choice((0, node_ns)),
        )
    )


def _marks(dice: random.Random, node_ns: int) -> bytes:
    """The rank has long been waiting, far ahead of all ranks, in the future. (A false wait in the
    next collective of all ranks looks like the truth, so it is not among these messages.)"""
    far = dice.choice((100, 1 << 40))
    false_watermarks = watermarks(
        [0],
        enqueued=far,
        completed=far - dice.choice((0, 1)),
        head=max(node_ns - dice.randrange(600 * S), 1),
        seen=[0],
        as_of=node_ns + dice.choice((0, 3600 * S)),
        sent=node_ns + dice.choice((0, 3600 * S)),
        raw=node_ns,
    )
    return encode_agent(false_watermarks)


def _status(dice: random.Random, node_ns: int) -> bytes:
    state = dice.choice((RankState.EXITED, RankState.SILENT, RankState.FINISHED))
    status = RankStatus(0, state, NodeNs(node_ns), "a lie", dice.choice((0, 1 << 30)))
    return encode_agent(Statuses((status,)))


def _memory(dice: random.Random, node_ns: int) -> bytes:
    return encode_agent(
        MemoryColumns(
            series=np.array([dice.choice((0, 1 << 20))], np.uint32),
            capacity=np.array([1 << 36]),
            begin_ns=np.array([node_ns]),
            end_ns=np.array([node_ns - dice.choice((0, S))]),
            values=np.array([[dice.choice((-5, 1 << 60, 1 << 35))]]),
        )
    )


_LIES: Final[tuple[_Lie, ...]] = (_garbage, _entries, _marks, _status, _memory)
