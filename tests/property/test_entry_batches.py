"""Laws of entry batches: ranks that are applied together know what they know one by one."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from frd.engine.attempt import Attempt
from frd.engine.policy import Policy
from frd.engine.state.entry_batch import EntryRows
from frd.engine.state.snapshot_parts import pairs
from frd.model import AlignedNs, AttemptKey, GroupInfo, Signature
from tests.world.observe import rank_info

WORLD = 4
NOW = AlignedNs(10**18)


def attempt() -> Attempt:
    made = Attempt(AttemptKey("job", 0), WORLD, Policy(), NOW)
    for rank in range(WORLD):
        made.rank(rank_info(rank, WORLD))
        made.clocks.set([rank], rank // 2, 1_000, NOW)
    for name, members in (("world", (0, 1, 2, 3)), ("low", (0, 1)), ("high", (2, 3))):
        made.group(GroupInfo(name, name, members))
    made.signature(Signature("gloo", "all_reduce"))
    made.signature(Signature("gloo", "broadcast"))
    return made


def messages(dice: Random, of: Attempt) -> list[EntryRows]:
    """Of each rank one, with rows that join and may start, complete or fail; some have none."""
    found = []
    for rank in range(WORLD):
        own = [of.pair(rank, group) for group in (0, 1 + rank // 2)]
        seqs = {pair: iter(sorted(dice.sample(range(12), 6))) for pair in own}
        chosen = [dice.choice(own) for _ in range(dice.randrange(7))]
        rows = [(pair, next(seqs[pair])) for pair in chosen]
        if not rows:
            continue
        count = len(rows)
        alike = dice.choice([0, 1, 5])
        flags = [alike or dice.choice([1, 3, 5, 7, 13]) for _ in rows]
        times = [[dice.choice([0, NOW - 1 - dice.randrange(50)]) for _ in rows] for _ in range(2)]
        found.append(
            EntryRows(
                rank=rank,
                pair=np.array([pair for pair, _ in rows], np.int32),
                seq=np.array([seq for _, seq in rows], np.int64),
                signature=np.array([dice.randrange(2) for _ in rows], np.int32),
                flags=np.array(flags, np.uint8),
                created_ns=np.array([NOW - 100 + dice.randrange(50) for _ in range(count)]),
                started_ns=np.array(times[0]),
                completed_ns=np.array(times[1]),
            )
        )
    return found


def known(of: Attempt) -> tuple[object, ...]:
    """The pairs, the accumulators but for who was last among equals, and the mismatches."""
    slots = of._collectives.open_collectives.slots
    held = np.flatnonzero(slots.seq[: slots.count] >= 0)
    columns = (slots.seq, slots.joined, slots.first_created, slots.last_created,
               slots.second_created, slots.first_completed, slots.last_completed)  # fmt: skip
    shown = pairs(of.tables, of._collectives.ends_early, NOW)
    table = of.tables.pairs
    return (
        [sorted(zip(*(column[held].tolist() for column in columns), strict=True))],
        [getattr(shown, name).tolist() for name in type(shown).__slots__],
        [table.started_at[: table.count].tolist(), table.idle_until[: table.count].tolist()],
        of._collectives.open_collectives.open,
        [(fact.group, fact.seq, len(fact.classes)) for fact in of._collectives.facts()],
    )


@given(st.integers(0, 2**32 - 1))
def test_together_is_one_by_one(seed: int) -> None:
    """The same messages in one call, and in a call each, leave the same behind."""
    together, in_turn = attempt(), attempt()
    rows = messages(Random(seed), together)
    if rows:
        checked = [together.check_entries(one, replay=False, now=NOW) for one in rows]
        together.apply_entries(checked)
    for one in rows:
        in_turn.observe_entries(one, replay=False, now=NOW)
    assert known(together) == known(in_turn)
