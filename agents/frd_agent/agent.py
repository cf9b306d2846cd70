"""frd-agent: watches the ranks of one node and reports to the service.

A shell around pure parts: at each tick it reads the run directory and polls every rank; it runs the
streams to the service and answers the service's requests. It owns all tasks; none outlives `run`.
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
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from typing import Final

from frd.address import ALL_ADDRESSES, is_loopback, join_address, split_address
from frd.errors import FrdError
from frd.logs import READY, STOPPING
from frd.model import EntryColumns, NodeRawNs
from frd.version import __version__
from frd.wire.messages import MAX_UNREADABLE, PROTOCOL, Hello, Request, Unreadable
from frd_agent import tap
from frd_agent.addresses.read import Addresses
from frd_agent.config import LIVE_KEYS, Config
from frd_agent.counters import Counters
from frd_agent.inspection.inspector import Inspector
from frd_agent.launch.commands import LaunchWatch
from frd_agent.launch.run_lock import Holder, RunLock, make_default
from frd_agent.memory.watch import MemoryView, MemoryWatch
from frd_agent.metrics import AgentCollector, metrics_server
from frd_agent.nccl_ras.client import RasClient
from frd_agent.node_time import NodeTime
from frd_agent.ranks.dump_files import DumpFiles
from frd_agent.ranks.exits import out_of_memory
from frd_agent.ranks.file_rank import DumpWatch
from frd_agent.ranks.forming.forming_rank import FormingRank
from frd_agent.ranks.poll_schedule import PollPolicy
from frd_agent.ranks.process import Process
from frd_agent.ranks.rank import Rank, RankContext
from frd_agent.ranks.roster import Roster
from frd_agent.uplink.answers import AnyRank, Send, answer, answer_ras, answer_waits
from frd_agent.uplink.dictionary import Dictionary
from frd_agent.uplink.stream import Stream
from frd_agent.uplink.uplinks import Uplinks

_CONCURRENT_DUMPS: Final = 4
_CONCURRENT_ANSWERS: Final = 32
_LOCK_EVERY_S: Final = 0.1
_UNREADABLE_EVERY_S: Final = 2.0
_HURRIED_GOODBYE_S: Final = 1.0
_SAME_SIGTERM_S: Final = 0.5
"""At a time limit Slurm sends SIGTERM twice, 0.2 s apart: that is one request."""

log = logging.getLogger(__name__)


class Agent:
    def __init__(self, config: Config, notify: Callable[[str], None] = lambda state: None) -> None:
        """`notify` gets the states that systemd knows."""
        self._config = config
        self._notify = notify
        self._node = config.node or socket.gethostname()
        self._boot_id = tap.boot_id() or f"host-{socket.gethostname()}"
        self._session = secrets.token_hex(8)
        dictionary = Dictionary()
        self._stats = Counters()
        self._time = NodeTime(self._stats)
        self._uplinks = Uplinks(
            config.endpoint(),
            config.outbox_bytes,
            dictionary,
            self._stats,
            self._time,
            hello=self._hello,
            in_flight=self._in_flight,
            on_request=self._on_request,
        )
        self._shared = RankContext(
            dictionary=dictionary,
            reports=self._uplinks.reports,
            stats=self._stats,
            time=self._time,
            policy=PollPolicy(),
            dumping=asyncio.Semaphore(_CONCURRENT_DUMPS),
            addresses=Addresses(config.log_path),
        )
        me = Holder(os.getpid(), self._node, config.service, time.time(), __version__)
        self._lock = RunLock(config.run_dir, me)
        self._roster = Roster(config.run_dir, self._shared, config.node)
        dumps = DumpFiles([config.dump_dir] if config.dump_dir else [], config.run_dir)
        self._dump_watch = DumpWatch(
            dumps, self._roster, self._shared, config.job, self._node, self._boot_id
        )
        self._launches = LaunchWatch(config.run_dir, self._living)
        self._unreadable = Unreadable()
        self._look_at_s = 0.0
        self._pidfds: dict[int, Rank] = {}
        self._failing: set[int] = set()
        """Numbers of ranks about which an unforeseen error has been logged."""
        self._answers: set[asyncio.Task[None]] = set()
        self._answering = asyncio.Semaphore(_CONCURRENT_ANSWERS)
        self._inspector = Inspector(self._stats, self._time)
        self._ras = RasClient(self._stats.ras) if config.ras else None
        self._memory: MemoryWatch | None = None
        self._metrics = ""
        """Where other machines reach /metrics."""
        self._asked_at_s: float | None = None
        """When the agent was asked to stop."""
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
            stack.callback(self._uplinks.cancel)
            if self._config.memory_hz:
                self._watch_memory(stack)
            log.info("watching %s, reporting to %s", self._config.run_dir, self._config.service)
            self._notify(READY)
            async with asyncio.TaskGroup() as tasks:
                helpers = [
                    tasks.create_task(one.run()) for one in (self._dump_watch, self._launches)
                ]
                await self._watch()
                for helper in helpers:
                    helper.cancel()
                await self._say_goodbye()

    def adopt(self, config: Config) -> None:
        """Apply another configuration as far as a running agent can; other changes are logged.

        All connections to the service are reopened, which reads certificates and token again.
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
        self._uplinks.redial(self._config.endpoint())

    def _living_ranks(self) -> Sequence[Rank | FormingRank]:
        ranks = [rank for rank in self._roster if not rank.is_gone]
        return [*ranks, *self._roster.forming]

    def _living(self) -> set[int]:
        return set(filter(None, (one.process.pid for one in self._living_ranks())))

    def terminate(self) -> None:
        """`stop`, for SIGTERM."""
        asked_at_s = self._asked_at_s
        if asked_at_s is None or time.monotonic() - asked_at_s > _SAME_SIGTERM_S:
            self.stop()

    def stop(self) -> None:
        """End soon: immediately, or when no rank lives, see `Config.outlive_ranks_s`. Called again:
        immediately."""
        if self._asked_at_s is not None:
            self._stop.set()
            asyncio.get_running_loop().call_later(_HURRIED_GOODBYE_S, self._uplinks.cancel)
        else:
            self._asked_at_s = time.monotonic()
            self._notify(STOPPING)
            live = Counter(rank.reports.job for rank in self._living_ranks())
            self._uplinks.leave(live)
            self._leave_if_due()
            if not self._stop.is_set():
                log.info(
                    "asked to stop: %d ranks live: staying for up to %g s until they have ended",
                    *(live.total(), self._config.outlive_ranks_s),
                )
        self._turn.set()

    def _leave_if_due(self) -> None:
        """The agent was asked to stop, and has outlived its ranks, or has stayed long enough."""
        if self._asked_at_s is None or self._stop.is_set():
            return
        stayed_s = time.monotonic() - self._asked_at_s
        if stayed_s >= self._config.outlive_ranks_s or not self._living_ranks():
            self._stop.set()

    def _serve_metrics(self, stack: ExitStack) -> None:
        """Ranks are watched without /metrics too, as by a second agent on the node."""
        if self._config.metrics == "off":
            return

        def view() -> MemoryView:
            return self._memory.view if self._memory else MemoryView()

        who = self._shared.dictionary.who
        collector = AgentCollector(self._stats, self._uplinks, view, who)
        try:
            stack.enter_context(metrics_server(self._config.metrics, collector))
        except FrdError as error:
            log.warning("%s", error)
            return
        host, port = split_address(self._config.metrics)
        if port and not is_loopback(host):
            self._metrics = join_address(self._node if host in ALL_ADDRESSES else host, port)

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
            self._uplinks.samples,
            self._config.memory_hz,
            self._time,
            wake=lambda: loop.call_soon_threadsafe(self._uplinks.wake),
        )
        self._memory.start()
        stack.callback(self._memory.stop)

    # -- turns ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = time.perf_counter()
            self._tick()
            self._stats.polled(time.perf_counter() - began)
            if self._stop.is_set():
                return
            next_turn = loop.call_later(self._config.poll_s, self._turn.set)
            await self._turn.wait()
            next_turn.cancel()
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
        self._uplinks.settle({rank.reports.job for rank in self._known()}, now_s)
        self._look_for_unreadable(now_s)
        self._uplinks.wake(always=False)
        self._leave_if_due()

    def _look_for_unreadable(self, now_s: float) -> None:
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + _UNREADABLE_EVERY_S
            found = self._roster.unreadable
            for text in set(found.texts) - set(self._unreadable.texts):
                log.warning("%s", text)
            texts = (*found.texts, *self._launches.warnings.values())
            self._unreadable = Unreadable(texts[:MAX_UNREADABLE])
        self._uplinks.set_unreadable(self._unreadable)

    def _end(self, rank: Rank, now_ns: NodeRawNs) -> None:
        record, at_ns = rank.identity.ended, rank.exit_recorded_at_ns
        if record and at_ns and (event := out_of_memory(record, at_ns, rank.number)):
            rank.reports.samples.event(event)
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

    # -- the streams ---------------------------------------------------------------------------

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
            metrics=self._metrics,
            paced=True,
        )

    def _in_flight(self, job: str) -> Iterator[EntryColumns]:
        for rank in (*self._roster, *self._dump_watch.ranks):
            if rank.reports.job == job and (rows := rank.in_flight()) is not None:
                yield rows

    def _on_request(self, stream: Stream, request: Request) -> None:
        for index in request.rank_indexes:
            rank = self._find(stream.dispatch.rank_of(index))
            if rank is None:
                continue
            about = rank, request, stream.answer
            # Neither queues behind dumps and stacks: a look at what the inspector has is quick, and
            # questions to RAS wait for each other.
            if request.waits:
                ranks = [*self._roster, *self._roster.forming]
                self._start(request, answer_waits(*about, self._inspector, ranks))
            if request.ras:
                self._start(request, answer_ras(*about, self._ras))
            if request.dump or request.stacks:
                is_suspect = index in request.children_of
                self._start(request, self._answer_in_turn(*about, is_suspect=is_suspect))

    def _start(self, request: Request, answering: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(answering)
        asyncio.get_running_loop().call_later(request.timeout_s, task.cancel)
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    def _find(self, number: int | None) -> AnyRank | None:
        return next((rank for rank in self._known() if rank.number == number), None)

    def _known(self) -> Sequence[AnyRank]:
        return (*self._roster, *self._roster.forming, *self._dump_watch.ranks)

    async def _answer_in_turn(
        self, rank: AnyRank, request: Request, send: Send, *, is_suspect: bool
    ) -> None:
        async with self._answering:
            others = self._living() if is_suspect else None
            files = self._dump_watch.files_of(rank.number)
            await answer(rank, request, send, files, others=others)

    async def _say_goodbye(self) -> None:
        for task in self._answers:
            task.cancel()
        await self._uplinks.close()
