"""The warm parent: imports libraries once, then forks a process for each start that it is asked
for, until its socket closes. `tests.world.warm` asks.

    python -m tests.world.warm_parent {torch | frd} DESCRIPTOR
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

_OF_RANKS: Final = ("torch.distributed", "torch.utils.data", "frd_agent.cli", "frd_agent.exec")
_LEFT_OUT: Final = ("__main__", "probe", "phases", "strips", "picture")
"""Last parts of modules that are programs, or whose import means something, or takes long."""
_MAX_MESSAGE: Final = 200_000
_POLL_S: Final = 0.0002


class _Exec(BaseException):
    """Leaves the program that calls exec for the one that it names."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.start = list(command), dict(env)


def main() -> None:
    kind, descriptor = sys.argv[1:]
    _import_all(kind)
    gc.collect()
    gc.freeze()  # or the first collection of each child would copy every page
    with socket.socket(fileno=int(descriptor)) as asked:
        start = _next_start(asked)
    if start is not None:
        _become(start["command"], start["env"])


def _import_all(kind: str) -> None:
    for name in _OF_RANKS if kind == "torch" else ():
        importlib.import_module(name)
    for package in ("frd", "frd_agent") if kind == "frd" else ():
        folders = importlib.import_module(package).__path__
        for found in pkgutil.walk_packages(folders, f"{package}."):
            if found.name.rpartition(".")[2] not in _LEFT_OUT:
                with contextlib.suppress(ModuleNotFoundError):  # of the extra `cluster`
                    importlib.import_module(found.name)


def _next_start(asked: socket.socket) -> dict[str, Any] | None:
    """What to start, in a new process; None in this one, once the socket has closed."""
    while True:
        message, streams, _, _ = socket.recv_fds(asked, _MAX_MESSAGE, 3)
        if not message:
            return None
        start: dict[str, Any] = json.loads(message)
        number = _fork()
        if number is None:
            _settle(start, streams)
            return start
        for stream in streams:
            os.close(stream)
        asked.send(b"%d" % number)


def _fork() -> int | None:
    """The number of a new process, which has lost its parent; None inside it."""
    ours, theirs = os.pipe()
    if middle := os.fork():
        os.close(theirs)
        with open(ours, "rb") as pipe:
            number = int(pipe.read())
        os.waitpid(middle, 0)
        return number
    os.close(ours)
    middle = os.getpid()
    if number := os.fork():
        os.write(theirs, b"%d" % number)
        os._exit(0)
    os.close(theirs)
    while os.getppid() == middle:
        time.sleep(_POLL_S)
    return None


def _settle(start: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Streams, session and folder, as for a child of `subprocess.Popen`."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if start["new_session"]:
        os.setsid()
    os.chdir(start["cwd"])
    tempfile.tempdir = None  # depends on the environment


def _become(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Run the program of `command`; if it calls exec for a program that can be warm, that one."""
    os.execvpe = _execvpe  # type: ignore[assignment]
    while True:
        try:
            _run(command, env)
        except _Exec as called:
            command, env = called.start
        else:
            return


def _execvpe(file: str, command: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    raise _Exec(command, env)


def _run(command: Sequence[str], env: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 -- open to the end
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    _, *arguments = command
    if arguments[0] == "-m":
        _, module, *sys.argv[1:] = arguments
        sys.path[0] = os.getcwd()
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        sys.path[0] = str(Path(arguments[0]).parent)
        if "FRD_RUN_DIR" in env:
            _start_tap()
        runpy.run_path(arguments[0], run_name="__main__")


def _start_tap() -> None:
    """As when the program imports torch.distributed: that has happened here before it began."""
    from frd_agent._site import frd_tap_start

    frd_tap_start._install()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
