"""One cell: engine, agent streams, log and findings of some jobs.

A service without a cluster has one cell for all its jobs. In a cluster there are many, each owned
by one replica at a time. A cell knows neither listeners nor other cells; what it shares with them
(clocks of agents, dump folder, time) comes in as `Common`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from frd import __version__
from frd.config import Config
from frd.engine.engine import Engine
from frd.engine.matching.learned_pauses import JobPauses
from frd.engine.views import StatusView
from frd.model import AlignedNs, Finding, FindingEvent
from frd.service.clocks.agent_clocks import AgentClocks
from frd.service.clocks.real_time import RealTime
from frd.service.evidence.asker import Asker
from frd.service.evidence.inquiries import Dumper, Inquiries
from frd.service.findings.evaluator import Evaluator
from frd.service.findings.keepers import Keeper
from frd.service.findings.people import People, Silences
from frd.service.ingest.collector import Home
from frd.service.ingest.job_runs import REASON as JOB_NAME
from frd.service.ingest.shared import Shared
from frd.service.ingest.streams import Streams
from frd.service.journal.payloads import limits_of, settings_of
from frd.service.journal.writer import Log
from frd.service.state import Counters, ServiceState
from frd.store.dumps import DumpStore

_CALM_STALL_S: Final = 3.0
"""With a shorter `stall_after_s`, a wait is not known long before it is a stall."""


@dataclass(frozen=True, slots=True)
class Common:
    """What the cells of one process share."""

    config: Callable[[], Config]
    """The present configuration."""
    now: RealTime
    clocks: AgentClocks
    dumps: DumpStore
    stream_ids: Iterator[int]
    published: Callable[[Sequence[FindingEvent]], None]
    """Called with changes of findings when they are published."""
    prepare: Callable[[Sequence[FindingEvent]], None] = lambda events: None
    """Called with the same changes before they are stored."""
    silences: Silences = field(default_factory=Silences)
    is_sure: Callable[[], bool] = lambda: True
    """No other process can have a cell of this one; see `Lease.is_sure`."""
    came: Callable[[], None] = lambda: None
    """Called when rows may have come that are to be acknowledged."""


class Cell:
    """`start`, then `finish` and `close`; or `abandon` and `quit`, if another replica has it."""

    def __init__(
        self,
        common: Common,
        log: Log,
        keeper: Keeper,
        *,
        successor: Callable[[], str] = str,
        one_job: bool = False,
    ) -> None:
        """`successor` is that of `Streams`, `one_job` that of `Home`: the cell is one of many."""
        config, now = common.config(), common.now
        self._common = common
        self._is_over = False
        """What comes now is not acknowledged: agents send it to the next process."""
        self.log = log
        self._keeper = keeper
        shared = self._shared = Shared(Engine(config.policy, now.ahead_ns, can_ask=True))
        self._engine = shared.engine
        self.streams = Streams(
            shared,
            common.clocks,
            log,
            now=now,
            version=__version__,
            instance=secrets.token_hex(8),
            ids=common.stream_ids,
            successor=successor,
            is_sure=self._is_sure,
            on_rows=common.came,
            on_news=self._came,
        )
        inquiries = Inquiries(self.streams)
        self.home = Home(self.streams, inquiries, one_job)
        self.evaluator = Evaluator(
            shared,
            keeper,
            log,
            now=now,
            project=self._project,
            publish=common.published,
            settle=self._settle,
            is_idle=self._is_idle,
            is_calm=self._is_calm,
        )
        self.evaluator.prepare = common.prepare
        self.evaluator.people = People(common.silences)
        self.dumper = Dumper(
            inquiries,
            self.streams,
            common.dumps,
            now,
            stall_after_s=lambda: common.config().policy.stall_after_s,
        )
        self._asker = Asker(
            inquiries,
            self.dumper,
            self.evaluator.answer,
            keep_dumps=config.store.dump_count > 0,
            now=now,
        )
        self.evaluator.ask = self._asker.ask
        self._evaluating: asyncio.Task[None] | None = None

    @property
    def state(self) -> ServiceState:
        """The cell's part of the published state."""
        return self.evaluator.state

    @property
    def notifiable(self) -> Collection[str]:
        """Ids of findings about which there may be messages."""
        is_open = {finding.id for finding in self.state.open_findings()}
        return is_open | self.evaluator.unsaved | self._keeper.owing.keys()

    async def start(self, findings: Sequence[Finding], pauses: Sequence[JobPauses]) -> None:
        """Go on with the findings and learned pauses of an earlier owner of the cell, and
        evaluate from now on."""
        self.evaluator.take_up(findings, pauses)
        await self.evaluator.evaluate()
        self._evaluating = asyncio.create_task(self.evaluator.run())

    async def finish(self) -> None:
        """Evaluate once more, while agents are still connected, so that no rank looks lost."""
        self.streams.flush_acks()
        self._is_over = True
        self.evaluator.stop()
        await self.quit()

    async def close(self) -> None:
        """Write everything, after `finish`."""
        await self._keeper.close()
        self.log.end(self._common.now())

    def abandon(self) -> None:
        """Another replica has the cell: show and write nothing more. Call `quit`, too."""
        self._is_over = True
        self.evaluator.stop()
        self._keeper.abandon()
        self.log.end(self._common.now())

    def adopt(self, config: Config) -> None:
        """Another configuration is in force."""
        now = self._common.now
        self.log.adopt(settings_of(config, now.ahead_ns), limits_of(config), now())
        self._engine.adopt(config.policy, now.ahead_ns)
        self._asker.keep_dumps = config.store.dump_count > 0

    async def quit(self) -> None:
        """End all tasks. It may be called again after it was cancelled."""
        if self._evaluating is not None:
            await asyncio.wait({self._evaluating})  # a cancelled wait must not cancel the last save
        await self._asker.close()

    def _is_sure(self) -> bool:
        return not self._is_over and self._common.is_sure()

    def _is_idle(self) -> bool:
        """No agent reports, and nothing is known that time could change."""
        view = self.evaluator.state.status_view
        return not (self.streams or view.attempts or view.findings)

    def _is_calm(self) -> bool:
        """What time alone brings may come a second later: nothing is wrong, and no rank waits."""
        evaluator, policy = self.evaluator, self._common.config().policy
        view = evaluator.state.status_view
        is_asking = bool(evaluator.asking or view.findings or view.going_on)
        return self.streams.is_calm and not is_asking and policy.stall_after_s >= _CALM_STALL_S

    def _came(self) -> None:
        self.evaluator.news()
        self._common.came()

    # -- publishing ----------------------------------------------------------------------------

    def _settle(self, now: AlignedNs) -> None:
        if self._engine.utc_ahead_ns != self._common.now.ahead_ns:
            self.adopt(self._common.config())
        self.streams.settle(now)

    def _project(self, status_view: StatusView) -> ServiceState:
        self.streams.keep(frozenset(view.key for view in status_view.attempts))
        runs, config = self._shared.runs, self._common.config()
        return ServiceState(
            status_view=status_view,
            nodes=self.streams.nodes.views(status_view.at, config.policy.telemetry_late_s),
            counters=Counters(
                entries=self._shared.entries,
                duplicates=self._shared.duplicates,
                refused={
                    **self.streams.refused,
                    JOB_NAME: runs.refused,
                    **self._asker.refused,
                },
                store_errors={
                    "findings": self.evaluator.store_errors,
                    "dumps": self.dumper.store_errors,
                },
                findings=dict(self.evaluator.opened),
                corrected=self.evaluator.corrected,
            ),
            ingest_lag_s=self.streams.lag_s(),
            version=__version__,
            warnings=runs.warnings(status_view.at),
            refused_ranks=self.streams.refused_ranks(status_view.at),
            name_conflicts=runs.conflicts(),
        )
