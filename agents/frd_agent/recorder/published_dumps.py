"""Dumps that a tap publishes in a file, of recorders that no worker server gives.

The tap writes them when its counters rest (`frd_agent.tap`), so a rank that makes no progress is
known, and one that trains is not followed op by op. They are read like the answers of a worker
server, except that each is as old as its file says. Nothing in the file is trusted (`token_files`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from frd.model import NodeNs, NodeRawNs
from frd_agent.node_time import ClockReading
from frd_agent.ranks.token_files import Published, TokenFile
from frd_agent.recorder.worker_server import (
    MAX_BYTES,
    First,
    HandlerFailed,
    Handlers,
    NothingNew,
)

_MAX_READS: Final = 8
"""Of one file: it is read again for the membership of a new group, or where the first dump leaves
open whether entries are missing."""
GENERIC: Final = "fr_trace_json"
"""The handler by which a worker server would give the generic recorder."""
_Name = Annotated[str, msgspec.Meta(max_length=512)]


class TapDumps(Published, frozen=True, kw_only=True):
    at_ns: Annotated[NodeNs, msgspec.Meta(ge=1, le=2**62)]
    """Before they were taken."""
    recorders: Annotated[dict[_Name, msgspec.Raw], msgspec.Meta(max_length=8)]
    """By the handler of the worker server that would answer the same, with its parameter."""


class DumpsFile(TokenFile[TapDumps]):
    SUFFIX = ".dumps"
    MAX_BYTES = MAX_BYTES
    DECODER = msgspec.json.Decoder(TapDumps)


class PublishedDumps:
    """Of one rank; takes the place of its worker server (`recorders.WorkerServer`)."""

    def __init__(self, path: Path, to_raw: Callable[[NodeNs], NodeRawNs]) -> None:
        """`to_raw` converts a stamp of the wall clock that was made a moment ago."""
        self._path = path
        self._to_raw = to_raw
        self._file: DumpsFile | None = None
        self._read: DumpsFile | None = None
        self._reads = 0
        self._at: ClockReading | None = None

    def is_due(self, *, again: bool = False) -> bool:
        """There is a file that was not read yet. `again`: or one that said too little, for some
        readings."""
        self._file = DumpsFile.look(self._path, self._file)
        if self._file is None or self._file is not self._read:
            return self._file is not None
        return again and self._reads < _MAX_READS

    def connected(self) -> AbstractAsyncContextManager[None]:
        """One reading of the file."""
        self._file = DumpsFile.look(self._path, self._file)
        if self._file is not self._read:
            self._read, self._reads, self._at = self._file, 0, None
        self._reads += 1
        return nullcontext()

    async def names(self) -> tuple[str, ...]:
        return tuple(self._content().recorders)

    async def ask(
        self,
        name: str,
        *,
        timeout_s: float | None = None,
        first: First | None = None,
        **params: str,
    ) -> bytes:
        """
        Raises:
            HandlerFailed: the file has no dump of this recorder.
        """
        if first is not None:
            first.answered = True  # the tap's own thread has prepared itself
        name = "?".join((name, *params.values()))
        if (dump := self._content().recorders.get(name)) is None:
            raise HandlerFailed(f"{self._path}: no dump of {name}")
        return bytes(dump)

    def taken_at(self, asked_at: ClockReading) -> ClockReading:
        """When the dumps were taken, by the first look at the file."""
        if self._at is None:
            real_ns = self._content().at_ns
            raw_ns = min(self._to_raw(real_ns), asked_at.raw_ns)  # the clock may have been set back
            self._at = asked_at._replace(raw_ns=raw_ns, real_ns=real_ns)
        return self._at

    def _content(self) -> TapDumps:
        if self._file is None:
            raise HandlerFailed(f"{self._path}: its counters have not rested yet")
        if self._file.content is None:
            raise HandlerFailed(self._file.problem)
        return self._file.content


class ServerAndDumps:
    """A worker server that lacks the generic recorder, with the dumps of that one."""

    def __init__(self, server: Handlers, dumps: PublishedDumps) -> None:
        self._server, self._dumps = server, dumps
        self._is_due = False
        self.taken_at = server.taken_at
        """Of the last answer."""

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        self._is_due = self._dumps.is_due(again=True)
        async with self._server.connected():
            yield

    async def names(self) -> tuple[str, ...]:
        return (*await self._server.names(), GENERIC)

    async def ask(self, name: str, **how: Any) -> bytes:
        """
        Raises:
            NothingNew: the last dump has been read.
            FrdError: as of the one that is asked.
        """
        if name == GENERIC and not self._is_due:
            raise NothingNew(f"{name}: no new dump")
        if name == GENERIC:
            self._dumps.connected()
        source = self._dumps if name == GENERIC else self._server
        self.taken_at = source.taken_at
        return await source.ask(name, **how)
