"""A person's shell: lines are typed as they are, in an environment with frd installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.world.daemons import first_line, running


def environment(folder: Path) -> dict[str, str]:
    """The environment of a person who has installed frd."""
    programs = folder / "bin"
    programs.mkdir()
    for name, module in (("frd", "frd"), ("frd-agent", "frd_agent")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        program.chmod(0o755)
    return {**os.environ, "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"}


def run(line: str, env: dict[str, str], folder: Path) -> tuple[int, str]:
    """Exit code and output of one line; a watch is ended by Ctrl-C when it has shown something."""
    printed = ""
    with running(["bash", "-c", line], cwd=folder, env=env, stderr=subprocess.STDOUT) as shell:
        if "--watch" in line:
            printed = first_line(shell)
            os.killpg(shell.pid, signal.SIGINT)
        rest, _ = shell.communicate(timeout=60)
    return shell.returncode, printed + rest
