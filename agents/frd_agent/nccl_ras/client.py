"""Talks to the RAS service of NCCL: asks for the status in JSON, within a time and a size.

The protocol is lines of text. A greeting comes first, so that another program at the same port gets
no command. Commands that change something or cost much (``CONTROL``, ``MONITOR``, ``DIAGNOSTICS``)
are never sent. Jobs of one node may share the port, and the kernel chooses which of them a
connection reaches: if the answer is about other processes, the client connects again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from functools import partial
from typing import Final

from frd.errors import ServiceUnavailable, WireError
from frd.wire.ras import encode_ras
from frd_agent.inspection.reading.memory import Helper, NotInTime
from frd_agent.nccl_ras.address import Place, is_here, place_of
from frd_agent.nccl_ras.answer import read_answer

TIMEOUT_S: Final = 6.0
"""Of everything once a question has its turn: connecting, and up to `_TRIES` answers."""
READ_S: Final = 1.0
"""Of that, for the environment of the rank."""
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""RAS writes about 600 bytes for each rank of each communicator: 28,000 of them, such as a job of
16,384 ranks with one communicator, or one of 4,096 with six each. Kept in memory while it is read.
"""
_RAS_TIMEOUT_S: Final = 3
"""How long RAS itself waits for processes that do not respond."""
_TRIES: Final = 3
_CHUNK: Final = 64 * 1024
_GREETING: Final = b"CLIENT PROTOCOL 2\n"
_SETTINGS: Final = (f"TIMEOUT {_RAS_TIMEOUT_S}\n".encode(), b"SET FORMAT json\n")
_QUESTION: Final = b"VERBOSE STATUS\n"

log = logging.getLogger(__name__)


class RasClient:
    """One question at a time: its answer may be large."""

    def __init__(self, results: Counter[str]) -> None:
        """`results` counts ``answered`` and ``failed`` questions."""
        self._results = results
        self._turn = asyncio.Lock()
        self._helper = Helper(READ_S, "frd-environ-of")

    async def ask(self, pid: int | None, own_pid: int, timeout_s: float) -> bytes:
        """The encoded `RasReport` on a rank: `pid` is its process as /proc shows it, None if it
        does not, and `own_pid` the number that the process has for itself. `timeout_s` includes
        the questions before this one; the question itself has at most `TIMEOUT_S` of it.

        Raises:
            ServiceUnavailable: there is none; the message says why.
        """
        try:
            data = await self._in_turn(pid, own_pid, timeout_s)
        except ServiceUnavailable:
            self._results["failed"] += 1
            raise
        except Exception as error:
            self._results["failed"] += 1
            log.exception("NCCL RAS: a question failed")
            why = f"NCCL RAS: {type(error).__name__}: see the log of the agent"
            raise ServiceUnavailable(why) from None
        self._results["answered"] += 1
        return data

    async def _in_turn(self, pid: int | None, own_pid: int, timeout_s: float) -> bytes:
        began_s = time.monotonic()
        missed = f"other questions took {timeout_s:g} s"
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                left_s = min(TIMEOUT_S, timeout_s - (time.monotonic() - began_s))
                missed = f"no answer within {left_s:.1f} s"
                async with asyncio.timeout(left_s):
                    return await self._ask(await self._place(pid), own_pid)
        except TimeoutError:
            raise ServiceUnavailable(f"NCCL RAS: {missed}") from None

    async def _place(self, pid: int | None) -> Place:
        """On the helper's thread. The thread of `to_thread` only waits for it, at most `READ_S`."""
        try:
            return await asyncio.to_thread(self._helper.run, partial(place_of, pid))
        except NotInTime:
            raise ServiceUnavailable(
                f"NCCL RAS: the environment of process {pid}, or of one before it, cannot be read "
                f"within {READ_S:g} s"
            ) from None

    async def _ask(self, place: Place, own_pid: int) -> bytes:
        for _ in range(_TRIES):
            answer = await _status(place)
            data = await asyncio.to_thread(_report, answer, own_pid)
            if data:
                return data
        raise ServiceUnavailable(f"NCCL RAS: what listens at {place} does not know the rank")


def _report(answer: bytes, own_pid: int) -> bytes:
    """Empty if the answer is about other processes."""
    report = read_answer(answer, own_pid, is_here)
    if not report.communicators:
        return b""
    try:
        return encode_ras(report)
    except WireError as error:
        raise ServiceUnavailable(f"NCCL RAS: its answer cannot be used: {error}") from None


async def _status(place: Place) -> bytes:
    """The JSON document.

    Raises:
        ServiceUnavailable: nothing listens there, or it is no RAS that answers in JSON.
    """
    writer: asyncio.StreamWriter | None = None
    try:
        reader, writer = await asyncio.open_connection(place.host, place.port, limit=_CHUNK)
        writer.write(_GREETING)
        if not (await reader.readline()).startswith(b"SERVER PROTOCOL "):
            raise ServiceUnavailable(f"NCCL RAS: what listens at {place} is something else")
        writer.write(b"".join(_SETTINGS))
        for setting in _SETTINGS:
            if (said := (await reader.readline()).strip()) != b"OK":
                what, why = (text.decode("utf-8", "replace") for text in (setting.strip(), said))
                raise ServiceUnavailable(
                    f"NCCL RAS: {what}: answered with {why[:80]!r}: it needs a newer NCCL"
                )
        writer.write(_QUESTION)
        return await _rest(reader)
    except (OSError, ValueError) as error:  # ValueError: a line that is too long
        raise ServiceUnavailable(f"NCCL RAS: {place}: {error}") from None
    finally:
        if writer is not None:
            writer.transport.abort()


async def _rest(reader: asyncio.StreamReader) -> bytes:
    answer = bytearray()
    while chunk := await reader.read(_CHUNK):
        answer += chunk
        if len(answer) > MAX_ANSWER_BYTES:
            raise ServiceUnavailable(f"NCCL RAS: its answer exceeds {MAX_ANSWER_BYTES} bytes")
    return bytes(answer)
