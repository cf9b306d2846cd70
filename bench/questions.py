"""How often ranks are asked for stacks, dumps, and what they are blocked in.

Simulated jobs of eight ranks, with the production's engine and asker. Counts are requests of one
part to one rank, as agents receive them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

from bench.report import show
from tests.sim.faults import Fault, FaultKind
from tests.sim.jobs import GLOO, PLAN
from tests.sim.programs import JobPlan
from tests.sim.scenario import draw
from tests.sim.world import World
from tests.world.clocks import S

_WORLD: Final = 8
_WARM_S: Final = 30
_PLANS: Final = {
    name: replace(plan, world=_WORLD, tensor=2, pipeline=1, data=4, expert=1)
    for name, plan in (("gloo", GLOO), ("nccl", PLAN))
}
_CASES: Final = {
    "healthy": (None, 3_600),
    "pause": (Fault(FaultKind.PAUSE, tuple(range(_WORLD))), 300),
    "hang": (Fault(FaultKind.CPU_STUCK, (2,)), 600),
    "lock": (Fault(FaultKind.LOCK, (1, 2, 3)), 600),
}
"""What happens, and for how long the job is watched, in seconds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    result = {
        f"{backend} {name}": _asked(plan, fault, watched_s)
        for backend, plan in _PLANS.items()
        for name, (fault, watched_s) in _CASES.items()
    }
    show(result, as_json=options.json)


def _asked(plan: JobPlan, fault: Fault | None, watched_s: int) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder:
        world = World(replace(draw(4, asks=True), plan=plan, events=()), Path(folder))
        world.begin()
        try:
            world.kernel.run(_WARM_S * S)
            world.settle()
            world.requests.clear()
            if fault is not None:
                world.runs[-1].job.inject(fault)
            world.kernel.run((_WARM_S + watched_s) * S)
            return dict(+world.requests)
        finally:
            world.close()


if __name__ == "__main__":
    main()
