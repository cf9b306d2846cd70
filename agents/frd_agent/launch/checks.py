"""Checks whether a job on this node would be watched, by trying each part.

The checks are in the order in which the parts must work: the tap in an interpreter of the
job, the run directory, its agent, the agent's way to the service, and the means to read stacks. The
result of a check is one line with what to do. Their only side effect is that they create the
default run directory, like exec.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from frd.address import split_address
from frd.errors import ConfigError
from frd.version import __version__
from frd_agent import exec as starter
from frd_agent import tap
from frd_agent.inspection.reading.rights import yama_advice
from frd_agent.launch import command_line, commands
from frd_agent.launch.run_lock import Holder
from frd_agent.proc import capabilities, ptrace_scope
from frd_agent.ranks.stacks.reader import NoStack, py_spy
from frd_agent.ranks.tap_files import READ_SINCE, TapFile, unrecorded, version_of

_PROBE: Final = Path(__file__).with_name("probe.py")
_REACHED: Final = (
    "import json, sys; reached = any(hasattr(f, 'frd_tap') for f in sys.meta_path); "
    "print(json.dumps({'reached': reached}))"
)
_PROBE_S: Final = 120.0
"""The first import of torch from a slow disk."""
_CONNECT_S: Final = 3.0
_CAP_SYS_PTRACE: Final = 1 << 19
_RING: Final = tap.RENAMED[0]
_MISSING: Final = ": does not exist: is the name right? `frd-agent exec` makes it"


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    state: State
    text: str

    @classmethod
    def ok(cls, name: str, text: str) -> Check:
        return cls(name, State.OK, text)

    @classmethod
    def warning(cls, name: str, text: str) -> Check:
        return cls(name, State.WARNING, text)

    @classmethod
    def failed(cls, name: str, text: str) -> Check:
        return cls(name, State.FAILED, text)


def of_node(
    cmd: Sequence[str], run_dir: Path | None, *, allow_ptrace: bool = False
) -> Iterator[Check]:
    """The checks, in order. `cmd` is the job's command and may be empty. A directory that a person
    named is not made: the name may be wrong."""
    directory = os.path.abspath(run_dir) if run_dir is not None else tap.run_dir(os.environ)
    make = run_dir is None or os.path.lexists(directory)
    env = starter.environment(os.environ, directory, allow_ptrace=allow_ptrace, make=make)
    yield from _tap(cmd, env)
    yield _run_dir(directory) if make else Check.warning("run directory", directory + _MISSING)
    agent = starter.watcher(directory)
    yield agent_check(directory, agent)
    yield from _untapped(directory)
    yield from recorders_check(TapFile.scan(Path(directory)))
    if agent is not None and agent.service:
        yield _service(agent.service)
    yield stacks_check(agent, ranks_allow=env.get(tap.ALLOW_PTRACE) == "1")


# -- the tap ---------------------------------------------------------------------------------


def _tap(cmd: Sequence[str], env: Mapping[str, str]) -> Iterator[Check]:
    python, is_sure = command_line.interpreter(cmd)
    if not is_sure:
        yield Check.warning(
            "command",
            f"{cmd[0]}: which Python it starts is not known: {python} is checked instead; name "
            "the Python of the ranks: -- /path/to/python",
        )
    found = _answer_of(python, _PROBE.read_text("utf-8"), env)
    if isinstance(found, str):
        yield Check.failed("tap", f"{python}: {found}")
        return
    interpreter = f"{python} (Python {found['python_version']}"
    if found["error"]:
        yield Check.failed("tap", f"{interpreter}): torch cannot be imported: {found['error']}")
    elif found["torch"] is None:
        yield Check.warning(
            "tap", f"{interpreter}): has no torch: name the job's own Python: -- PYTHON"
        )
    elif found["tap"] is None:
        yield Check.failed(
            "tap",
            f"{interpreter}, torch {found['torch']}): the tap is not loaded: use Python 3.9 or "
            "later, and make frd readable for this user there",
        )
    else:
        interpreter = f"{interpreter}, torch {found['torch']})"
        yield _reach(python, interpreter, env)
        yield _same_tap(found["tap"])
        if found["shortage"]:
            yield Check.warning(
                "recorder", f"of a rank here it could not be read: {found['shortage']}"
            )
        if (recorders := found.get("recorders")) is not None:
            yield collectives_check(found["torch"], recorders)
        yield _variables(found["variables"])


def _reach(python: str, interpreter: str, env: Mapping[str, str]) -> Check:
    found = _answer_of(python, _REACHED, {**env, "PYTHONPATH": "/nonexistent"})
    if not isinstance(found, str) and found["reached"]:
        return Check.ok("tap", f"{interpreter}: loads, also where PYTHONPATH is replaced")
    return Check.warning(
        "tap",
        f"{interpreter}: loads, but only through PYTHONPATH: a launch script that replaces it "
        "switches the tap off: install frd in that environment",
    )


def _same_tap(path: str) -> Check:
    own = Path(tap.__file__)
    try:
        is_same = Path(path).read_bytes() == own.read_bytes()
    except OSError:
        is_same = False
    if is_same:
        return Check.ok("tap version", "the same as this frd's")
    return Check.warning(
        "tap version",
        f"{path}: is not of release {own}: install the same frd in both environments",
    )


def collectives_check(torch_version: str, recorders: Collection[int]) -> Check:
    """Of Gloo, which a job without a GPU uses, and others for their objects."""
    if tap.GENERIC not in recorders:
        why = unrecorded(torch_version, ["gloo"])
        return Check.warning("collectives", f"a job that uses Gloo is not watched for hangs: {why}")
    when = "at rest" if version_of(torch_version) < READ_SINCE else "at any time"
    return Check.ok("collectives", f"torch {torch_version}: those of Gloo are read {when}")


def _variables(shown: Mapping[str, str]) -> Check:
    size = next((shown[name] for name in _RING if name in shown), None)
    text = ", ".join(f"{name}={value}" for name, value in shown.items()) or "none"
    if size == "0":
        return Check.failed(
            "variables",
            f"{text}: switches torch's Flight Recorder off: unset it, or set a size such as 2000",
        )
    return Check.ok("variables", text)


def _answer_of(python: str, code: str, env: Mapping[str, str]) -> dict[str, Any] | str:
    """The JSON object that `code` prints as its last line, or the reason why there is none."""
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


# -- run directory and agent -----------------------------------------------------------------


def _run_dir(directory: str) -> Check:
    try:
        tap.make_run_dir(directory)
    except OSError as error:
        advice = "set --run-dir or FRD_RUN_DIR"
        text = f"{directory}: {error.strerror}: {advice}" if error.errno else str(error)
        return Check.failed("run directory", text)
    if not os.access(directory, os.W_OK | os.X_OK):
        return Check.failed(
            "run directory",
            f"{directory}: not writable for this user: set --run-dir or FRD_RUN_DIR",
        )
    return Check.ok("run directory", directory)


def agent_check(directory: str, agent: Holder | None) -> Check:
    if agent is None:
        return Check.failed("agent", starter.unwatched(directory) or directory)
    if not (agent.pid or agent.node):
        return Check.warning("agent", f"{directory}/agent.lock: cannot be read")
    if agent.version != __version__:
        return Check.warning(
            "agent",
            f"{agent}: is version {agent.version or 'unknown'}, this is {__version__}: restart the "
            "agent with the same release",
        )
    return Check.ok("agent", f"{agent}, version {__version__}")


def _untapped(directory: str) -> Iterator[Check]:
    """Checks of the commands that already run here."""
    for command in commands.running(directory):
        if found := commands.untapped(command)[1]:
            named = ", ".join(f"pid {process.pid} ({process.words})" for process in found[:4])
            yield Check.failed(
                "running command",
                f"{command.words} (pid {command.pid}): torch runs without the tap in {named}: does "
                "the launch script replace PYTHONPATH or the environment?",
            )


def recorders_check(files: Sequence[TapFile]) -> Iterator[Check]:
    """Of the ranks that publish now, those without a worker server, or that cannot be read."""
    known = [file.content for file in files if file.content is not None]
    lacking = sorted((one.rank, one.socket_error) for one in known if not (one.socket or one.exit))
    for rank, why in lacking[:1]:
        more = f", and {len(lacking) - 1} more" if lacking[1:] else ""
        yield Check.warning("recorder", f"rank {rank}{more}: not read while it trains: {why}")
    unread = sorted((one.rank, one.unread or one.off_text) for one in known if not one.exit)
    for rank, why in [one for one in unread if one[1]][:1]:
        yield Check.warning("collectives", f"of rank {rank} and others cannot be read: {why}")


# -- service and stacks ----------------------------------------------------------------------


def _service(addresses: str) -> Check:
    """Of several replicas one is enough for a job to be watched."""
    found = {address: _refusal(address) for address in addresses.split(",")}
    refused = {address: why for address, why in found.items() if why}
    if not refused:
        verb = "accepts" if len(found) == 1 else "accept"
        return Check.ok("service, gRPC", f"{', '.join(found)} {verb} connections")
    check = Check.failed if len(refused) == len(found) else Check.warning
    return check("service, gRPC", "; ".join(refused.values()))


def _refusal(address: str) -> str:
    """Why `address` accepts no connection; empty: it does."""
    try:
        with socket.create_connection(split_address(address), _CONNECT_S):
            return ""
    except ConfigError as error:
        return str(error)
    except OSError as error:
        return (
            f"{address}: {error.strerror or error}: is `frd serve` running there, and is --service "
            "of the agent its --grpc address?"
        )


def stacks_check(agent: Holder | None, *, ranks_allow: bool = False) -> Check:
    """py-spy is needed for child processes, and if a rank does not answer, for example while the
    GIL is held. `ranks_allow`: they are started with --allow-ptrace."""
    lost = "no Python stack of a rank that holds the GIL, nor of a data loader's worker"
    try:
        py_spy()
    except NoStack as error:
        return Check.warning(
            "stacks", f"py-spy is {error} in the agent's environment: without it {lost}"
        )
    scope = ptrace_scope()
    # If the agent cannot be seen, it is taken to have the rights of this process.
    pid = agent.pid if agent is not None and os.path.exists(f"/proc/{agent.pid}/status") else "self"
    if scope == 0 or (scope == 1 and ranks_allow) or (scope < 3 and may_trace(pid)):
        return Check.ok("stacks", "py-spy is installed and may read the ranks")
    return Check.warning("stacks", f"py-spy may not read the ranks: {lost}: {yama_advice()}")


def may_trace(pid: int | str) -> bool:
    return bool(capabilities(pid, "CapEff") & _CAP_SYS_PTRACE)


def line(check: Check) -> str:
    return f"{check.state.value:8} {check.name}: {check.text}"


def as_json(checks: Sequence[Check]) -> dict[str, Any]:
    """``ok`` is false if a check has failed."""
    return {
        "ok": not any(check.state is State.FAILED for check in checks),
        "checks": [asdict(check) for check in checks],
    }
