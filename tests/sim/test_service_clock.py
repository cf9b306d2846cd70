"""The same world twice, once with a service whose wall clock is set: what is found is the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from frd.model import Change, FindingEvent
from tests.sim.run import calm
from tests.sim.scenario import WARM, draw
from tests.sim.world import World
from tests.world.clocks import S
from tests.world.seeds import ALL

HOUR: Final = 3600 * S
STEPS: Final = ((WARM // 2, HOUR), (2 * WARM, -HOUR), (3 * WARM, 24 * HOUR), (4 * WARM, HOUR))
"""When the clock is set, and by how much: while the job is well, and while it is not."""
FEW: Final = (5, 8, 22)
"""Worlds with findings, which a step of the clock once closed and opened."""
SEEDS: Final = range(40) if ALL else FEW


def lived(seed: int, folder: Path, steps: Sequence[tuple[int, int]]) -> list[tuple[object, ...]]:
    with calm():
        world = World(draw(seed), folder)
        for at, jump in steps:
            world.kernel.at(at, partial(world.service_host.step, at, jump))
        return list(_story(world.live().published))


def _story(published: Sequence[Sequence[FindingEvent]]) -> Iterator[tuple[object, ...]]:
    """What each evaluation changed, and how long findings were open and had waited."""
    numbers: dict[str, int] = {}
    last: dict[str, object] = {}
    for second, events in enumerate(published):
        for event in events:
            finding = event.finding
            says = (
                *(finding.kind, finding.state, finding.severity, finding.close_reason),
                [(s.rank, s.reason, s.confidence, s.tied) for s in finding.suspects],
                *(finding.victims, finding.unknown),
            )
            if event.change is Change.UPDATED and last.get(finding.id) == says:
                continue  # another wording, or times that follow the clock
            last[finding.id] = says
            lasted = (finding.closed_at or finding.opened_at) - finding.opened_at
            ref = finding.collective
            waited = round(ref.waited_s, 2) if ref is not None else None
            number = numbers.setdefault(finding.id, len(numbers))
            yield second, number, event.change, says, round(lasted / S, 2), waited


@pytest.mark.parametrize("seed", SEEDS)
def test_a_clock_that_is_set_changes_no_finding(seed: int, tmp_path: Path) -> None:
    """An hour forward, back, a day forward: findings open and close when they would have, after
    the same waits, whatever else happens to the service, and a replay finds the same."""
    (first := tmp_path / "first").mkdir()
    (second := tmp_path / "second").mkdir()
    usual = lived(seed, first, ())
    assert lived(seed, second, STEPS) == usual
    assert usual or seed not in FEW
