"""The service as one object: built, started, stopped; `frd serve` only parses flags.

What belongs to the process, and not to its jobs: listeners, credentials, clocks of agents, stores
on this machine. The jobs are in cells (`frd.service.cells`). Engine, streams, evaluation and HTTP
share one event loop and need no locks; what touches a disk runs in threads. This is the only module
that reads the clock for the engine, and the only one that knows all parts: every other module gets
its dependencies as arguments.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import itertools
import logging
import os
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

from starlette.types import ASGIApp

from frd import __version__
from frd.address import is_loopback, split_address
from frd.cluster import missing
from frd.config import Config
from frd.config.settings import (
    LIVE_KEYS,
    changed_keys,
    own_address,
    own_url,
    public_url,
    reachable,
    with_room,
)
from frd.errors import ConfigError, StoreError
from frd.model import FindingEvent
from frd.service.access.admission import Admission, Handshakes
from frd.service.access.certificates import Certificates
from frd.service.access.grants import Tokens
from frd.service.cells.cell import Cell, Common
from frd.service.cells.cells import Cells, add
from frd.service.cells.owner import Holding, hold_alone
from frd.service.cells.replica import LateHomes, hold_replica
from frd.service.clocks.agent_clocks import AgentClocks
from frd.service.clocks.pings import Pings
from frd.service.clocks.real_time import RealTime
from frd.service.findings.evaluator import CALM_TICK_S, TICK_S
from frd.service.findings.notifier import Notifier
from frd.service.http.routes import WebOptions, create_app
from frd.service.http.web.session import HttpGuard
from frd.service.ingest.collector import ACK_EVERY_S, Ingest
from frd.service.metrics.recent_peak import RecentPeak
from frd.service.periodic import repeat
from frd.service.servers import GrpcServer, HttpServer
from frd.service.state import EVERY_S as PACE_EVERY_S
from frd.service.state import Counters, Paces, ServiceState
from frd.service.timelines.timelines import LOOK_EVERY_S as TIMELINES_EVERY_S
from frd.service.timelines.timelines import Timelines
from frd.service.view import ServiceView
from frd.store.dumps import DumpStore
from frd.store.findings import FindingStore
from frd.store.timelines import TimelineStore

if TYPE_CHECKING:
    from frd.service.http.peers.peers import Peers

_CLOCKS_EVERY_S: Final = 1.0
_PRUNE_EVERY_S: Final = 60.0
_KEEP_OWED_EVERY_S: Final = 1.0
_LAST_LOOK_S: Final = 5.0

_Work: TypeAlias = Coroutine[Any, Any, None]

log = logging.getLogger(__name__)


class App:
    """One service. `start`, then `stop`; `grpc` and `http` are the bound addresses in between.

    Raises:
        ConfigError: from the constructor, when certificates or tokens cannot be used.
        StoreError: from the constructor, when the data directory cannot be used. A full disk, and
            damaged files in it, are logged and counted instead.
        ListenError: from `start`, when an address cannot be listened on.
        ClusterError: from `start`, when the cluster cannot be used.
    """

    def __init__(self, config: Config, loop_lag: RecentPeak | None = None) -> None:
        """`loop_lag`: of a `measured_loop` that runs this."""
        self.grpc = ""
        self.http = ""
        self._config = config = with_room(config)
        self._held: Holding | None = None
        self._came = asyncio.Event()
        """Rows may wait for their acknowledgement."""
        self._now = now = RealTime()
        self._certificates = Certificates(config.tls) if config.tls.cert_file else None
        self._tokens = Tokens(config.auth.token_file) if config.auth.token_file else None
        limits = config.limits
        self._admission = Admission(self._tokens, limits.streams_per_peer, limits.objects_per_peer)
        self._handshakes = Handshakes()
        refusals = self._admission.refusals
        self._lock = _lock(config.data_dir)
        self._clocks = AgentClocks(now)
        self._pings = Pings(self._clocks, self._admission)
        self._findings = FindingStore(config.data_dir / "findings.sqlite3")
        self._dumps = DumpStore(
            config.data_dir / "dumps",
            max_count=config.store.dump_count,
            max_bytes=config.store.dump_bytes,
        )
        self._notifier = Notifier(
            config.notify,
            lambda: public_url(self._config, self.http),
            has_pages=config.web,
            now=now.utc,
            is_sure=self._is_sure,
        )
        if not config.cluster.servers:  # there, a finding's value says what is owed
            self._findings.owed = self._notifier.owed
            self._findings.notified = self._notifier.notified
        self._common = Common(
            config=lambda: self._config,
            now=now,
            clocks=self._clocks,
            dumps=self._dumps,
            stream_ids=itertools.count(1),
            published=self._published,
            prepare=self._notifier.prepare,
            is_sure=self._is_sure,
            came=self._came.set,
        )
        self._cells = Cells(
            is_cluster=bool(config.cluster.servers),
            complete=self._completed,
            dropped=self._dropped,
            is_sure=self._is_sure,
        )
        self._notifier.is_asking = self._cells.is_asking
        self._notifier.is_unstored = self._cells.is_unstored
        self._homes = LateHomes()
        self._ingest = Ingest(
            self._homes, self._admission, stream_bytes_per_s=config.limits.stream_bytes_per_s
        )
        self._timeline_store = TimelineStore(config.data_dir / "timelines.sqlite3")
        self._timelines = Timelines(self._timeline_store, lambda: self._cells.state, now)
        of_stores = self._findings, self._dumps
        silences = self._common.silences
        view = ServiceView(self._cells, *of_stores, now, self._timelines, silences)
        self._peers = _peers(config, view, self._cells) if config.cluster.servers else None
        self._paces = Paces()
        app: ASGIApp = create_app(view, self._peers, self._web())
        self._loop_lag = loop_lag or RecentPeak()
        self._forgotten_findings = 0
        self._store_errors = 0
        """Of the findings database, without those of the cells."""
        self._grpc = GrpcServer(
            self._ingest.handle, self._pings.handle, config.grpc, self._certificates
        )
        self._http = HttpServer(
            app if self._tokens is None else HttpGuard(app, self._tokens, refusals),
            config.http,
            self._certificates,
            config.limits.http_connections_per_peer,
            refusals.http,
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Go on with the findings of an earlier process, listen, and evaluate from then on."""
        with contextlib.suppress(StoreError):  # keeping what is owed has the same error
            if not self._cells.is_cluster:
                self._notifier.resume(await asyncio.to_thread(self._findings.outbox))
                self._notifier.recall(await asyncio.to_thread(self._findings.were_notified))
        of_process = self._common, self._cells, self._findings, self._notifier
        if self._cells.is_cluster:
            await self._listen()  # other replicas must know the addresses
            options = self._config.cluster
            grpc = options.advertise_grpc or reachable(self.grpc)
            http = own_address(self._config, self.http)
            for mistake in advertised_in_vain(options.servers, grpc=grpc, http=http):
                log.warning("%s", mistake)
            own = own_url(self._config, self.http)
            self._held = await hold_replica(*of_process, grpc, own)
        else:
            self._held = await hold_alone(*of_process)
            await self._listen()
        self._homes.know(self._held.homes)
        self._cells.refresh()

        # A cluster's lease must be looked at often; and its many cells do not publish one by one.
        tick_s = TICK_S if self._cells.is_cluster else CALM_TICK_S
        self._tasks = [
            asyncio.create_task(work)
            for work in (
                repeat("publishing", tick_s, self._tick),
                repeat("acknowledging", ACK_EVERY_S, self._acknowledge, self._came),
                repeat("comparing clocks", _CLOCKS_EVERY_S, self._compare_clocks),
                repeat("removing what is old", _PRUNE_EVERY_S, self._prune),
                repeat("keeping timelines", TIMELINES_EVERY_S, self._timelines.look),
                repeat("keeping what is owed", _KEEP_OWED_EVERY_S, self._keep_owed),
                repeat("measuring the pace of jobs", PACE_EVERY_S, self._sample_pace),
                *self._watch(self._held),
            )
        ]

    def _watch(self, held: Holding) -> Iterator[_Work]:
        if self._peers is not None:
            yield self._peers.watch(lambda: held.lease.view, held.owner.taken)

    async def _listen(self) -> None:
        self.http = await self._http.start()
        self.grpc = await self._grpc.start()

    async def stop(self) -> None:
        """End in order: a last evaluation while agents are still connected, so that no rank looks
        lost; then streams and HTTP requests end; then everything is written."""
        if self._held is not None:
            await self._held.owner.finish()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        closing = asyncio.to_thread(self._notifier.close)
        await asyncio.gather(self._grpc.stop(), self._http.stop(), closing)
        if self._peers is not None:
            await self._peers.close()
        if self._held is not None:
            await self._held.stop()
        with contextlib.suppress(Exception):  # a picture is not worth an unclean end
            async with asyncio.timeout(_LAST_LOOK_S):
                await self._timelines.look()  # of findings that the last evaluation has closed
        await self._keep_owed()
        self._timeline_store.close()
        self._findings.close()
        os.close(self._lock)

    def _tick(self) -> None:
        self._now.follow()
        if self._held is not None:
            self._held.lease.ticked()
        self._cells.refresh()
        self._notifier.look()

    def _acknowledge(self) -> None:
        def flush(cell: Cell) -> None:
            if not cell.streams.flush_acks():
                self._came.set()

        self._cells.each("acknowledging", flush)

    def _compare_clocks(self) -> None:
        self._clocks.refresh()
        self._cells.each("comparing clocks", lambda cell: cell.streams.compare_clocks())

    def _sample_pace(self) -> None:
        view = self._cells.state.status_view
        self._paces.sample(view.attempts, view.at)

    def adopt(self, config: Config) -> None:
        """Apply another configuration; changes that need a restart are only logged.

        Certificates and tokens are read again if their files have changed.
        """
        try:
            self._notifier.adopt(config.notify)
        except ConfigError as error:
            log.error("%s: nothing is changed", error)
            return
        old, config = self._config, with_room(config)
        for key in changed_keys(old, config):
            if key.partition(".")[0] in LIVE_KEYS:
                log.info("%s: changed", key)
            else:
                log.warning("%s: changed: takes effect after a restart", key)
        self._config = old.model_copy(update={key: getattr(config, key) for key in LIVE_KEYS})
        for cell in self._cells.values():
            cell.adopt(self._config)  # not what needs a restart
        for files in (self._certificates, self._tokens):
            if files is not None:
                files.refresh()
        log.info("configuration read again")

    def _is_sure(self) -> bool:
        """No other process can have a job of this one. Everything that is acknowledged to agents,
        exported to Prometheus or sent to people asks this when it goes out."""
        held = self._held
        return held.lease.is_sure if held is not None else not self._cells.is_cluster

    def _web(self) -> WebOptions:
        config = self._config
        return WebOptions(
            self._tokens,
            config.web,
            config.public_url,
            self._admission.refusals,
            config.alertmanager_url,
        )

    # -- publishing ---------------------------------------------------------------------

    def _completed(self, state: ServiceState) -> ServiceState:
        """The cells' state, with what concerns the process as a whole."""
        counted = Counters(
            refused=dict(self._ingest.refused),
            clock_refused=dict(self._clocks.refused),
            evicted={
                "dumps": self._dumps.evicted,
                "stored_findings": self._forgotten_findings,
                "journal_segments": self._held.journal.evicted if self._held is not None else 0,
            },
            http_refused=dict(self._admission.refusals.http),
            handshakes_failed=self._handshakes_failed(),
            throttled=self._ingest.throttled,
            notifications=self._notifier.counted(),
            store_errors={
                "findings": self._store_errors + self._findings.db.damaged,
                "journal": self._held.journal.dropped if self._held is not None else 0,
                "timelines": self._timelines.store_errors + self._timeline_store.db.damaged,
            },
        )
        if not self._cells:
            now = self._now()
            view = replace(state.status_view, at=now, utc_ahead_ns=self._now.ahead_ns)
            state = replace(state, status_view=view, evaluated_at=now)
        return replace(
            state,
            counters=add([state.counters, counted]),
            loop_lag_s=self._loop_lag.value(time.monotonic()),
            version=__version__,
            expected_agents=self._config.expected_agents,
            cluster=self._held.cluster() if self._held is not None else None,
            paces=self._paces.known,
        )

    def _handshakes_failed(self) -> int:
        begun = self._certificates.handshakes if self._certificates is not None else 0
        return self._handshakes.failed(begun, self._admission.connections, time.monotonic())

    def _published(self, events: Sequence[FindingEvent]) -> None:
        if events or not self._cells.is_cluster:
            self._cells.refresh()
            self._timelines.see(events)
            self._notifier.see(events)

    def _dropped(self, number: int, cell: Cell) -> None:
        self._notifier.forget(cell.notifiable)

    async def _keep_owed(self) -> None:
        if not self._findings.owes_news:
            return
        try:
            await asyncio.to_thread(self._findings.keep_owed)
        except StoreError:  # opening and saving log it
            self._store_errors += 1

    async def _prune(self) -> None:
        store = self._config.store
        self._clocks.forget(self._now())
        with contextlib.suppress(StoreError):  # saving reports a broken store
            self._forgotten_findings += await asyncio.to_thread(
                self._findings.prune,
                max_count=store.finding_count,
                max_age_s=store.finding_retention_s,
                now=self._now.utc(),
            )
        await asyncio.to_thread(
            self._dumps.bound, max_count=store.dump_count, max_bytes=store.dump_bytes
        )


