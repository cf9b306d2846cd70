"""What `frd_agent.phase` costs a rank, in processor time.

Each figure is the least of several rounds in one process, because other work on the machine only
adds to it. The tap publishes to a temporary folder, for a stand-in of torch's process groups.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Final

from frd_agent import phase, phases, tap

ROUNDS: Final = 15
CALLS: Final = 20_000
PUBLICATIONS: Final = 300
IMPORT: Final = (
    "import time; t = time.process_time(); import frd_agent; print(time.process_time() - t)"
)


def enter_and_exit() -> None:
    for _ in range(CALLS):
        with phase("eval"):
            pass


@phase("eval")
def evaluate() -> None:
    pass


def call() -> None:
    for _ in range(CALLS):
        evaluate()


def each_ns(work: Callable[[], None], times: int = CALLS) -> float:
    """Processor time of one of the `times` things that `work` does."""
    least = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time_ns()
        work()
        least = min(least, (time.process_time_ns() - began) / times)
    return least


class Group:
    """A process group of torch, as far as the tap looks."""

    group_desc = "default_pg"

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2


def publications(folder: str) -> dict[str, float]:
    """Of the tap: a look that finds nothing new, and one that writes the file."""
    os.environ["FRD_RUN_DIR"] = folder
    group = Group()
    world = SimpleNamespace(
        default_pg=group,
        pg_names={group: "0"},
        pg_group_ranks={group: {0: 0, 1: 1}},
        pg_backend_config={},
    )
    rank = tap.Tap(SimpleNamespace(_world=world), os.environ, os.urandom(6).hex())

    def look() -> None:
        for _ in range(PUBLICATIONS):
            rank.publish_phases()

    def write() -> None:
        for _ in range(PUBLICATIONS):
            rank._phases = []
            rank.publish_phases()

    with phase("epoch 3"), phase("eval"):
        time.sleep(phases.SHORTEST_NS / 1e9)
        rank.publish_phases()
        return {
            "tap_look_us": round(each_ns(look, PUBLICATIONS) / 1e3, 1),
            "tap_write_us": round(each_ns(write, PUBLICATIONS) / 1e3, 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    child = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True
    )
    figures = {
        "import_ms": round(float(child.stdout) * 1e3, 1),
        "without_tap_ns": round(each_ns(enter_and_exit)),
        "without_tap_call_ns": round(each_ns(call)),
    }
    tap.install()
    figures |= {
        "with_tap_ns": round(each_ns(enter_and_exit)),
        "with_tap_call_ns": round(each_ns(call)),
    }
    with phase("1"), phase("2"), phase("3"), phase("4"), phase("5"):
        figures["with_tap_inside_5_ns"] = round(each_ns(enter_and_exit))
    with tempfile.TemporaryDirectory() as folder:
        figures |= publications(folder)
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
