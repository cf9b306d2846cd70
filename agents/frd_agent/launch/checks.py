"""Checks whether a job on this node would be watched, by trying each part.

The checks are in the order in which the parts must work: the tap in an interpreter of the
job, the run directory, its agent, the agent's way to the service, and the means to read stacks. The
result of a check is one line with what to do. Their only side effect is that they create the run
directory, like exec.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Any, Final

from frd.address import split_address
from frd.errors import ConfigError
from frd_agent import exec as starter
from frd_agent import tap
from frd_agent.launch import commands
from frd_agent.launch.run_lock import Holder

_PROBE: Final = Path(__file__).with_name("probe.py")
_REACHED: Final = "import sys; print(any(hasattr(f, 'frd_tap') for f in sys.meta_path))"
_PROBE_S: Final = 120.0
"""The first import of torch from a slow disk."""
_CONNECT_S: Final = 3.0
_CAP_SYS_PTRACE: Final = 1 << 19
_RING: Final = tap.RENAMED[0]


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    state: State
    text: str


def of_node(
    cmd: Sequence[str], run_dir: Path | None, service: str | None = None
) -> Iterator[Check]:
    """The checks, in order. `cmd` is the job's command and may be empty. `service` is the gRPC
    address; by default the address that the agent reports to."""
    directory = os.path.abspath(run_dir) if run_dir is not None else tap.run_dir(os.environ)
    env = starter.environment(os.environ, directory)
    yield from _tap(cmd, env)
    yield _run_dir(directory)
    agent = starter.watcher(directory)
    yield _agent(directory, agent)
    yield from _untapped(directory)
    if agent is not None and (address := service or agent.service):
        yield _service(address)
    yield _stacks(agent)


# -- the tap ---------------------------------------------------------------------------------


def _tap(cmd: Sequence[str], env: Mapping[str, str]) -> Iterator[Check]:
    python, is_sure = interpreter(cmd)
    if not is_sure:
        yield Check(
            "command",
            State.WARNING,
            f"{cmd[0]}: which Python it starts is not known: {python} is checked instead; name "
            "the Python of the ranks: -- /path/to/python",
        )
    found = _ask(python, _PROBE.read_text("utf-8"), env)
    if isinstance(found, str):
        yield Check("tap", State.FAILED, f"{python}: {found}")
        return
    who = f"{python} (Python {found['python_version']}"
    if found["error"]:
        yield Check("tap", State.FAILED, f"{who}): torch cannot be imported: {found['error']}")
    elif found["torch"] is None:
        yield Check(
            "tap", State.WARNING, f"{who}): has no torch: name the job's own Python: -- PYTHON"
        )
    elif found["tap"] is None:
        yield Check(
            "tap",
            State.FAILED,
            f"{who}, torch {found['torch']}): the tap is not loaded: use Python 3.9 or "
            "later, and make frd readable for this user there",
        )
    else:
        who = f"{who}, torch {found['torch']})"
        yield _reach(python, who, env)
        yield _same_tap(found["tap"])
        yield _variables(found["variables"])


def _reach(python: str, who: str, env: Mapping[str, str]) -> Check:
    replaced = {**env, "PYTHONPATH": "/nonexistent"}
    if _run([python, "-c", _REACHED], replaced) == "True":
        return Check("tap", State.OK, f"{who}: loads, also where PYTHONPATH is replaced")
    return Check(
        "tap",
        State.WARNING,
        f"{who}: loads, but only through PYTHONPATH: a launch script that replaces it switches the "
        "tap off: install frd in that environment",
    )


def _same_tap(path: str) -> Check:
    ours = Path(tap.__file__)
    try:
        is_same = Path(path).read_bytes() == ours.read_bytes()
    except OSError:
        is_same = False
    if is_same:
        return Check("tap version", State.OK, "the same as this frd's")
    return Check(
        "tap version",
        State.WARNING,
        f"{path}: is not of release {ours}: install the same frd in both environments",
    )


def _variables(shown: Mapping[str, str]) -> Check:
    size = next((shown[name] for name in _RING if name in shown), None)
    said = ", ".join(f"{name}={value}" for name, value in shown.items()) or "none"
    if size == "0":
        return Check(
            "variables",
            State.FAILED,
            f"{said}: switches torch's Flight Recorder off: unset it, or set a size such as 2000",
        )
    return Check("variables", State.OK, said)


def interpreter(cmd: Sequence[str]) -> tuple[str, bool]:
    """The Python that this command starts, and whether that is certain."""
    if not cmd:
        launcher = shutil.which("torchrun")
        return (_shebang(launcher) if launcher else None) or sys.executable, True
    for word in cmd:
        name = PurePath(word).name
        if name.startswith("python") and (path := shutil.which(word)) is not None:
            return path, True
    program = shutil.which(cmd[0])
    if program is not None and (python := _shebang(program)) is not None:
        return python, True
    return shutil.which("python3") or shutil.which("python") or sys.executable, False


def _shebang(program: str) -> str | None:
    try:
        with open(program, "rb") as file:
            first, second = file.readline(512), file.readline(512)
    except OSError:
        return None
    line = first.decode("utf-8", "replace").strip()
    if line == "#!/bin/sh":  # what pip writes where the path is too long for a first line
        line = second.decode("utf-8", "replace").replace("'''exec'", "#!").strip()
    words = line.removeprefix("#!").replace('"', "").split()
    if not line.startswith("#!") or not words:
        return None
    if PurePath(words[0]).name == "env":
        words = words[1:]
    is_python = bool(words) and PurePath(words[0]).name.startswith("python")
    return shutil.which(words[0]) if is_python else None


def _ask(python: str, code: str, env: Mapping[str, str]) -> dict[str, Any] | str:
    """The probe's result, or the reason why there is none."""
    try:
        done = subprocess.run(
            [python, "-c", code],
            env=env,
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=False,
        )
        found = json.loads(done.stdout.strip().rpartition("\n")[2])
    except subprocess.TimeoutExpired:
        return f"no answer within {_PROBE_S:g} s: does importing torch hang there?"
    except OSError as error:
        return f"{error.strerror}: name a Python that can be run"
    except ValueError:
        last = done.stderr.strip().rpartition("\n")[2] or f"ended with {done.returncode}"
        return f"does not run: {last}"
    return found if isinstance(found, dict) else "does not run"


