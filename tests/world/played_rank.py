"""A scripted rank in the process of a test, which asks where it is, and ends it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from frd.cli.commands.demo.scripted import RING, WORLD, ScriptedRank
from frd_agent import tap


class PlayedRank(ScriptedRank):
    """`ring`: entries that its recorder keeps."""

    def __init__(self, *args: Any, ring: int = RING, **options: Any) -> None:
        super().__init__(*args, **options)
        self.entries = deque(maxlen=ring)

    @property
    def seq(self) -> int:
        """The last collective of all ranks that this rank entered."""
        return self._enqueued.get(WORLD, 0)

    @property
    def completed(self) -> int:
        """The last collective of all ranks that this rank left."""
        return self._completed.get(WORLD, 0)

    def publish_memory(self, devices: list[tap.Device], errors: Sequence[tap.Error] = ()) -> None:
        """What torch's allocator holds, by device, and the allocations that failed."""
        now_ns = time.time_ns()
        self._files.write_memory(now_ns, time.time_ns(), time.monotonic_ns(), devices, [*errors])

    def close(self) -> None:
        """Like the end of the process, but the files stay."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.socket.unlink(missing_ok=True)
