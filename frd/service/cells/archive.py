"""Where the cells of a process come from: the log of each, and what its last owner left there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from frd.config import Config
from frd.engine.matching.learned_pauses import JobPauses
from frd.errors import StoreError
from frd.model import Finding
from frd.service.clocks.real_time import RealTime
from frd.service.findings.keepers import Keeper, LocalKeeper
from frd.service.journal.log import Log
from frd.service.journal.payloads import limits_of, settings_of
from frd.service.journal.writer import JournalWriter
from frd.store.findings import FindingStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opened:
    """A cell that this process may go on with."""

    log: Log
    keeper: Keeper
    findings: Sequence[Finding] = ()
    """Of the last owner: open ones, and closed ones that were dismissed while their trouble
    lasts."""
    pauses: Sequence[JobPauses] = ()
    """What its jobs have learned."""


class Archive(Protocol):
    async def open(self, cell: int) -> Opened:
        """Become the only one that writes the log of a cell.

        Raises:
            LogUnavailable: try again.
            Fenced: another replica was quicker.
        """
        ...


class LocalArchive:
    """The data directory of this machine, for the only cell of a service without a cluster."""

    def __init__(self, config: Callable[[], Config], findings: FindingStore, now: RealTime) -> None:
        self._config = config
        self._findings = findings
        self._now = now

    async def open(self, cell: int) -> Opened:
        config = self._config()
        log = JournalWriter(
            config.data_dir / "journal",
            settings=settings_of(config, self._now.ahead_ns),
            now=self._now(),
            limits=limits_of(config),
        )
        keeper, store = LocalKeeper(self._findings), self._findings
        try:
            return Opened(log, keeper, store.open_findings(), store.pauses())
        except StoreError as error:
            logger.error("%s: the service begins without earlier findings", error)
            return Opened(log, keeper)
