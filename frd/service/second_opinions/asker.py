"""Asks for a second opinion when a finding opens that RAS may say something about.

That is a hang in which no rank is the cause (`network_or_device`), or in which a rank is alone in
an op (`in_collective_alone`). Each of these reasons is asked about once for each finding. One agent
with ranks of the group is asked, because RAS answers for the whole job, and a second one if the
first has no answer. The finding is published before; without an answer it stays as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

from frd.engine.engine import Engine
from frd.engine.findings.attachments import Evidence
from frd.errors import FrdError, ServiceUnavailable, WireError
from frd.model import AttemptKey, Change, Finding, FindingEvent, RankInfo, Reason
from frd.service.requests.inquiries import Inquiries
from frd.service.requests.turns import Turns
from frd.service.second_opinions.comparison import opinion
from frd.wire.ras import MAX_RAS_BYTES, RasReport, decode_ras

REFUSED: Final = "ras_report"
"""The reason under which `frd_ingest_refused_total` counts reports that cannot be read."""
REASONS: Final = frozenset({Reason.NETWORK_OR_DEVICE, Reason.IN_COLLECTIVE_ALONE})
MAX_AGENTS: Final = 2
"""The service asks this many agents about one finding, one after the other."""
MAX_AT_ONCE: Final = 2
"""The service asks about this many findings at the same time."""
MAX_WAITING: Final = 16
"""Findings that are asked about, or wait for it. Those that open meanwhile are not asked about,
unless they change later."""
TIMEOUT_S: Final = 15.0
"""An agent uses up to 12 s of it: 6 s for the question, because RAS itself waits for processes that
do not respond, and 6 s before it for the question about another finding (`MAX_AT_ONCE`)."""
_NCCL: Final = "nccl"

log = logging.getLogger(__name__)


class SecondOpinions:
    def __init__(
        self, inquiries: Inquiries, engine: Engine, attach: Callable[[str, Evidence], None]
    ) -> None:
        """`attach` puts evidence into a finding, by its id."""
        self._inquiries = inquiries
        self._engine = engine
        self._attach = attach
        self._asked: dict[str, set[Reason]] = {}
        """Reasons that were asked about, by open finding."""
        self._turns = Turns(MAX_AT_ONCE, MAX_WAITING)
        self.close = self._turns.close
        self.refused = 0
        """Reports that could not be read."""

    def see(self, events: Iterable[FindingEvent]) -> None:
        """Newly published findings; does not block."""
        for event in events:
            finding = event.finding
            if event.change is Change.CLOSED:
                self._asked.pop(finding.id, None)
                continue
            reasons = REASONS & {finding.reason, *(s.reason for s in finding.suspects)}
            # A finding from before a restart that has an opinion was asked about then.
            known = set(reasons) if finding.second_opinion else set()
            asked = self._asked.setdefault(finding.id, known) if reasons else known
            if reasons - asked and self._turns.start(finding.job, partial(self._ask, finding)):
                asked |= reasons

    async def _ask(self, finding: Finding) -> None:
        key = AttemptKey(finding.job, finding.attempt)
        members, infos = self._group(key, finding)
        if not infos:
            return
        try:
            report = await self._report(key, [info.rank for info in infos if _uses_nccl(info)])
            pids = {info.rank: info.pid for info in infos}
            said = await asyncio.to_thread(opinion, report, members, pids)
            if not said:
                raise ServiceUnavailable("NCCL RAS: its answer shows nothing about these ranks")
        except WireError as error:
            self.refused += 1
            log.warning("finding %s: no second opinion: %s", finding.id, error)
        except FrdError as error:
            log.info("finding %s: no second opinion: %s", finding.id, error)
        else:
            self._attach(finding.id, Evidence(second_opinion=said))

    def _group(self, key: AttemptKey, finding: Finding) -> tuple[Sequence[int], list[RankInfo]]:
        """The members of the finding's group, and those that are known; ranks that wait first."""
        attempt, ref = self._engine.known(key), finding.collective
        if attempt is None or ref is None:
            return (), []
        groups = attempt.tables.groups
        if (group := groups.by_id.get(ref.group_id)) is None:
            return (), []
        members, infos = groups.infos[group].ranks, attempt.tables.ranks.infos
        named = {suspect.rank for suspect in finding.suspects}
        order = sorted(members, key=lambda rank: rank in named)
        return members, [infos[rank] for rank in order if rank in infos]

    async def _report(self, key: AttemptKey, ranks: Sequence[int]) -> RasReport:
        """
        Raises:
            FrdError: no agent has an answer of RAS, or the answer cannot be read.
        """
        refusal: FrdError = ServiceUnavailable("no agent of ranks that use NCCL is connected")
        for rank in self._inquiries.one_by_agent(key, ranks, MAX_AGENTS):
            try:
                data = await self._answer(key, rank)
            except ServiceUnavailable as error:
                refusal = error
            else:
                return await asyncio.to_thread(decode_ras, data)
        raise refusal

    async def _answer(self, key: AttemptKey, rank: int) -> bytes:
        """
        Raises:
            ServiceUnavailable: the agent of the rank has none; the message says why.
        """
        asking = self._inquiries.ask(
            *(key, [rank]), dump=False, stacks=False, ras=True, timeout_s=TIMEOUT_S
        )
        data = bytearray()
        async with aclosing(asking) as asked:
            async for answers in asked:
                for answer in answers:
                    if answer.error:
                        raise ServiceUnavailable(f"rank {rank}: {answer.error}")
                    data += answer.data
                    if len(data) > MAX_RAS_BYTES:
                        raise ServiceUnavailable(f"rank {rank}: over {MAX_RAS_BYTES} bytes")
        return bytes(data)


def _uses_nccl(info: RankInfo) -> bool:
    """As far as it is known."""
    return not info.backends or any(_NCCL in backend for backend in info.backends)
