"""One round of sampling: all sources of the node, read at about the same time.

The timestamp of a round is an interval, as wide as its slowest source. A late source (a slow
driver, a tap that waits for the GIL) must not widen it, so its values become a separate sample in
separate columns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from frd_agent.memory.allocator import Allocators
from frd_agent.memory.gpu.devices import Devices
from frd_agent.memory.gpu.gpus import Gpus
from frd_agent.memory.host.node_memory import NodeMemory
from frd_agent.memory.target import Part, Sink, Target
from frd_agent.node_time import NodeTime, raw_now

_DRIVER_S: Final = 0.02
"""How long a round waits for the driver; a look at eight devices takes a few milliseconds."""
_TOGETHER_NS: Final = 100_000_000
"""What was read this long before a round, or later, belongs to its moment."""
_OLDEST_NS: Final = 60_000_000_000
"""Older readings are of a broken file. A stamp of before the agent may be one of the future."""


class Sampler:
    """Lives on one thread."""

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
        parts = self._allocators.read(targets, self._gpus.names, now_s, moment.begin_ns)
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
