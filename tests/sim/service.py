"""The service without its sockets: everything behind the gRPC handlers is the production's own.

Engine, sessions, clocks, journal, findings database and evaluator are the real ones, put together
as `frd.service.app` does it; the simulation provides time and messages. A crash drops all memory
and the end of the journal; the next process starts from the same directory.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from frd.engine.engine import Engine
from frd.engine.policy import Policy
from frd.engine.views import StatusView
from frd.errors import FrdError, WireError
from frd.model import AlignedNs, FindingEvent, ServiceRawNs
from frd.service.clocks.agent_clocks import AgentClocks
from frd.service.clocks.pings import AnsweredPings
from frd.service.clocks.real_time import RealTime
from frd.service.findings.evaluator import Evaluator
from frd.service.findings.keepers import LocalKeeper
from frd.service.ingest.shared import Shared
from frd.service.ingest.streams import Stream, Streams
from frd.service.journal.payloads import Settings, encode_payload
from frd.service.journal.writer import JournalWriter
from frd.service.state import ServiceState
from frd.store.findings import FindingStore
from frd.store.journal import JournalLimits, segments
from frd.wire.clock import ClockHello, decode_clock, encode_pong
from frd.wire.messages import AgentEvent, Goodbye, Refusal, ResponsePart
from tests.sim.asking import Asking
from tests.world.clocks import Host
from tests.world.virtual_time import InPlace

VERSION: Final = "simulated"
_TICKS_TOGETHER: Final = 40
_JOURNAL: Final = JournalLimits(total_bytes=256 * 1024 * 1024, max_age_s=3600.0)


class _Journal(JournalWriter):
    """Writes in the world's own thread, many ticks together: a transaction for each tick and a
    change of threads would take as long as the ticks themselves."""

    _ticks = 0

    def flush(self, at: AlignedNs, every_ns: int) -> None:
        self._ticks += 1
        if self._ticks % _TICKS_TOGETHER == 0:
            self._hand_over(at)

    def _do(self, work: Callable[[], None]) -> None:
        work()


class Disk:
    """The data directory and the event loop, which outlive every process of the service."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.full = False
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(InPlace())

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop.run_until_complete(work)

    def close(self) -> None:
        self._loop.close()

    @contextmanager
    def journal_kept(self) -> Iterator[None]:
        """The process that writes the journal is killed: its write-ahead log stays as it is."""
        self._database = segments(self.folder / "journal")[-1]
        self._log = self._database.with_name(f"{self._database.name}-wal")
        with closing(sqlite3.connect(self._database)) as other:
            other.execute("SELECT count(*) FROM batches").fetchall()  # so SQLite keeps the log
            yield
            database, log = self._database.read_bytes(), self._log.read_bytes()
        self._database.write_bytes(database)
        self._log.write_bytes(log)

    def tear(self, dice: random.Random) -> None:
        """The last bytes of the journal had not reached the disk."""
        size = self._log.stat().st_size
        with self._log.open("r+b") as file:
            file.truncate(max(size - 100 * dice.randrange(400), 0))


