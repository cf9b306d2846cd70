"""`frd.offline.output.memory.thinning`: fewer points, every peak."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frd.offline.output.memory.thinning import changes, extremes


@given(st.lists(st.integers(0, 100), min_size=1, max_size=200), st.integers(4, 50))
def test_no_peak_is_lost(values: list[int], most: int) -> None:
    """Of any values at most so many are kept, in order, with both ends, the lowest and highest."""
    column = np.array(values, np.int64)
    kept = extremes(column, most)
    assert len(kept) <= max(most, 4)
    assert (np.diff(kept) > 0).all()
    assert (kept[0], kept[-1]) == (0, len(values) - 1)
    assert column[kept].min() == min(values)
    assert column[kept].max() == max(values)


@pytest.mark.parametrize(
    ("values", "kept"),
    [([5], [0]), ([5, 5], [0, 1]), ([5, 5, 5], [0, 2]), ([5, 6, 6, 5, 5], [0, 1, 3, 4])],
)
def test_a_counter_keeps_its_value(values: list[int], kept: list[int]) -> None:
    """Values that repeat the one before are left out, except the last."""
    assert changes(np.array(values, np.int64)).tolist() == kept
