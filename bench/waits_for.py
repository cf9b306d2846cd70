"""Time from the opening of a finding until it says what its suspect waits for.

Real jobs of `frd demo` hang under a service and an agent with default intervals. A client asks for
the finding several times a second.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

from bench.report import show
from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import SCENARIOS
from tests.world.daemons import findings, opened_s, until, watched

_RANKS = 4
_STALL_AFTER_S = 2.0


def hang(name: str) -> tuple[float, str]:
    """One hang: seconds from the opening to the first `waits_for`, and its kind."""
    with watched(SCENARIOS[name], _RANKS, _STALL_AFTER_S) as (_, client):
        finding = until(lambda: _explained(client), "what the suspect waits for", 120)
        return time.time() - opened_s(finding), finding["suspects"][0]["waits_for"]["kind"]


def _explained(client: Client) -> dict[str, Any] | None:
    for finding in findings(client, state="open"):
        if any("waits_for" in suspect for suspect in finding["suspects"]):
            return finding
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--runs", type=int, default=3, help="of each scenario")
    options = parser.parse_args()
    result: dict[str, object] = {}
    for name in ("starved", "lock", "gil"):
        runs = [hang(name) for _ in range(options.runs)]
        times = [round(after_s, 1) for after_s, _ in runs]
        result[name] = {"after_s": times, "kind": sorted({kind for _, kind in runs})}
    show(result, as_json=options.json)


if __name__ == "__main__":
    main()
