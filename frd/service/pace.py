"""How fast jobs go: collectives a second, now and over the last minutes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from frd.engine.views import AttemptView
from frd.model import AlignedNs, AttemptKey

EVERY_S: Final = 5.0
_KEPT: Final = 60
"""Five minutes."""


Pace: TypeAlias = tuple[float | None, ...]
"""Completed collectives a second of one attempt: one value for each `EVERY_S`, the newest last;
None where the attempt was not seen."""


class Paces:
    """The pace of each attempt; call `sample` every `EVERY_S`."""

    def __init__(self) -> None:
        self._last: dict[AttemptKey, tuple[int, AlignedNs]] = {}
        """The total of matched collectives, and when it was read."""
        self._recent: dict[AttemptKey, deque[float | None]] = {}
        self.known: Mapping[AttemptKey, Pace] = {}
        """What is published; replaced by `sample`."""

    def sample(self, attempts: Sequence[AttemptView], at: AlignedNs) -> None:
        """`attempts` are as of `at`; one that is absent is forgotten."""
        last, self._last = self._last, {}
        for view in attempts:
            before = last.get(view.key)
            self._last[view.key] = view.matched, at
            recent = self._recent.setdefault(view.key, deque(maxlen=_KEPT))
            if before is None or at <= before[1]:
                recent.append(None)
            else:  # a total that fell is that of a job that has started again
                done = max(0, view.matched - before[0])
                recent.append(round(done / ((at - before[1]) / 1e9), 3))
        self._recent = {key: self._recent[key] for key in self._last}
        self.known = {key: tuple(recent) for key, recent in self._recent.items()}
