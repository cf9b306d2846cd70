"""A scripted rank with a process for itself: a process claims one rank at a time, but many ranks of
a test live in the test's process."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from frd.cli.commands.demo.scripted_rank import ScriptedRank
from frd_agent.proc import read_stat


class ApartRank(ScriptedRank):
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
        server: Any = self._server.socket
        reader, writer = os.pipe()
        parent = os.getpid()
        if not (pid := os.fork()):
            server.listen(64)
            os.write(writer, b"x")
            for low, high in ((3, server.fileno()), (server.fileno() + 1, 1 << 16)):
                os.closerange(low, high)
            while os.getppid() == parent:
                time.sleep(0.5)
            os._exit(0)
        os.close(writer)
        assert os.read(reader, 1)
        os.close(reader)
        return pid

    def close(self) -> None:
        super().close()
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
