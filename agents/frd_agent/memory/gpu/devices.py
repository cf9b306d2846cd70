"""The thread that calls the NVIDIA driver, and the check that notices a call that hangs.

A call into the driver may hang for minutes, or forever if a device has failed. It must not block
other work, and it cannot be cancelled: so a helper thread makes the calls, callers wait for an
answer with a timeout, and a late answer keeps its own timestamp.
"""

from __future__ import annotations

import logging
import queue
import time
from dataclasses import replace
from typing import Final

from frd_agent.inspection.reading.memory import Helper
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
        self._helper = Helper(name="frd-nvml")
        self._answers: queue.SimpleQueue[Look] = queue.SimpleQueue()
        self._asked_at = self._rest_until = 0.0
        self._failing = False

    def ask(self) -> bool:
        """Request a look at all devices; False while one is in progress, or a rest after it."""
        now_s = time.monotonic()
        if self._helper.hangs or now_s < self._rest_until:
            return False
        self._asked_at = now_s
        self._helper.start(self._look)
        return True

    def take(self, timeout_s: float) -> Look | None:
        """The next look, each once; waits if one is in progress. None if there is none yet."""
        try:
            return self._answers.get(self._helper.hangs, timeout_s)
        except queue.Empty:
            return None

    @property
    def silent_s(self) -> float:
        """For how long the driver has not answered."""
        return time.monotonic() - self._asked_at if self._helper.hangs else 0.0

    def _look(self) -> None:
        before, begin_ns = time.thread_time(), raw_now()
        try:
            look = self._nvml.look(time.monotonic())
        except Exception:  # pynvml cannot read the driver's answer; the next look may work
            if not self._failing:
                log.exception("NVIDIA driver: an answer could not be read")
            self._failing, look = True, Look()
        self._rest_until = time.monotonic() + (time.thread_time() - before) / SHARE
        self._answers.put(replace(look, begin_ns=begin_ns, end_ns=raw_now()))
