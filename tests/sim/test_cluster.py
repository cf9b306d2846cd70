"""Simulated clusters of replicas: some worlds, the promises of a run, and the oracle itself.

More worlds: `python -m tests.sim --cluster --seeds 1000`.
"""

from __future__ import annotations

import pytest

from tests.sim.cluster.scenario import draw_cluster
from tests.sim.run import live
from tests.world.seeds import ALL

SEEDS = 5 if ALL else 2
REGRESSIONS: dict[int, str] = {
    300: "noticed twice: people got a message of a closing that could not be stored",
    692: "former owner, notice: the outbox had a message about a finding that was not stored",
    4053: "ends: a cell that was dropped while its replica ended stopped the end of the replica",
    20158: "two owners: a claimed cell was not in the view while other claims waited for answers",
    21579: "opened again: a new owner reported a rise of memory that the former had reported",
    22308: "closed by a takeover: a lost rank became part of a stall that named another rank",
}
"""Seeds that found something, and what."""


@pytest.mark.parametrize("seed", [*range(SEEDS), *REGRESSIONS])
def test_a_cluster_keeps_every_promise(seed: int) -> None:
    """Replicas are killed, paused and cut off, servers have no leader and lose answers: nothing
    acknowledged is lost, findings survive, no innocent rank is named, every cell is owned soon."""
    try:
        live(seed, cluster=True)
    except Exception as error:
        found = REGRESSIONS.get(seed, "is one of the first")
        error.add_note(f"seed {seed} {found}")
        raise


def test_the_same_seed_is_the_same_cluster() -> None:
    """A world is run twice: the agents send the same bytes, and the same findings are shown."""
    assert live(3, cluster=True).digest == live(3, cluster=True).digest


def test_a_cluster_without_events_has_no_findings() -> None:
    """A world without its events is healthy, and its cell is taken over only once."""
    seed = next(seed for seed in range(100) if len(draw_cluster(seed).events) > 3)
    summary = live(seed, only=(), cluster=True)
    assert summary.findings == {}
    assert summary.troubles["takeovers"] == 1
