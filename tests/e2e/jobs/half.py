"""One node of a job: an agent and some ranks, in one process group: SERVICE RUN_DIR RANKS SCRIPT...

Started under the ``faketime`` command, all of them share one other time.
"""

from __future__ import annotations

import os
import subprocess
import sys


def main() -> None:
    service, run_dir, ranks, *script = sys.argv[1:]
    frd_agent = [sys.executable, "-m", "frd_agent"]
    agent = [*frd_agent, "run", "--service", service, "--run-dir", run_dir, "--metrics", "off"]
    started = [subprocess.Popen(agent)]
    for rank in ranks.split(","):
        command = [*frd_agent, "exec", "--run-dir", run_dir, "--", sys.executable, *script]
        started.append(subprocess.Popen(command, env=os.environ | {"RANK": rank}))
    for process in started:
        process.wait()


main()
