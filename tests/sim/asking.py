"""Who asks agents for stacks, dumps, waits and RAS: the production's asker, in virtual time.

All that runs between evaluations runs in turns of a loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from frd.engine.evidence.questions import Question
from frd.service.evidence.asker import Asker
from frd.service.evidence.inquiries import Dumper, Inquiries
from frd.store.dumps import DumpStore
from frd.wire.messages import ResponsePart
from tests.sim.falsified import FalsifiedDoor
from tests.sim.kernel import Kernel
from tests.sim.loop import VirtualLoop

if TYPE_CHECKING:
    from tests.sim.service import Service


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
        falsifies: str = "",
    ) -> None:
        """`dumps`: where they are kept, if they are. `falsifies`: some answers are false, by dice
        of this name."""
        self._loop = VirtualLoop(kernel, failed, flush)  # type: ignore[abstract]  # it has what is used
        self._inquiries = Inquiries(service.streams)
        self._inquiries._request_ids = itertools.count(1 << 47)  # else the bytes of a seed differ
        store = DumpStore(dumps or service.folder / "no_dumps", max_count=1_000, max_bytes=1 << 30)
        dumper = Dumper(
            *(self._inquiries, service.streams, store, service.now),
            stall_after_s=lambda: service.policy.stall_after_s,
        )
        self._door = FalsifiedDoor(kernel, service.evaluator.answer, falsifies)
        self._asker = Asker(
            *(self._inquiries, dumper),
            self._door.take if falsifies else service.evaluator.answer,
            keep_dumps=dumps is not None,
            now=service.now,
        )
        service.evaluator.ask = self._ask

    def _ask(self, questions: Sequence[Question]) -> None:
        if questions:
            self._loop.call_soon(self._asker.ask, questions)

    def answered(self, stream: int, part: ResponsePart) -> None:
        self._loop.call_soon(self._inquiries.answered, stream, part)

    def ended(self, stream: int) -> None:
        self._loop.call_soon(self._inquiries.ended, stream)

    def stop(self) -> None:
        self._door.is_closed = True
        self._loop.finish(self._asker.close())

    def kill(self) -> None:
        """Nothing of it ever runs again."""
        self._door.is_closed = True
        self._loop.kill()

    def close(self) -> None:
        """At the end of the world."""
        self._loop.close()
