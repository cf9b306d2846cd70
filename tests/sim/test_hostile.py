"""A tenant that attacks the service hides no hang of another one; all 500 lives in `make sim`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.hostile import live
from tests.world.seeds import seeds


@pytest.mark.parametrize("seed", range(seeds(500, 40)))
def test_the_hang_of_another_job_is_found(seed: int, tmp_path: Path) -> None:
    """Whatever is sent with a token of job a, the hang of job b has its finding within two seconds
    of the threshold, and its first cause is named."""
    life = live(seed, tmp_path)
    assert life.suspects == [3]
    assert life.found_s < 7.5
