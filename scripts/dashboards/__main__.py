"""dashboards [--check]: generate helm/frd/dashboards from the code in this folder.

With --check nothing is written, and a difference is an error. Run as `python -m scripts.dashboards`
in the root of the repository.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from scripts.dashboards import cluster, fleet, health, job

FOLDER = Path(__file__).parents[2] / "helm/frd/dashboards"


def generated() -> dict[str, str]:
    """Contents by file name."""
    built = {
        "fleet.json": fleet.build(),
        "job.json": job.build(),
        "health.json": health.build(),
        "cluster.json": cluster.build(),
    }
    return {
        name: json.dumps(dashboard.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"
        for name, dashboard in built.items()
    }


def stale() -> list[str]:
    """Names of files that differ from the generated ones, and of files that are not generated."""
    fresh = generated()
    there = {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.json")}
    return sorted(name for name in fresh | there if fresh.get(name) != there.get(name))


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        for name in stale():
            print(f"frd: dashboards: {name}: out of date: run make dashboards", file=sys.stderr)
        return 1 if stale() else 0
    for name in stale():
        (FOLDER / name).unlink(missing_ok=True)
    for name, text in generated().items():
        (FOLDER / name).write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
