"""Python processes that start warm: forked from a parent that has imported what they need.

Most of a small rank's start is the import of torch (2 s of a core), most of a daemon's that of gRPC
and numpy. A warm parent (`tests.world.warm_parent`) imports them once, and each start is a fork
that runs the program of its command as a new interpreter would: with its arguments, environment,
streams, folder and session. It becomes a child of the process that asked for it, so its end is seen
and waited for as usual. Two things differ: /proc shows the command line and the environment of the
warm parent, and the warm parent's module is outermost in every stack.

Real starts remain where the start itself is tested (`real_starts`), and where a command says more
than which program runs with which variables (`_parent_of`): torchrun, shells, `python -c`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

_ROOT: Final = Path(__file__).parents[2]
_E2E: Final = _ROOT / "tests" / "e2e"
_SCRIPTS: Final = (_E2E / "jobs", _E2E / "ordinary", _ROOT / "examples")
"""Folders of training scripts."""
_PACKAGES: Final = ("frd", "frd_agent")
_OF_AN_INTERPRETER: Final = ("PYTHON", "LD_")
"""Prefixes of variables that are read when an interpreter starts."""
_STARTED_WITH: Final = dict(os.environ)
"""Of this process, and so of the warm parents, whatever tests change later."""
_OPTIONS: Final = {"env", "cwd", "stdin", "stdout", "stderr", "text", "start_new_session"}
REAL_STARTS: Final = "TEST_REAL_STARTS"
"""Variable: 1 if no process may start warm."""
_PR_SET_CHILD_SUBREAPER: Final = 36


class Process(subprocess.Popen[Any]):
    """`subprocess.Popen`, except that the process starts warm if that makes no difference.

    It replaces the private method in which `Popen` forks; all else is the standard library's.
    """

    def __init__(self, args: Sequence[str | Path], **options: Any) -> None:
        self._given = options
        super().__init__(args, **options)

    def _execute_child(self, args: Sequence[str | Path], *others: Any) -> None:
        command = [os.fspath(part) for part in args]
        env = dict(self._given.get("env") or os.environ)
        kind = _parent_of(command, env) if _OPTIONS.issuperset(self._given) else None
        if kind is None:
            super()._execute_child(args, *others)  # type: ignore[misc]
            return
        pipes = others[9:15]  # of stdin, stdout and stderr, each to read and to write
        streams = [own if fd == -1 else fd for own, fd in enumerate((pipes[0], *pipes[3::2]))]
        start = {
            "command": command,
            "env": env,
            "cwd": os.fspath(self._given.get("cwd") or Path.cwd()),
            "new_session": self._given.get("start_new_session", False),
        }
        self.pid = _warm_parent(kind).fork(start, streams)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


@contextlib.contextmanager
def real_starts() -> Iterator[None]:
    """Inside, every process starts as a new interpreter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(REAL_STARTS, "1")
        yield


def _parent_of(command: Sequence[str], env: Mapping[str, str]) -> str | None:
    """The kind of the warm parent that can run it: with torch for a training script, with frd for
    a daemon or a command of frd; None for all that needs a real start."""
    if os.environ.get(REAL_STARTS) or _of_an_interpreter(env) != _of_an_interpreter(_STARTED_WITH):
        return None
    match command:
        case [sys.executable, "-m", "frd_agent", "exec", *more]:
            inner = more[more.index("--") + 1 :] if "--" in more else ()
            return "torch" if _parent_of(inner, env) == "torch" else None
        case [sys.executable, "-m", module, *_] if module.partition(".")[0] in _PACKAGES:
            return "frd"
        case [sys.executable, script, *_] if Path(script).parent in _SCRIPTS:
            return "torch"
        case _:
            return None


def _of_an_interpreter(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_OF_AN_INTERPRETER)}


class _WarmParent:
    """The asker's end. One start at a time."""

    def __init__(self, kind: str) -> None:
        self._turn = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        clean = {k: v for k, v in _STARTED_WITH.items() if not k.startswith(("FRD_", "SLURM_"))}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.world.warm_parent", kind, str(theirs.fileno())],
                env=clean | {"OMP_NUM_THREADS": "1"},  # read when torch is loaded
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.pid = self._process.pid

    def fork(self, start: Mapping[str, Any], streams: Sequence[int]) -> int:
        """The number of the new process, a child of this one."""
        with self._turn, _adopting():
            socket.send_fds(self._socket, [json.dumps(start).encode()], streams)
            answer = self._socket.recv(100)
        assert answer, f"the warm parent has ended: {self._process.poll()}"
        return int(answer)


_parents: dict[str, _WarmParent] = {}
"""By kind. They end with this process, when its ends of their sockets close."""


def _warm_parent(kind: str) -> _WarmParent:
    if kind not in _parents:
        _parents[kind] = _WarmParent(kind)
    return _parents[kind]


def warm_parents() -> set[int]:
    """The numbers of their processes, so far."""
    return {parent.pid for parent in _parents.values()}


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Inside, a descendant that loses its parent becomes a child of this process, not of init."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