class Service:
    """One process of the service.

    `applied` is called with every message that was applied, `published` with findings that change.
    """

    def __init__(
        self,
        disk: Disk,
        host: Host,
        true_now: Callable[[], int],
        policy: Policy,
        instance: str,
        *,
        applied: Callable[[Stream, AgentEvent, bytes], None],
        published: Callable[[Sequence[FindingEvent], StatusView], None],
        asking: Callable[[Service], Asking] | None = None,
    ) -> None:
        self.policy = policy
        self.folder = disk.folder
        self._disk = disk
        self._host = host
        self._true_now = true_now
        self._applied = applied
        self._published = published
        self.now = RealTime(lambda: host.real(true_now()), self.raw)
        self._can_ask = asking is not None
        self.engine = Engine(policy, can_ask=self._can_ask)
        shared = Shared(self.engine)
        self._clocks = AgentClocks(self.now)
        self.findings = FindingStore(disk.folder / "findings.sqlite3")
        self._is_full = False
        self.journal = _Journal(
            disk.folder / "journal",
            settings=encode_payload(Settings(VERSION, policy, can_ask=self._can_ask)),
            now=self.now(),
            limits=_JOURNAL,
        )
        recorder = self._recorder = self.journal.whole()
        self.streams = Streams(
            shared, self._clocks, recorder,
            now=self.now, version=VERSION, instance=instance,
            ids=itertools.count(1),
        )  # fmt: skip
        self.evaluator = Evaluator(
            shared, LocalKeeper(self.findings), recorder,
            now=self.now, project=self._project, publish=self._publish, settle=self._settle,
        )  # fmt: skip
        self.asking = None if asking is None else asking(self)
        self.evaluator.take_up(self.findings.open_findings(), self.findings.pauses())
        self.evaluate()

    def raw(self) -> ServiceRawNs:
        return ServiceRawNs(self._host.raw(self._true_now()))

    # -- its periodic tasks --------------------------------------------------------------------

    def evaluate(self) -> None:
        """
        Raises:
            Exception: a fault of the engine, which the real service survives and the simulation
                does not.
        """
        self._fill_disk()
        self._disk.run(self.evaluator.evaluate())

    def keep_clocks(self) -> None:
        self.now.follow()
        self._clocks.refresh()
        self.streams.compare_clocks()

    def _settle(self, now: AlignedNs) -> None:
        """As `Cell` does."""
        if self.engine.utc_ahead_ns != self.now.ahead_ns:
            settings = Settings(VERSION, self.policy, self.now.ahead_ns, self._can_ask)
            self._recorder.adopt(encode_payload(settings), _JOURNAL, now)
            self.engine.adopt(self.policy, self.now.ahead_ns)
        self.streams.settle(now)

    def _project(self, status_view: StatusView) -> ServiceState:
        self.streams.keep(frozenset(view.key for view in status_view.attempts))
        return ServiceState(status_view)

    def _publish(self, events: Sequence[FindingEvent]) -> None:
        self._published(events, self.evaluator.state.status_view)

    def _fill_disk(self) -> None:
        """SQLite's own limit of space: no page more than there are."""
        if self._is_full == self._disk.full:
            return
        self._is_full = self._disk.full
        writer = self.findings.db._writer
        assert writer is not None
        (pages,) = writer.execute("PRAGMA page_count").fetchone()
        writer.execute(f"PRAGMA max_page_count = {pages if self._disk.full else 1 << 30}")

    def stop(self) -> None:
        """A last evaluation, and all data is written."""
        self.evaluate()
        if self.asking is not None:
            self.asking.stop()
        self._close()

    def crash(self) -> None:
        """Memory is lost; the journal's thread may finish, see `Disk.tear`."""
        if self.asking is not None:
            self.asking.kill()
        with self._disk.journal_kept():
            self._close()

    def _close(self) -> None:
        self.journal.close()
        self.findings.close()

    # -- streams -------------------------------------------------------------------------------

    def take(self, stream: Stream, data: bytes) -> bool:
        """One message, handled like in `Ingest`; False if the stream is over."""
        try:
            event = self.streams.take(stream, data)
        except FrdError as error:
            reason = error.reason if isinstance(error, WireError) else "limit"
            self.streams.refused[reason] += 1
            stream.send(Refusal(reason, str(error)))
            return False
        self._applied(stream, event, data)
        if self.asking is not None and isinstance(event, ResponsePart):
            self.asking.answered(stream.id, event)
        return not isinstance(event, Goodbye)

    def close(self, stream: Stream) -> None:
        """It is over."""
        self.streams.close(stream)
        if self.asking is not None:
            self.asking.ended(stream.id)


class ClockStream:
    """The service's side of one stream of pings, as `Pings` serves it."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._answered = AnsweredPings()
        self._key = ("", "")

    def take(self, data: bytes) -> bytes | None:
        """The answer to one message, if it has one."""
        service = self._service
        received = service.raw()
        ping = decode_clock(data)
        if isinstance(ping, ClockHello):
            self._key = ping.boot_id, ping.session
            return None
        clock = service._clocks.find(self._key)
        if clock is None:
            return None
        self._answered.check(ping)
        pong = encode_pong(ping.number, 1.0)
        sent = service.raw()
        exchange = self._answered.end(ping)
        self._answered.begin(ping, received, sent)
        service._clocks.learn(clock, ping.readings, exchange)
        return pong
