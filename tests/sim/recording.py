"""Reports of a simulated job, as the journal of its service has them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from frd.store.journal import read
from frd.store.records import Record, RecordKind
from tests.sim.agent import Limits
from tests.sim.faults import Fault
from tests.sim.programs import JobPlan
from tests.sim.run import MEMORY_FOLDER
from tests.sim.scenario import Event, Scenario, Trouble
from tests.sim.world import World
from tests.world.clocks import S

SEED: Final = 3
FAULT: Final = 12 * S
END: Final = 38 * S
_TROUBLE: Final = 8 * S
_APART: Final = 7 * S


def recorded(plan: JobPlan, fault: Fault, troubles: Sequence[Trouble] = ()) -> list[Record]:
    """What the service receives of a job with one fault, from the beginning to `END` in true time.

    The fault begins at `FAULT`. Each of `troubles` befalls the agent of one node, some seconds
    after the one before.
    """
    events = [
        Event(number, _TROUBLE + number * _APART, trouble, 0.0, S)
        for number, trouble in enumerate(troubles)
    ]
    folder = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="frd-sim-", dir=folder) as name:
        world = World(Scenario(SEED, plan, Limits(), tuple(events)), Path(name))
        try:
            world.begin()
            world.kernel.run(FAULT)
            world.settle()
            world.runs[-1].job.inject(fault)
            world.kernel.run(END)
            world.end()
        finally:
            world.close()
        records = list(read(Path(name) / "journal", _fail))
    last = max(at for at, record in enumerate(records) if record.kind is RecordKind.MESSAGE)
    return records[: last + 1]


def _fail(problem: str) -> None:
    raise AssertionError(problem)
