"""A key is found with its own values, or not at all, however its hash collides with others."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from frd.dftracer.block import KeyTable

KEYS = st.tuples(st.integers(0, 3), st.integers(0, 3))
BLOCKS = st.lists(st.lists(st.tuples(KEYS, st.booleans()), min_size=1, max_size=30), max_size=8)


@given(BLOCKS, st.integers(1, 5), st.booleans())
def test_values_are_those_of_the_key(
    blocks: list[list[tuple[tuple[int, int], bool]]], hashes: int, in_one_slot: bool
) -> None:
    """Blocks of few keys, whose hashes collide, in the whole or only in the bits of the slot."""
    table, asked = KeyTable(words=2, values=2), 0
    for block in blocks:
        keys = [key for key, _ in block]
        wanted = np.array([one for _, one in block])
        mixed = [(a * 4 + b) % hashes for a, b in keys]
        columns = [np.array(column, np.uint64) for column in zip(*keys, strict=True)]

        def meaning(row: int, keys: list[tuple[int, int]] = keys) -> tuple[int, int]:
            nonlocal asked
            asked += 1
            return keys[row]

        hashed = np.array(mixed, np.uint64) << np.uint64(0 if in_one_slot else 60)
        before = wanted.copy()
        values, found = table.find(hashed, columns, wanted, meaning)
        assert (wanted == before).all()
        assert not found[~wanted].any()
        for row in np.flatnonzero(found).tolist():
            assert tuple(values[:, row].tolist()) == keys[row]
        for row in np.flatnonzero(wanted & ~found).tolist():
            assert any(
                one != keys[row] and of == mixed[row]
                for one, of, is_key in zip(keys, mixed, wanted.tolist(), strict=True)
                if is_key
            )
    assert asked <= sum(len(block) for block in blocks)


def test_a_known_key_is_not_asked_for_again() -> None:
    """Two blocks with the same keys in other orders: their meanings are asked for once."""
    table, asked = KeyTable(words=1), []
    for order in ([5, 7, 5, 5], [7, 7, 5]):
        keys = np.array(order, np.uint64)

        def meaning(row: int, keys: np.ndarray = keys) -> tuple[int]:
            asked.append(int(keys[row]))
            return (10 * asked[-1],)

        everything = np.ones(len(keys), np.bool_)
        values, found = table.find(keys << np.uint64(60), [keys], everything, meaning)
        assert values.tolist() == [[10 * one for one in order]]
        assert found.all()
    assert sorted(asked) == [5, 7]
