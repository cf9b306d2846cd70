"""What the inspection of one suspect costs the agent: processor time at one sample a second.

The suspect is a Python process with many threads. In the form `lock` its main thread waits for
another thread, so that all of them are read; in the form `read` it is in a read, which is enough.
Samples are taken in quick succession and their processor time is divided by one second each.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

from bench.report import show
from frd_agent.counters import Counters
from frd_agent.inspection.inspector import EVERY_S, Processes, RankSampler
from frd_agent.inspection.reading.memory import Helper
from frd_agent.inspection.traces.followed import Traces
from frd_agent.node_time import NodeTime, raw_now
from tests.world.run_dir import process_of

_PROGRAM = """
import os, sys, threading
threads, form = int(sys.argv[1]), sys.argv[2]
never = threading.Event()
for _ in range(threads - 1):
    threading.Thread(target=never.wait, daemon=True).start()
read_end, _ = os.pipe()
print("ready", flush=True)
never.wait() if form == "lock" else os.read(read_end, 1)
"""
_WARM_UP = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=200)
    parser.add_argument("--samples", type=int, default=120)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result: dict[str, object] = {"threads": options.threads, "every_s": EVERY_S}
    for form in ("lock", "read"):
        result[form] = _measure(form, options.threads, options.samples)
    show(result, as_json=options.json)


def _measure(form: str, threads: int, samples: int) -> dict[str, object]:
    command = [sys.executable, "-c", _PROGRAM, str(threads), form]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        processes = Processes()
        traces = Traces(NodeTime(Counters()).one_to_raw)
        sampler = RankSampler(process_of(process.pid), processes, Helper(), traces)
        costs, kind = [], ""
        for number in range(_WARM_UP + samples):
            before = time.process_time()
            # As if a second had passed: the tree of processes is read as often as in the agent.
            processes.look(time.monotonic() + number * EVERY_S)
            kind = sampler.sample(raw_now(), {process.pid: 0}).waits_for.kind.value
            if number >= _WARM_UP:
                costs.append(time.process_time() - before)
        process.kill()
    return {
        "kind": kind,
        "cpu_share": statistics.fmean(costs) / EVERY_S,
        "sample_ms_p50": 1_000 * statistics.median(costs),
    }


if __name__ == "__main__":
    main()
