"""Samples the memory of this node's ranks on separate threads, while the agent runs.

Ten rounds a second while some rank makes progress or some memory changes, one a second otherwise.
The event loop sets the list of ranks and takes the samples; sampling goes on while the loop is busy
with a large dump. The processor time of sampling is bounded: slow sources are read less often.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from frd.model import SeriesInfo
from frd_agent import tap
from frd_agent.memory.allocator import Allocators
from frd_agent.memory.gpu.gpus import Gpus
from frd_agent.memory.gpu.nvml import HANGS_S, DeviceReading, Devices, Nvml
from frd_agent.memory.host.node_memory import NodeMemory
from frd_agent.memory.host.processes import ProcessMemory
from frd_agent.memory.samples import Sink
from frd_agent.memory.target import Part, Target
from frd_agent.node_time import NodeTime, raw_now

_DRIVER_S: Final = 0.02
"""How long a round waits for the driver; a look at eight devices takes a few milliseconds."""
_TOGETHER_NS: Final = 100_000_000
"""What was read this long before a round, or later, belongs to its moment."""
_OLDEST_NS: Final = 60_000_000_000
"""Older readings are of a broken file. A stamp of before the agent may be one of the future."""


class Sampler:
    """All sources of the node, read at about the same time. Lives on one thread.

    The timestamp of a round is an interval, as wide as its slowest source. A late source (a slow
    driver, a tap that waits for the GIL) must not widen it, so its values become a separate sample
    in separate columns.
    """

    def __init__(
        self, samples: Sink, node: NodeMemory, gpus: Gpus, driver: Devices, node_time: NodeTime
    ) -> None:
        self._samples = samples
        self._node = node
        self._gpus = gpus
        self._driver = driver
        self._allocators = Allocators(node_time.one_to_raw)
        self._ranks: frozenset[tuple[int, int]] = frozenset()
        self._last_ns = 0
        self._began_ns = raw_now()

    def round(self, targets: Sequence[Target]) -> bool:
        """True when something happened that should not wait for the next message."""
        self._follow(targets)
        moment = Part(raw_now(), 0)
        now_s = time.monotonic()
        self._driver.ask()
        self._node.read(targets, now_s, moment)
        parts = self._allocators.read(targets, self._gpus.names, moment.begin_ns)
        while (look := self._driver.take(_DRIVER_S)) is not None:
            parts.append(self._gpus.read(look, targets))
        moment.end_ns = raw_now()
        late = [part for part in parts if not self._joins(part, moment)]
        self._last_ns = moment.begin_ns
        urgent = self._keep(moment, late=False)
        for part in sorted(late, key=lambda part: part.begin_ns):
            urgent |= self._keep(part, late=True)
        events = [event for part in (*parts, moment) for event in part.events]
        for event in events:
            self._samples.event(event)
        return bool(events) or urgent

    def close(self) -> None:
        self._allocators.close()
        self._node.close()

    def _joins(self, part: Part, moment: Part) -> bool:
        """Take the part into the moment, if it is of now."""
        earliest = max(moment.begin_ns - _TOGETHER_NS, self._last_ns + 1)
        if not (earliest <= part.begin_ns and part.end_ns <= moment.end_ns):
            return False
        moment.begin_ns = min(moment.begin_ns, part.begin_ns)
        moment.readings += part.readings
        return True

    def _keep(self, moment: Part, *, late: bool) -> bool:
        now_ns = raw_now()
        oldest_ns = max(now_ns - _OLDEST_NS, self._began_ns)
        if not oldest_ns < moment.begin_ns <= moment.end_ns <= now_ns:
            return False
        return self._samples.add(moment.begin_ns, moment.end_ns, moment.readings, late=late)

    def _follow(self, targets: Sequence[Target]) -> None:
        ranks = frozenset((target.attempt, target.number) for target in targets)
        if ranks != self._ranks:
            self._ranks = ranks
            numbers = {number for _, number in ranks}
            self._samples.follow({attempt for attempt, _ in ranks}, numbers)


_IDLE_S: Final = 1.0
_BUSY_S: Final = 10.0
"""How long a jump keeps the rounds quick."""
SHARE: Final = 1 / 50
"""Rounds become less frequent if they would use more than this share of a core."""
_AFTER_TAPS_S: Final = 0.025
"""Rounds come this long after the taps have published (`frd_agent.tap.TICK_S`)."""
_JOIN_S: Final = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemoryView:
    """What was sampled last, for metrics."""

    devices: tuple[DeviceReading, ...] = ()
    values: Mapping[SeriesInfo, int] = field(default_factory=dict)
    """Of living ranks; `rank` is the dictionary's number."""
    driver_silent_s: float = 0.0


class MemoryWatch:
    def __init__(
        self, samples: Sink, hz: float, node_time: NodeTime, wake: Callable[[], object]
    ) -> None:
        """`wake` is called on the sampler's thread: there is something urgent to send."""
        self._samples = samples
        self._hz = hz
        self._wake = wake
        self._gpus = Gpus(sees_host=tap.pid_namespace() == tap.FIRST_PID_NAMESPACE)
        self._devices = Devices(Nvml())
        node = NodeMemory(ProcessMemory())
        self._sampler = Sampler(samples, node, self._gpus, self._devices, node_time)
        self._targets: Sequence[Target] = ()
        self._stop = threading.Event()
        self._round = threading.Event()
        """The next round is now."""
        self._thread = threading.Thread(target=self._run, name="frd-memory", daemon=True)
        self._hangs = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """`wake` is not called any more."""
        self._stop.set()
        self._round.set()
        self._thread.join(_JOIN_S)

    def follow(self, targets: Sequence[Target]) -> None:
        """These ranks are alive. When one ends, its cgroup is read before it goes."""
        has_ended = {one.number for one in self._targets} - {one.number for one in targets}
        self._targets = targets
        if has_ended:
            self._round.set()

    @property
    def view(self) -> MemoryView:
        """Safe to call from any thread."""
        return MemoryView(self._gpus.devices, self._samples.latest(), self._devices.silent_s)

    def _run(self) -> None:
        busy_until = 0.0
        failing = False
        period_s = 1 / self._hz
        while True:
            self._round.wait(_until_next(period_s))
            self._round.clear()
            if self._stop.is_set():
                break
            targets = self._targets
            before = time.thread_time()
            try:
                urgent = self._sampler.round(targets)
                failing = False
            except Exception:  # one failed round must not end sampling
                if not failing:
                    log.exception("memory could not be sampled")
                urgent, failing = False, True
            cost_s = time.thread_time() - before
            now_s = time.monotonic()
            if urgent or any(target.moving for target in targets):
                busy_until = now_s + _BUSY_S
            wanted_s = 1 / self._hz if now_s < busy_until else max(_IDLE_S, 1 / self._hz)
            period_s = max(wanted_s, cost_s / SHARE)
            if urgent and not self._stop.is_set():
                self._wake()
            self._judge_driver()
        self._sampler.close()

    def _judge_driver(self) -> None:
        """One line when it hangs, one when it answers again."""
        hangs = self._devices.silent_s > HANGS_S
        if hangs and not self._hangs:
            log.warning("NVIDIA driver: no answer for %g s: device memory is not seen", HANGS_S)
        elif self._hangs and not hangs:
            log.warning("NVIDIA driver: answers again")
        self._hangs = hangs


def _until_next(period_s: float) -> float:
    """Rounds of all nodes are at the same wall-clock times, just after the taps publish."""
    past_s = (time.time() - _AFTER_TAPS_S) % period_s
    return period_s - past_s if past_s < period_s * 0.9 else 2 * period_s - past_s
