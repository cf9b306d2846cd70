"""frd-agent: watches the ranks of one node and reports to the service.

A shell around pure parts: at each tick it reads the run directory and polls every rank; it runs the
stream to the service and answers the service's requests. It owns all tasks; none outlives `run`.
Ranks are not affected by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack
from typing import Final

from frd.errors import FrdError
from frd.model import EntryColumns, NodeRawNs
from frd.version import __version__
from frd.wire.clock import ClockHello
from frd.wire.messages import PROTOCOL, Hello, Request
from frd_agent import tap
from frd_agent.config import LIVE_KEYS, Config
from frd_agent.counters import Counters
from frd_agent.inspection.inspector import Inspector
from frd_agent.launch.run_lock import Holder, RunLock, make_default
from frd_agent.launch.watch import LaunchWatch
from frd_agent.memory import MemoryView, MemoryWatch, Samples
from frd_agent.metrics import AgentCollector, metrics_server
from frd_agent.node_time import NodeTime
from frd_agent.ranks.dump_files import DumpFiles
from frd_agent.ranks.exits import out_of_memory
from frd_agent.ranks.file_rank import DumpWatch
from frd_agent.ranks.poll_schedule import PollPolicy
from frd_agent.ranks.process import Process
from frd_agent.ranks.rank import Rank, RankContext
from frd_agent.ranks.roster import Roster
from frd_agent.uplink.answers import AnyRank, answer, answer_waits
from frd_agent.uplink.current_state import CurrentState
from frd_agent.uplink.dictionary import Dictionary
from frd_agent.uplink.dispatch import Dispatch
from frd_agent.uplink.node_clock import Clock
from frd_agent.uplink.outbox import Outbox
from frd_agent.uplink.stream import Stream

_GOODBYE_S: Final = 5.0
"""Time limit for sending what is left at the end, if a service is connected."""
_CONCURRENT_DUMPS: Final = 4
_CONCURRENT_ANSWERS: Final = 32
_LOCK_EVERY_S: Final = 0.1

log = logging.getLogger(__name__)


class Agent:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._node = config.node or socket.gethostname()
        self._boot_id = tap.boot_id() or f"host-{socket.gethostname()}"
        self._session = secrets.token_hex(8)
        dictionary = Dictionary()
        outbox = Outbox(config.outbox_rows, config.outbox_bytes)
        current = CurrentState(dictionary.attempt_of)
        self._samples = Samples(config.memory_bytes, dictionary.series_number)
        self._stats = Counters()
        hello = ClockHello(self._boot_id, self._session)
        self._time = NodeTime(self._stats)
        self._clock = Clock(hello, self._stats, self._time)
        self._stream = Stream(
            service=config.endpoint(),
            hello=self._hello,
            dispatch=Dispatch(dictionary, outbox, current, self._samples, self._in_flight),
            outbox=outbox,
            stats=self._stats,
            on_request=self._on_request,
            stamp=self._clock.stamp,
            side_task=self._clock.ping,
        )
        self._shared = RankContext(
            dictionary=dictionary,
            outbox=outbox,
            current=current,
            stats=self._stats,
            time=self._time,
            policy=PollPolicy(fill=config.ring_fill),
            dumping=asyncio.Semaphore(_CONCURRENT_DUMPS),
            wake=self._stream.wake,
        )
        me = Holder(os.getpid(), self._node, config.service, time.time(), __version__)
        self._lock = RunLock(config.run_dir, me)
        self._roster = Roster(config.run_dir, self._shared, config.node)
        folders = [config.run_dir / "dumps", *([config.dump_dir] if config.dump_dir else [])]
        self._dump_watch = DumpWatch(
            DumpFiles(folders), self._roster, self._shared, config.job, self._node, self._boot_id
        )
        self._pidfds: dict[int, Rank] = {}
        self._failing: set[int] = set()
        """Numbers of ranks about which an unforeseen error has been logged."""
        self._answers: set[asyncio.Task[None]] = set()
        self._answering = asyncio.Semaphore(_CONCURRENT_ANSWERS)
        self._inspector = Inspector(self._stats, self._time)
        self._memory: MemoryWatch | None = None
        self._stop = asyncio.Event()
        self._turn = asyncio.Event()

    async def run(self) -> None:
        """Until `stop`.

        Raises:
            FrdError: another agent watches the run directory.
        """
        with ExitStack() as stack:
            stack.callback(self._lock.close)
            make_default(self._config.run_dir, os.environ)
            await self._take_lock()
            self._serve_metrics(stack)
            stack.callback(self._roster.close)
            stack.callback(self._inspector.stop)
            if self._config.memory_hz:
                self._watch_memory(stack)
            log.info("watching %s, reporting to %s", self._config.run_dir, self._config.service)
            launches = LaunchWatch(self._config.run_dir, self._living)
            async with asyncio.TaskGroup() as tasks:
                stream = tasks.create_task(self._stream.run())
                helpers = [
                    tasks.create_task(work)
                    for work in (self._dump_watch.run(), self._clock.watch(), launches.run())
                ]
                await self._watch()
                for helper in helpers:
                    helper.cancel()
                await self._say_goodbye(stream)

    def adopt(self, config: Config) -> None:
        """Apply another configuration as far as a running agent can; other changes are logged.

        The connection to the service is reopened, which reads certificates and token again.
        """
        for key in Config.model_fields:
            if getattr(config, key) == getattr(self._config, key):
                continue
            if key in LIVE_KEYS:
                log.info("%s: changed", key)
            else:
                log.warning("%s: changed: takes effect after a restart", key)
        live = {key: getattr(config, key) for key in LIVE_KEYS}
        self._config = self._config.model_copy(update=live)
        log.info("configuration read again")
        self._stream.redial(self._config.endpoint())

    def _living(self) -> set[int]:
        found = {rank.pid for rank in self._roster if not rank.is_gone}
        return found | {rank.pid for rank in self._roster.forming}

    def stop(self) -> None:
        self._stop.set()
        self._turn.set()

    def _serve_metrics(self, stack: ExitStack) -> None:
        """Ranks are watched without /metrics too, as by a second agent on the node."""
        if self._config.metrics == "off":
            return
        shared = self._shared
        collector = AgentCollector(
            shared.stats, shared.outbox, self._samples, self._memory_view, shared.dictionary.who
        )
        try:
            stack.enter_context(metrics_server(self._config.metrics, collector))
        except FrdError as error:
            log.warning("%s", error)

    async def _take_lock(self) -> None:
        """Wait while another agent, which may be about to end, watches the directory.

        Raises:
            RunDirBusy: the other agent does not end.
        """
        while not self._lock.keep(time.monotonic()) and self._lock.is_busy:
            if self._stop.is_set():
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _LOCK_EVERY_S)

    # -- memory --------------------------------------------------------------------------------

    def _watch_memory(self, stack: ExitStack) -> None:
        loop = asyncio.get_running_loop()
        self._memory = MemoryWatch(
            self._samples,
            self._config.memory_hz,
            self._time,
            wake=lambda: loop.call_soon_threadsafe(self._stream.wake),
        )
        self._memory.start()
        stack.callback(self._memory.stop)

    def _memory_view(self) -> MemoryView:
        return self._memory.view if self._memory else MemoryView()

    # -- turns ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            began = time.perf_counter()
            self._tick()
            self._stats.polled(time.perf_counter() - began)
            if self._stop.is_set():
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._turn.wait(), self._config.poll_s)
            self._turn.clear()

    def _tick(self) -> None:
        now_ns = self._time.now()
        for rank in self._roster.update(now_ns):
            self._follow_process(rank)
        now_s = time.monotonic()
        self._lock.keep(now_s)
        living = (rank for rank in self._roster if not rank.is_gone)
        if vanished := [rank for rank in living if not self._poll(rank, now_s, now_ns)]:
            # What a rank wrote just before it went may be newer than what was read above.
            for rank in self._roster.update(now_ns):
                self._follow_process(rank)
            for rank in vanished:
                self._end(rank, now_ns)
            self._unfollow_processes()
        self._roster.clear(now_ns)
        alive = [rank for rank in self._roster if not rank.is_gone]
        self._stats.ranks = len(alive)
        if self._memory is not None:
            self._memory.follow([rank.target(now_s) for rank in alive])
        if self._shared.current.has_news or self._shared.outbox.rows:
            self._stream.wake()

    def _end(self, rank: Rank, now_ns: NodeRawNs) -> None:
        record, at_ns = rank.identity.exit, rank.exit_recorded_at_ns
        if record and at_ns and (event := out_of_memory(record, at_ns, rank.number)):
            self._samples.event(event)
        self._roster.end(rank, now_ns)

    def _poll(self, rank: Rank, now_s: float, now_ns: NodeRawNs) -> bool:
        """Poll one rank; an error must not stop the polling of others."""
        try:
            return rank.poll(now_s, now_ns)
        except Exception:
            if rank.number not in self._failing:
                log.exception("%s: could not be read", rank)
            self._failing.add(rank.number)
            return True

    def _follow_process(self, rank: Rank) -> None:
        """The kernel reports the exit immediately: the order of ends is known to about a
        millisecond, and the status is read before the parent collects it."""
        pinned = rank.process.pinned
        if pinned is not None and (fd := pinned.pidfd) is not None:
            self._pidfds[fd] = rank
            asyncio.get_running_loop().add_reader(fd, self._on_exit, fd, pinned)

    def _on_exit(self, fd: int, process: Process) -> None:
        asyncio.get_running_loop().remove_reader(fd)
        process.ended(self._time.now())
        self._turn.set()

    def _unfollow_processes(self) -> None:
        for fd, rank in list(self._pidfds.items()):
            if rank not in self._roster or rank.is_gone:
                asyncio.get_running_loop().remove_reader(fd)
                self._pidfds.pop(fd).process.close()

    # -- the stream ----------------------------------------------------------------------------

    def _hello(self) -> Hello:
        raw_ns, real_ns, _ = self._time.look()
        return Hello(
            protocol=PROTOCOL,
            agent_version=__version__,
            node=self._node,
            boot_id=self._boot_id,
            session=self._session,
            sent_at_ns=real_ns,
            sent_raw_ns=raw_ns,
        )

    def _in_flight(self) -> Iterator[EntryColumns]:
        for rank in (*self._roster, *self._dump_watch.ranks):
            if (rows := rank.in_flight()) is not None:
                yield rows

    def _on_request(self, request: Request) -> None:
        for index in request.rank_indexes:
            rank = self._find(self._stream.dispatch.rank_of(index))
            if rank is None:
                continue
            if request.waits:
                self._start(self._answer_waits(rank, request))
            if request.dump or request.stacks:
                self._start(self._answer(rank, request, children=index in request.children_of))

    def _start(self, answering: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(answering)
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    def _find(self, number: int | None) -> AnyRank | None:
        ranks = (*self._roster, *self._roster.forming, *self._dump_watch.ranks)
        return next((rank for rank in ranks if rank.number == number), None)

    async def _answer(self, rank: AnyRank, request: Request, *, children: bool) -> None:
        rank_pids = self._living() if children else None
        files = self._dump_watch.files_of(rank.number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(request.timeout_s), self._answering:
                await answer(rank, request, files, self._stream.answer, others=rank_pids)

    async def _answer_waits(self, rank: AnyRank, request: Request) -> None:
        """Does not queue behind dumps and stacks: it is a look at what the inspector has."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(request.timeout_s):
                ranks = [*self._roster, *self._roster.forming]
                await answer_waits(rank, request, self._inspector, ranks, self._stream.answer)

    async def _say_goodbye(self, stream: asyncio.Task[None]) -> None:
        for task in self._answers:
            task.cancel()
        self._stream.close()
        await asyncio.wait({stream}, timeout=_GOODBYE_S if self._stats.connected else 0.0)
        stream.cancel()
