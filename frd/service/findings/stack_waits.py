"""What the stacks of ranks show of waits in torch.distributed; two stacks prove a wait.

One stack shows one moment between the request and the answer. If the next one shows the same call
from the same line, and the main thread has not run in between, it is the same wait: it has lasted
at least from the first answer to the second request. Pure, but for the reports.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from frd.engine.unrecorded import ONE_SIDED
from frd.flight.stacks.waits import Call, call_of, has_stack, native_line
from frd.model import AlignedNs, AttemptKey, NodeNs, UnrecordedWait, WaitSource

_WAKES_NS: Final = 1_000_000
"""Processor time that a wait for the store may use between two stacks: it wakes every ten seconds
to look at its time-out, which takes a few hundred microseconds. A wait for a peer uses none."""

Observe = Callable[[AttemptKey, UnrecordedWait], None]
Confirm = Callable[[str], int]
"""After how many ns another stack may prove a wait in an op."""


@dataclass(slots=True)
class _Sighting:
    """The call that the last stack of a rank showed."""

    call: Call
    since: AlignedNs
    confirm_at: AlignedNs | None
    """When another stack may prove it; None if one was asked for."""


class StackWaits:
    def __init__(self, observe: Observe) -> None:
        """`observe` reports a wait in aligned time."""
        self._observe = observe
        self._seen: dict[AttemptKey, dict[int, _Sighting]] = {}
        self._lines: dict[AttemptKey, dict[int, str]] = {}

    def take(
        self,
        key: AttemptKey,
        rank: int,
        text: str,
        *,
        asked_at: AlignedNs,
        answered_at: AlignedNs,
        confirm_after_ns: Confirm | None = None,
    ) -> None:
        """The text of a rank's stack. If it shows a wait that no earlier stack showed, another
        stack can prove that wait after `confirm_after_ns` of its op; None if none will be asked
        for."""
        if not has_stack(text):
            return
        self._lines.setdefault(key, {})[rank] = native_line(text)
        seen = self._seen.setdefault(key, {})
        call, known = call_of(text), seen.get(rank)
        if call is None:
            seen.pop(rank, None)
            over = UnrecordedWait(rank, WaitSource.STACK, "", NodeNs(asked_at), NodeNs(asked_at))
            self._observe(key, over)
            return
        is_same = known is not None and _is_one_wait(known.call, call)
        since = known.since if known is not None and is_same else answered_at
        as_of = max(since, asked_at)
        due = [known.confirm_at] if known is not None and is_same else []
        due.append(confirm_after_ns and AlignedNs(since + confirm_after_ns(call.op)))
        # Two requests at the same time prove nothing: a later stack still has to.
        confirm_at = min((at for at in due if at is not None and at > as_of), default=None)
        seen[rank] = _Sighting(call, since, confirm_at)
        wait = UnrecordedWait(
            *(rank, WaitSource.STACK, call.op, NodeNs(since), NodeNs(as_of)), detail=call.where
        )
        self._observe(key, wait)

    def native_line(self, key: AttemptKey, rank: int) -> str:
        """The line that the last stack of a rank ended in; empty if it ended in Python's standard
        library, or there was none."""
        return self._lines.get(key, {}).get(rank, "")

    def waiting(self, key: AttemptKey) -> list[int]:
        """The ranks whose last stack showed a wait."""
        return sorted(self._seen.get(key, {}))

    def to_confirm(self, key: AttemptKey, now: AlignedNs) -> list[int]:
        """The ranks whose wait another stack may prove now; each is returned once."""
        due = []
        for rank, sighting in self._seen.get(key, {}).items():
            if sighting.confirm_at is not None and now >= sighting.confirm_at:
                sighting.confirm_at = None
                due.append(rank)
        return sorted(due)

    def keep(self, keys: Collection[AttemptKey]) -> None:
        """Forget all other attempts."""
        self._seen = {key: seen for key, seen in self._seen.items() if key in keys}
        self._lines = {key: lines for key, lines in self._lines.items() if key in keys}


def _is_one_wait(before: Call, after: Call) -> bool:
    if (before.op, before.where) != (after.op, after.where):
        return False
    if before.ran_ns is None or after.ran_ns is None:
        return False
    most = 0 if after.op in ONE_SIDED - {"store"} else _WAKES_NS
    return 0 <= after.ran_ns - before.ran_ns <= most
