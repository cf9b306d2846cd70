"""Two real incidents of 16-rank NCCL jobs, with the faults injected on ranks 9 and 14."""

from __future__ import annotations

from pathlib import Path

import pytest

import frd
from frd.model import Reason

TRACES = Path(__file__).parents[3] / "shared" / "traces"

pytestmark = pytest.mark.skipif(
    not TRACES.is_dir(), reason="the real traces (../shared/traces) are not here"
)


@pytest.mark.parametrize(
    ("incident", "reason"),
    [
        pytest.param("gpu_error_2nd", Reason.IN_COLLECTIVE_ALONE, id="gpu_error"),
        pytest.param("lock_gil_1st", Reason.CPU_STUCK, id="lock_gil"),
    ],
)
def test_exactly_the_injected_ranks_are_named(incident: str, reason: Reason) -> None:
    """Of 16 ranks in 13 layers of groups, 9 and 14 are at fault; all others are victims."""
    (finding,) = frd.load(TRACES / incident).findings
    assert {one.rank: one.reason for one in finding.suspects} == {9: reason, 14: reason}
    assert set(finding.victims) == set(range(16)) - {9, 14}
    assert finding.unknown == ()
