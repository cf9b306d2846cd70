"""Who asks agents for stacks, dumps, waits and RAS: the production's askers, in virtual time.

All that runs between evaluations runs in turns of a loop. What is done after an evaluation gets
the state as of then, not the published one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from frd.engine.views import StatusView
from frd.model import AlignedNs, AttemptKey, Change, FindingEvent
from frd.service.findings.dumper import Dumper
from frd.service.findings.inspector import Inspector
from frd.service.findings.responder import Responder
from frd.service.findings.stack_waits import StackWaits
from frd.service.findings.standstills import Standstills
from frd.service.findings.unrecorded import Unrecorded
from frd.service.requests.inquiries import Inquiries
from frd.service.second_opinions.asker import SecondOpinions
from frd.service.state import ServiceState
from frd.store.dumps import DumpStore
from frd.wire.messages import ResponsePart
from tests.sim.kernel import Kernel
from tests.sim.loop import VirtualLoop
from tests.world.clocks import S

if TYPE_CHECKING:
    from tests.sim.service import Service

_INSPECT: Final = S


class Asking:
    """Of one process of the service. `flush` sends what its streams have for agents."""

    def __init__(
        self,
        service: Service,
        *,
        kernel: Kernel,
        dumps: Path | None,
        flush: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        """`dumps`: where they are kept, if they are."""
        self._service = service
        self._kernel = kernel
        self._failed = failed
        self._loop = VirtualLoop(kernel, failed, flush)  # type: ignore[abstract]  # it has what is used
        self._view = service.evaluator.state.status_view
        self._looked_at = -S
        self._has_opened = False
        now, engine, attach = service.now, service.engine, service.evaluator.attach
        self._inquiries = Inquiries(service.streams)
        self._inquiries._request_ids = itertools.count(1 << 47)  # else the bytes of a seed differ
        store = DumpStore(dumps or service.folder / "no_dumps", max_count=1_000, max_bytes=1 << 30)
        dumper = Dumper(
            *(self._inquiries, service.streams, store, now),
            stall_after_s=lambda: service.policy.stall_after_s,
        )
        self._responder = Responder(
            *(dumper, attach), keep_dumps=dumps is not None, now=now, show=self._stack_shown
        )
        unrecorded = Unrecorded(engine, service.journal, now)
        self._waits = StackWaits(unrecorded.observe_aligned)
        self._standstills = Standstills(
            engine, dumper, self._waits, now=now, state=lambda: ServiceState(self._view)
        )
        self._inspector = Inspector(
            *(self._inquiries, engine, unrecorded),
            native_line=self._waits.native_line,
            attach=attach,
            findings=lambda: self._view.findings,
            now=now,
        )
        self._opinions = SecondOpinions(self._inquiries, engine, attach)

    # -- what the service does -----------------------------------------------------------------

    def published(self, events: Sequence[FindingEvent]) -> None:
        if events:
            self._has_opened |= any(event.change is Change.OPENED for event in events)
            self._loop.call_soon(self._see, events)

    def evaluated(self) -> None:
        self._view = self._present()
        self._loop.call_soon(self._look)

    def answered(self, stream: int, part: ResponsePart) -> None:
        self._loop.call_soon(self._inquiries.answered, stream, part)

    def ended(self, stream: int) -> None:
        self._loop.call_soon(self._inquiries.ended, stream)

    def stop(self) -> None:
        self._loop.finish(self._quit())

    def kill(self) -> None:
        """Nothing of it ever runs again."""
        self._loop.kill()

    def close(self) -> None:
        """At the end of the world."""
        self._loop.close()

    # -- turns of the loop ---------------------------------------------------------------------

    def _present(self) -> StatusView:
        return self._service.engine.status_view(self._service.now())

    def _see(self, events: Sequence[FindingEvent]) -> None:
        self._responder.see(events)
        self._opinions.see(events)

    def _look(self) -> None:
        self._standstills.look()
        if self._has_opened or self._kernel.now - self._looked_at >= _INSPECT:
            self._has_opened, self._looked_at = False, self._kernel.now
            self._loop.create_task(self._inspect())

    async def _inspect(self) -> None:
        try:
            await self._inspector.look()
        except Exception as error:
            self._failed(repr(error))

    def _stack_shown(self, key: AttemptKey, rank: int, text: str, asked_at: AlignedNs) -> None:
        self._waits.take(
            *(key, rank, text),
            asked_at=asked_at,
            answered_at=self._service.now(),
            confirm_after_ns=self._standstills.at_rest_after_ns(key),
        )

    async def _quit(self) -> None:
        await self._responder.close()
        await self._opinions.close()
        await self._standstills.close()