def advertised_in_vain(servers: Sequence[str], **addresses: str) -> Iterator[str]:
    """Addresses, by key, that lead the agents and replicas of other machines to themselves."""
    if all(is_loopback(urlsplit(server).hostname or "") for server in servers):
        return
    for key, address in addresses.items():
        if is_loopback(split_address(address)[0]):
            yield (
                f"cluster.advertise_{key}: {address}: other machines cannot reach this replica "
                f"there: name its address, or listen on 0.0.0.0 ({key})"
            )


def _peers(config: Config, view: ServiceView, cells: Cells) -> Peers:
    try:
        for package in ("nats", "nkeys"):  # what only a later step would miss
            importlib.import_module(package)
        from frd.service.http.peers.client import PeerClient  # noqa: PLC0415  httpx is an extra
        from frd.service.http.peers.peers import Peers  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(missing(error.name)) from None
    return Peers(view, PeerClient(config.tls, config.cluster.peers_ca_file), cells.keys)


def _lock(data_dir: Path) -> int:
    """Two services in one directory would overwrite each other's journal."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = data_dir / "lock"
        # On a disk that has become read-only, the service still watches.
        is_read_only = file.exists() and not os.access(file, os.W_OK)
        flags = os.O_RDONLY if is_read_only else os.O_RDWR | os.O_CREAT
        lock = os.open(file, flags | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreError(
            f"data directory: {data_dir}: another frd serve uses it: "
            "stop it or choose another --data-dir"
        ) from None
    except OSError as error:
        raise StoreError(
            f"data directory: {data_dir}: {error.strerror}: choose a writable --data-dir"
        ) from None
    return lock
