"""PyTorch's own tutorial example: one rank does a collective more than the other."""

from __future__ import annotations

import pytest

from frd.cli.commands.demo.scenarios import Scenario
from frd.cli.commands.demo.stage import examples
from tests.world.daemons import finding_with, watched

pytestmark = [pytest.mark.torch, pytest.mark.timeout(90)]


def test_the_line_of_the_extra_call_is_named() -> None:
    """Rank 0 calls all_reduce once more: rank 1 did not join, and rank 0's extra line is named."""
    script = "extra_collective.py"
    (line,) = (
        number
        for number, text in enumerate((examples() / script).read_text().splitlines(), 1)
        if "torch.ones(1024, 1024)" in text
    )
    extra = Scenario("extra", "a collective more", script)
    with watched(extra, 2, 2.0) as (_, client):
        found = finding_with(client, "witness")
        assert [s["rank"] for s in found["suspects"]] == [1]
        assert found["collective"]["missing_ranks"] == [1]
        assert found["collective"]["seq"] == 21
        assert found["witness"]["rank"] == 0
        assert found["witness"]["stack"][0] == f"{script}:{line} in main"
