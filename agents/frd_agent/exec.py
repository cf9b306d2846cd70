"""`frd-agent exec`: run a command with the tap switched on, and get out of the way.

Everything is environment, so it reaches each rank through torchrun, srun and shell scripts; this
process then *becomes* the command, so that pid, signals and exit code are the command's own. What
the user has set stays as it is. A run directory that cannot be used is a line, not an end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from frd.errors import FrdError
from frd_agent import tap

RING_ENTRIES = 2000
_SITE = str(Path(__file__).resolve().parent / "_site")
_RING = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DUMP_PREFIX = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_PYTHON_IGNORES = ("SIGPIPE", "SIGXFZ", "SIGXFSZ")


def exec_command(
    cmd: Sequence[str], run_dir: Path | None = None, timing: bool = False, job: str | None = None
) -> NoReturn:
    """Replace this process by `cmd` with the tap switched on.

    Raises:
        FrdError: the command cannot be started.
    """
    if not cmd:
        raise FrdError("exec: no command: write it after --")
    directory = os.path.abspath(run_dir) if run_dir is not None else tap.run_dir(os.environ)
    env = environment(os.environ, directory, timing=timing, job=job)
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores these, and what is ignored stays so across exec: `yes | head` would complain.
    for name in _PYTHON_IGNORES:
        if (number := getattr(signal, name, None)) is not None:
            signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(cmd[0], list(cmd), env)
    except OSError as error:
        raise FrdError(
            f"exec: {cmd[0]!r}: {error.strerror}: give a command that can be run"
        ) from error


def environment(
    base: Mapping[str, str], directory: str, *, timing: bool = False, job: str | None = None
) -> dict[str, str]:
    """The command's environment; makes the run directory, for torch makes none for its dumps."""
    env = dict(base)
    env["FRD_RUN_DIR"] = directory
    given = env.get("PYTHONPATH")  # in which an empty part is the working directory
    paths = [path for path in given.split(os.pathsep) if path != _SITE] if given else []
    env["PYTHONPATH"] = os.pathsep.join([_SITE, *paths])
    if job is not None:
        env["FRD_JOB"] = job
    if timing:
        env["TORCH_NCCL_ENABLE_TIMING"] = "1"
    _set_both(env, _RING, str(RING_ENTRIES))
    dumps = os.path.join(directory, "dumps")
    try:
        tap.make_run_dir(directory, base)
        os.makedirs(dumps, mode=0o700, exist_ok=True)
    except OSError as error:
        with contextlib.suppress(OSError):
            print(f"frd: warning: exec: {error}: the command runs on without it", file=sys.stderr)
    else:
        _set_both(env, _DUMP_PREFIX, os.path.join(dumps, "rank_"))
    return env


def _set_both(env: dict[str, str], names: tuple[str, str], default: str) -> None:
    """Old and new torch read one name each, and the first of them wins in between."""
    value = next((env[name] for name in names if name in env), default)
    for name in names:
        env.setdefault(name, value)
