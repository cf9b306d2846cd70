"""What stacks prove that the service got: a wait that no recorder shows, seen twice.

An answer counts if the service got it in time. Two of one rank prove a wait if they show the same
call from the same line, and the main thread has hardly run in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from frd.wire.messages import Part, Request, ResponsePart
from tests.sim.ops import MS
from tests.stacks import call_of, has_stack
from tests.world.clocks import S

if TYPE_CHECKING:
    from tests.sim.kernel import Kernel

_TRAVELS: Final = S
"""An answer that comes so much before its time is over has come in time."""
_WAKES_NS: Final = MS


@dataclass(slots=True)
class Seen:
    """What the last stacks of a rank process showed."""

    call: str
    """Empty: no call of torch.distributed."""
    line: str
    ran_ns: int | None
    since: int
    """True time of the first answer that showed it."""
    asked_at: int
    """When the rank was asked for the last one."""
    at: int
    """When that came."""


class Proofs:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._requests: dict[int, tuple[int, int]] = {}
        """When agents were asked, and until when they may answer."""
        self._seen: dict[int, Seen] = {}
        """By pid."""

    def restarted(self) -> None:
        self._seen.clear()

    def asked(self, request: Request) -> None:
        now = self._kernel.now
        until = now + round(request.timeout_s * S) - _TRAVELS
        self._requests.setdefault(request.request_id, (now, until))

    def answered(self, pid: int, part: ResponsePart) -> None:
        asked_at, until = self._requests.get(part.request_id, (0, 0))
        now = self._kernel.now
        if part.part is not Part.STACK or part.error or now > until:
            return
        text = part.data.decode()
        if not has_stack(text):
            return
        call, known = call_of(text), self._seen.get(pid)
        seen = Seen("", "", None, now, asked_at, now)
        if call is not None:
            seen = Seen(call.op, call.where, call.ran_ns, now, asked_at, now)
        if known is not None and _is_same(known, seen):
            seen.since = known.since
        self._seen[pid] = seen

    def of(self, pid: int) -> Seen | None:
        return self._seen.get(pid)

    def lasted_ns(self, pid: int) -> int:
        """How long the rank has provably waited in one call; 0: not at all, as far as is known."""
        seen = self._seen.get(pid)
        return 0 if seen is None or not seen.call else max(seen.asked_at - seen.since, 0)


def _is_same(known: Seen, seen: Seen) -> bool:
    if (known.call, known.line) != (seen.call, seen.line):
        return False
    if not seen.call or known.ran_ns is None or seen.ran_ns is None:
        return False
    return 0 <= seen.ran_ns - known.ran_ns <= _WAKES_NS
