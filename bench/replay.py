"""Processor time of `frd replay` for a minute of a healthy job.

Real processes write the journal: a service, an agent, and ranks that follow a script (no torch), at
the rates of a real job: memory ten times a second, watermarks once, four evaluations. Then it is
replayed several times, and the least processor time counts. `--journal DIR` replays another one.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

from bench.report import show
from frd.cli.commands.demo.scenarios import SCENARIOS
from frd.cli.commands.demo.stage import Stage
from frd.service.journal.replay import replay
from frd.store.journal import read
from frd.store.records import RecordKind

_TIMES = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--journal", type=Path, help="replay this journal instead of a new one")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the job runs")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        journal = options.journal or _recorded(Path(folder), options.ranks, options.seconds)
        show(_measure(journal), as_json=options.json)


def _recorded(folder: Path, ranks: int, seconds: float) -> Path:
    with Stage(SCENARIOS["healthy"], ranks, 10.0, scripted=True) as stage:
        stage.start_agent(stage.start_service())
        stage.start_job()
        time.sleep(seconds)
        journal = shutil.copytree(stage.folder / "data/journal", folder / "journal")
    return Path(journal)


def _measure(journal: Path) -> dict[str, object]:
    records = list(read(journal, print))
    spent = []
    for _ in range(_TIMES):
        start = time.process_time()
        played = replay(records, print)
        spent.append(time.process_time() - start)
    minutes = (played.last_at - played.first_at) / 60e9
    kinds = [record.kind for record in records]
    return {
        "minutes": round(minutes, 2),
        "ticks": kinds.count(RecordKind.TICK),
        "messages": kinds.count(RecordKind.MESSAGE),
        "findings": len(played.findings),
        "cpu_s_per_minute": round(min(spent) / minutes, 4),
        "ms_per_record": round(min(spent) * 1e3 / len(records), 4),
    }


if __name__ == "__main__":
    main()
