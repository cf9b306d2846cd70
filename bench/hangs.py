"""Time from a hang to the finding, by scenario of `frd demo`, with the torch of this interpreter.

Each job is real: Gloo ranks below a real agent and service. The time begins when the collective is
enqueued that waits the longest (or with the signal that the demo sends) and ends when the finding
opens; the stall threshold is the demo's 3 s.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

from frd.cli.commands.demo.run import Scene, play
from frd.cli.commands.demo.scenarios import SCENARIOS
from frd.cli.commands.demo.stage import Stage
from tests.world.daemons import opened_s

HANGS: Final = (
    *("missing_rank", "cascade", "wrong_order", "mismatch", "killed", "frozen", "gil", "lock"),
    "starved",
)
RANKS: Final = 4
STALL_AFTER_S: Final = 3.0


class TimedStage(Stage):
    """Remembers when it sent the signal."""

    injected_s: float | None = None

    def inject(self) -> None:
        self.injected_s = time.time()
        super().inject()


def found_after_s(name: str) -> float:
    began_s: list[float] = []

    def show(scene: Scene) -> None:
        if scene.findings and scene.job and not began_s:
            waited_s = max(rank["waiting_s"] or 0.0 for rank in scene.job["ranks"])
            began_s.append(stage.injected_s or time.time() - waited_s)

    with TimedStage(SCENARIOS[name], RANKS, STALL_AFTER_S) as stage:
        outcome = play(stage, show)
    assert not outcome.problems, outcome.problems
    return min(map(opened_s, outcome.findings)) - began_s[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scenario", choices=HANGS, action="append", help="only this one")
    options = parser.parse_args()
    report: dict[str, Any] = {"torch": importlib.metadata.version("torch"), "runs": options.runs}
    for name in options.scenario or HANGS:
        report[f"{name}_s"] = sorted(round(found_after_s(name), 1) for _ in range(options.runs))
        if not options.json:
            print(name, *report[f"{name}_s"], flush=True)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
