"""Jobs in which nothing is wrong, watched closely: no finding, and no harm."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from frd.cli.client import Client
from frd.cli.commands.demo.stage import Stage
from tests.gpu.watch import logs, scenario
from tests.world.daemons import findings, until, watched

SECONDS = 15
pytestmark = [pytest.mark.torch, pytest.mark.timeout(200)]


@pytest.mark.parametrize(
    ("kind", "ranks", "timing"),
    [
        pytest.param("mixed", 3, False, marks=pytest.mark.nccl),
        pytest.param("mixed", 3, True, marks=pytest.mark.nccl),
        pytest.param("graphs", 2, False, marks=pytest.mark.nccl),
        ("sharded", 3, False),
        pytest.param("pipelined", 3, False, marks=pytest.mark.nccl),
    ],
)
def test_no_finding(
    kind: str,
    ranks: int,
    timing: bool,
    monkeypatch: pytest.MonkeyPatch,
    row: Callable[..., None],
) -> None:
    """Batches of sends, coalesced and uneven collectives, CUDA graphs, FSDP2 and a pipeline: the
    job ends well, and frd has nothing to say, although its stall threshold is two seconds."""
    if timing:
        monkeypatch.setenv("TORCH_NCCL_ENABLE_TIMING", "1")
    with watched(scenario(kind, "ordinary.py"), ranks, 2.0, [kind, str(SECONDS)]) as (
        stage,
        client,
    ):
        ended_well(stage, client)
        row(f"{kind}{', timing' if timing else ''}", "nothing", "none")


def ended_well(stage: Stage, client: Client) -> None:
    def ended() -> bool:
        return all(rank.poll() is not None for rank in stage.ranks)

    until(ended, lambda: logs(stage), SECONDS + 120)
    assert [rank.returncode for rank in stage.ranks] == [0] * stage.world, logs(stage)
    assert [one["summary"] for one in findings(client)] == []
