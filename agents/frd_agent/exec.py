"""`frd-agent exec`: run a command with the tap switched on, and get out of the way.

Everything is environment, so it reaches each rank through torchrun, srun and shell scripts; this
process then *becomes* the command, so that pid, signals and exit code are the command's own. What
the user has set stays as it is. A run directory that cannot be used, or that no agent watches, is a
line on stderr, not an end.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from frd.errors import FrdError
from frd_agent import tap
from frd_agent.launch import command_line, commands, runs
from frd_agent.launch.run_lock import Holder, holder

RING_ENTRIES = 2000
_AGENT_TURN_S = 0.6
"""Two turns of an agent: one that has waited for the directory to appear takes its lock."""
_SITE = str(Path(__file__).resolve().parent / "_site")
_RING, _DUMP_PREFIX = tap.RENAMED
_PYTHON_IGNORES = ("SIGPIPE", "SIGXFZ", "SIGXFSZ")
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


def exec_command(
    cmd: Sequence[str],
    run_dir: Path | None = None,
    timing: bool = False,
    job: str | None = None,
    wait_agent_s: float | None = None,
    *,
    allow_ptrace: bool = False,
) -> NoReturn:
    """Replace this process by `cmd` with the tap switched on, but first wait for an agent to watch
    the run directory: `wait_agent_s`, or a moment if the directory is new.

    Raises:
        FrdError: the command cannot be started.
    """
    if not cmd:
        raise FrdError("exec: no command: write it after --")
    directory = os.path.abspath(run_dir) if run_dir is not None else tap.run_dir(os.environ)
    is_new = not os.path.isdir(directory)
    env = environment(os.environ, directory, timing=timing, job=job, allow_ptrace=allow_ptrace)
    if wait_agent_s is None:
        wait_agent_s = _AGENT_TURN_S if is_new else 0.0
    started = None
    with contextlib.suppress(OSError):  # `environment` has printed the reason
        tap.check_home(directory, os.geteuid())
        _await_agent(directory, wait_agent_s)
        started = _record_start(directory, cmd, env)
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed
        with contextlib.suppress(OSError):  # a full disk: the command runs
            stream.flush()
    # Python ignores these, and what is ignored stays so across exec: `yes | head` would complain.
    for name in _PYTHON_IGNORES:
        if (number := getattr(signal, name, None)) is not None:
            signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(cmd[0], list(cmd), env)
    except OSError as error:
        if started is not None:
            started.unlink(missing_ok=True)
        raise FrdError(
            f"exec: {cmd[0]!r}: {error.strerror}: give a command that can be run"
        ) from error


def environment(
    base: Mapping[str, str],
    directory: str,
    *,
    timing: bool = False,
    job: str | None = None,
    allow_ptrace: bool = False,
    make: bool = True,
) -> dict[str, str]:
    """The command's environment; makes the run directory, for torch makes none for its dumps.

    Of settings that torch has renamed it sets both names: only the tap sees which torch a rank has,
    and drops the name that this one complains about.
    """
    env = dict(base)
    env["FRD_RUN_DIR"] = directory
    given = env.get("PYTHONPATH")  # in which an empty part is the working directory
    paths = [path for path in given.split(os.pathsep) if path != _SITE] if given else []
    env["PYTHONPATH"] = os.pathsep.join([_SITE, *paths])
    if job is not None:
        env["FRD_JOB"] = job
    if timing:
        env["TORCH_NCCL_ENABLE_TIMING"] = "1"
    if allow_ptrace:
        env[tap.ALLOW_PTRACE] = "1"
    _set_both(env, _RING, str(RING_ENTRIES))
    if not make:
        return env
    dumps = os.path.join(directory, "dumps")
    without = "being watched"
    try:
        tap.make_run_dir(directory)
        without = "dump files of torch"
        tap.make_run_dir(dumps)
    except OSError as error:
        why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        _warn(f"{why}: the command runs without {without}")
    else:
        _set_both(env, _DUMP_PREFIX, os.path.join(dumps, "rank_"))
    return env


def _set_both(env: dict[str, str], names: tuple[str, str], default: str) -> None:
    """Old and new torch read one name each, and the first of them wins in between."""
    value = next((env[name] for name in names if name in env), default)
    for name in names:
        env.setdefault(name, value)


def _await_agent(directory: str, seconds: float) -> None:
    """Until an agent watches the directory, at most so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and watcher(directory) is None:
        # Not time.sleep, which waits for a moment of a clock: where a library fakes clocks, as
        # faketime does, the kernel may refuse it, and the command would not start.
        select.select((), (), (), 0.05)


def _record_start(directory: str, cmd: Sequence[str], env: dict[str, str]) -> Path | None:
    """Name the job in `env`, record the command, and warn if no agent watches."""
    _name_job(directory, cmd, env)
    is_first = all(env.get(name, "0") == "0" for name in _LOCAL_RANKS)  # one line a node
    if is_first and (warning := unwatched(directory)) is not None:
        _warn(warning)
    try:
        return commands.record(directory, cmd)
    except OSError:
        return None  # a directory of another user: the tap will report it


def _name_job(directory: str, cmd: Sequence[str], env: dict[str, str]) -> None:
    given = env.get("FRD_JOB", "").strip()
    is_named = bool(given) or command_line.has_id(cmd, env)
    name = given or command_line.default_job(cmd)
    if not (is_named and not given) and command_line.is_whole_job(cmd, env):
        with contextlib.suppress(OSError):
            name, number = runs.begin(directory, name, must_be_free=not given)
            env["FRD_RUN_NUMBER"] = str(number)
    if not is_named:
        env["FRD_JOB_DEFAULT"] = name


def unwatched(directory: str) -> str | None:
    """Warning if no agent watches the run directory; None if one does, or if that is unknown."""
    if watcher(directory) is not None:
        return None
    if (other := _elsewhere(directory)) is not None:
        return (
            f"{directory}: no agent watches this directory, one watches {other}: "
            f"say --run-dir {other} or FRD_RUN_DIR={other}"
        )
    return (
        f"{directory}: no agent watches this directory yet: start `frd up` or `frd-agent run`, "
        "or name the agent's directory with --run-dir or FRD_RUN_DIR"
    )


def watcher(directory: str) -> Holder | None:
    """The agent of this run directory; an empty `Holder` if the lock cannot be read."""
    try:
        return holder(Path(directory))
    except OSError:
        return Holder()


def _elsewhere(directory: str) -> str | None:
    """Another run directory of this user that an agent watches: sessions of `su` and cron have no
    XDG_RUNTIME_DIR, so what they start looks in another place than the agent of the login session.
    """
    login = f"/run/user/{os.getuid()}/frd"
    for place in (login, tap.default_run_dir({}), tap.default_run_dir(os.environ)):
        agent = None if place == directory else watcher(place)
        if agent is not None and agent.pid:
            return place
    return None


def _warn(text: str) -> None:
    if sys.stderr is not None:  # it is closed; print would take stdout
        with contextlib.suppress(OSError):
            print(f"frd: warning: exec: {text}", file=sys.stderr)
