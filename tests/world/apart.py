"""A scripted rank with a process for itself: a process claims one rank at a time, but many ranks of
a test live in the test's process."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from frd_agent.proc import read_stat
from tests.world.played_rank import PlayedRank

_LISTEN = """\
import os, socket, sys
socket.socket(fileno=int(sys.argv[1])).listen(64)
os.write(1, b"x")
os.read(0, 1)
os._exit(0)
"""


class ApartRank(PlayedRank):
    """The process does nothing but to listen: the kernel shows it to an agent that connects, and
    this process answers."""

    _process = 0

    def publish_identity(self) -> None:
        if not self._process:
            self._process = self._listening()
        stat = read_stat(self._process)
        assert stat is not None
        self.identity |= {"pid": self._process, "start_ticks": stat.start_ticks}
        super().publish_identity()

    def _listening(self) -> int:
        """A new interpreter, not a fork: the test's process may have threads of gRPC."""
        server: Any = self._server.socket
        self._listener = subprocess.Popen(
            [sys.executable, "-IS", "-c", _LISTEN, str(server.fileno())],
            pass_fds=[server.fileno()],
            stdin=subprocess.PIPE,  # it ends when the test does
            stdout=subprocess.PIPE,
        )
        assert self._listener.stdout is not None
        assert self._listener.stdout.read(1)
        return self._listener.pid

    def close(self) -> None:
        super().close()
        with self._listener as listener:
            listener.kill()