def _run(cmd: Sequence[str], env: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            cmd, env=env, capture_output=True, text=True, timeout=_PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


# -- run directory and agent -----------------------------------------------------------------


def _run_dir(directory: str) -> Check:
    try:
        tap.make_run_dir(directory, os.environ)
    except OSError as error:
        text = str(error) if error.strerror is None else f"{directory}: {error.strerror}"
        return Check("run directory", State.FAILED, f"{text}: set --run-dir or FRD_RUN_DIR")
    if not os.access(directory, os.W_OK | os.X_OK):
        return Check(
            "run directory",
            State.FAILED,
            f"{directory}: not writable for this user: set --run-dir or FRD_RUN_DIR",
        )
    return Check("run directory", State.OK, directory)


def _agent(directory: str, agent: Holder | None) -> Check:
    if agent is None:
        return Check("agent", State.FAILED, starter.unwatched(directory) or directory)
    if not (agent.pid or agent.node):
        return Check("agent", State.WARNING, f"{directory}/agent.lock: cannot be read")
    ours = _version()
    if agent.version != ours:
        return Check(
            "agent",
            State.WARNING,
            f"{agent}: is version {agent.version or 'unknown'}, this is {ours}: restart the agent "
            "with the same release",
        )
    return Check("agent", State.OK, f"{agent}, version {ours}")


def _version() -> str:
    from frd_agent.agent import _version as version

    return version()


def _untapped(directory: str) -> Iterator[Check]:
    """Checks of the commands that already run here."""
    for command in commands.running(directory):
        if lost := commands.untapped(command)[1]:
            named = ", ".join(f"pid {process.pid} ({process.words})" for process in lost[:4])
            yield Check(
                "running command",
                State.FAILED,
                f"{command.words} (pid {command.pid}): torch runs without the tap in {named}: does "
                "the launch script replace PYTHONPATH or the environment?",
            )


# -- service and stacks ----------------------------------------------------------------------


def _service(address: str) -> Check:
    try:
        with socket.create_connection(split_address(address), _CONNECT_S):
            return Check("service, gRPC", State.OK, f"{address} accepts connections")
    except ConfigError as error:
        return Check("service, gRPC", State.FAILED, str(error))
    except OSError as error:
        why = error.strerror or str(error)
        return Check(
            "service, gRPC",
            State.FAILED,
            f"{address}: {why}: is `frd serve` running there, and is --service of the agent its "
            "--grpc address?",
        )


def _stacks(agent: Holder | None) -> Check:
    """py-spy is needed only if a rank does not answer, for example while the GIL is held."""
    own_bin = Path(sys.executable).parent
    if not (shutil.which("py-spy") or shutil.which("py-spy", path=str(own_bin))):
        return Check(
            "stacks",
            State.WARNING,
            "py-spy is not installed: no Python stack of a rank that holds the GIL: "
            "pip install py-spy in the agent's environment",
        )
    scope = _number_in("/proc/sys/kernel/yama/ptrace_scope", 10)
    if scope == 0 or (scope < 3 and _may_trace(agent)):
        return Check("stacks", State.OK, "py-spy is installed and may read the ranks")
    return Check(
        "stacks",
        State.WARNING,
        f"py-spy may not read the ranks (kernel.yama.ptrace_scope = {scope}): no Python stack of a "
        "rank that holds the GIL: set it to 0, or give the agent CAP_SYS_PTRACE",
    )


def _may_trace(agent: Holder | None) -> bool:
    """Whether the agent may trace; if that cannot be seen, whether this process may."""
    for pid in (str(agent.pid) if agent is not None and agent.pid else "self", "self"):
        try:
            status = Path(f"/proc/{pid}/status").read_text("ascii", "replace")
        except OSError:
            continue
        _, _, rest = status.partition("CapEff:")
        return bool(int(rest.split()[0], 16) & _CAP_SYS_PTRACE) if rest else False
    return False


def _number_in(path: str, base: int) -> int:
    """0 if the file is missing: a kernel without that restriction."""
    try:
        return int(Path(path).read_text("ascii"), base)
    except (OSError, ValueError):
        return 0


def line(check: Check) -> str:
    return f"{check.state.value:8} {check.name}: {check.text}"


def as_json(checks: Sequence[Check]) -> dict[str, Any]:
    """``ok`` is false if a check has failed."""
    return {
        "ok": not any(check.state is State.FAILED for check in checks),
        "checks": [
            {"name": check.name, "state": check.state.value, "text": check.text} for check in checks
        ],
    }
