"""The thread that calls the NVIDIA driver, and the check that notices a call that hangs.

A call into the driver may hang for minutes, or forever if a device has failed. It must not block
other work, and it cannot be cancelled: so one daemon thread makes the calls, callers wait for an
answer with a timeout, and a late answer keeps its own timestamp.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import replace
from typing import Final

from frd_agent.memory.gpu.nvml import Look, Nvml
from frd_agent.node_time import raw_now

HANGS_S: Final = 5.0
"""A read that takes longer than this is logged."""
SHARE: Final = 1 / 100
"""Looks become less frequent if they would use more than this share of a core."""


log = logging.getLogger(__name__)


class Devices:
    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._wanted = threading.Event()
        self._answers: queue.SimpleQueue[Look] = queue.SimpleQueue()
        self._asked_at: float | None = None
        self._rest_until = 0.0
        self._stopped = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="frd-nvml", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait: the thread may be in a call that never ends."""
        self._stopped = True
        self._wanted.set()

    def ask(self) -> bool:
        """Request a look at all devices; False while one is in progress, or a rest after it."""
        now_s = time.monotonic()
        if self._asked_at is not None or now_s < self._rest_until:
            return False
        self._asked_at = now_s
        self._wanted.set()
        return True

    def take(self, timeout_s: float) -> Look | None:
        """The next look, each once; waits if one is in progress. None if there is none yet."""
        try:
            return self._answers.get(self._asked_at is not None, timeout_s)
        except queue.Empty:
            return None

    @property
    def silent_s(self) -> float:
        """For how long the driver has not answered."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._stopped:
                return
            before = time.thread_time()
            begin_ns = raw_now()
            try:
                look = self._nvml.look(time.monotonic())
            except Exception:  # pynvml cannot read the driver's answer; the next look may work
                if not self._failing:
                    log.exception("NVIDIA driver: an answer could not be read")
                self._failing, look = True, Look()
            self._answers.put(replace(look, begin_ns=begin_ns, end_ns=raw_now()))
            self._rest_until = time.monotonic() + (time.thread_time() - before) / SHARE
            self._asked_at = None
