"""Simulated clusters: a fixed set of worlds, the worlds that found bugs, and what a run promises.

Thousands more: `make sim SEEDS=10000`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.run import command, live
from tests.sim.scenario import draw

ROOT = Path(__file__).parents[2]
SEEDS = range(40)
REGRESSIONS: dict[int, str] = {
    1064: "rings: the end of what an overrun had cut came behind that of its successors",
    158: "rings: what an overrun left of a coalesced collective was held against its peers",
    58: "stalls: an agent's claim that a rank is where nobody can be opened a finding for ever",
    73: "incidents: parts of one finding took its place in turn, and the rest opened anew",
    54: "first causes: a rank that had told nothing since a hang ended was still inside alone",
    85: "first causes: the first rank to finish when a job that hung is ended held up the others",
    66: "first causes: a send that was over when its rank was heard of last was taken for absent",
    104: "findings: receives that waited in one group had one id, and took each other's place",
    61: "stragglers: a node was judged by what was counted of a clock that no rank has any more",
}
"""Seeds that found something, and what."""


@pytest.mark.parametrize("seed", [*SEEDS, *REGRESSIONS])
def test_a_world_keeps_every_promise(seed: int) -> None:
    """Whatever happens to agents, service, wire, clocks and job: the oracle has nothing to say."""
    try:
        live(seed)
    except Exception as error:
        error.add_note(f"seed {seed} {REGRESSIONS.get(seed, '')}\nagain: {command(seed)}")
        raise


def test_a_large_job() -> None:
    """Hundreds of ranks in tensor, pipeline, data and expert groups, and little troubles them.

    Thousands take minutes: `python -m tests.sim --seed 1 --world 2048`.
    """
    assert live(1, world=384).ranks == 384


def test_a_seed_is_a_run_byte_for_byte() -> None:
    """Another process, with another hash seed, hears and says exactly the same."""
    program = "from tests.sim.run import live; print(live(7).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1


def test_events_can_be_left_out() -> None:
    """A world without its events is another, healthy one: that is how a failing one shrinks."""
    seed = next(seed for seed in range(100) if len(draw(seed).events) > 3)
    assert live(seed, only=()).findings == {}
