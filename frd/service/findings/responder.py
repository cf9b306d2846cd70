"""Collects evidence when a finding opens: dumps and stacks of the ranks involved.

The ranks involved, suspects first, are asked for dumps and stacks once per finding; a suspect that
is named later is asked for its stack alone. Only suspects are asked for stacks of child processes.
Each stack goes into the finding as soon as it arrives, including stacks of ranks that wait, one of
which becomes the witness. The id of the dump follows when the dump is stored. Evidence is optional:
an error is logged, and the finding stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from frd.engine.findings.attachments import Evidence
from frd.errors import FrdError, StoreError
from frd.flight.stacks.places import activity_of
from frd.model import Activity, AlignedNs, AttemptKey, Change, Finding, FindingEvent, Kind
from frd.service.findings.dumper import Dumper
from frd.service.requests.turns import Turns

NO_STACKS: Final = frozenset({Kind.STRAGGLER, Kind.CLOCK_UNSYNCHRONIZED})
"""Kinds for which no rank is asked, because its present stack does not explain them."""
MAX_INVOLVED: Final = 64
"""Ranks that are dumped for one finding."""
MAX_AT_ONCE: Final = 4
MAX_WAITING: Final = 64
TIMEOUT_S: Final = 10.0

log = logging.getLogger(__name__)


class Responder:
    def __init__(
        self,
        dumper: Dumper,
        attach: Callable[[str, Evidence], None],
        *,
        keep_dumps: bool,
        now: Callable[[], AlignedNs],
        show: Callable[[AttemptKey, int, str, AlignedNs], None] = lambda key, rank, text, at: None,
    ) -> None:
        """`attach` puts evidence into a finding, by its id; `show` gets the text of each rank's
        stack, and when the rank was asked."""
        self._dumper = dumper
        self._attach = attach
        self._now = now
        self._show = show
        self.keep_dumps = keep_dumps
        self._asked: dict[str, set[int]] = {}
        """Suspects that have been asked for their stacks, by open finding."""
        self._turns = Turns(MAX_AT_ONCE, MAX_WAITING)
        self.close = self._turns.close

    def see(self, events: Iterable[FindingEvent]) -> None:
        """Respond to newly published findings; does not block."""
        for event in events:
            finding = event.finding
            if finding.kind in NO_STACKS:
                continue
            suspects = [suspect.rank for suspect in finding.suspects]
            if event.change is Change.CLOSED:
                self._asked.pop(finding.id, None)
            elif event.change is Change.OPENED:
                self._asked[finding.id] = set(suspects)
                self._start(finding, _involved(finding), dump=self.keep_dumps)
            else:
                # The suspects of a finding from before a restart were asked then.
                asked = self._asked.setdefault(finding.id, set(suspects))
                if new := [rank for rank in suspects if rank not in asked]:
                    asked.update(new)
                    self._start(finding, new, dump=False)

    def _start(self, finding: Finding, ranks: Sequence[int], *, dump: bool) -> None:
        if not self._turns.start(finding.job, partial(self._respond, finding, ranks, dump=dump)):
            log.warning("finding %s: no stacks, no dump: too many findings opened", finding.id)

    async def _respond(self, finding: Finding, ranks: Sequence[int], *, dump: bool) -> None:
        key = AttemptKey(finding.job, finding.attempt)
        asked_at = self._now()

        def on_stack(rank: int, text: str) -> None:
            self._show(key, rank, text, asked_at)
            activity = activity_of(text)
            if activity != Activity():
                self._attach(finding.id, Evidence(rank, activity))

        try:
            if dump:
                try:
                    taken = await self._dumper.take(
                        *(key, ranks),
                        stacks=True,
                        timeout_s=TIMEOUT_S,
                        children_of={suspect.rank for suspect in finding.suspects},
                        on_stack=on_stack,
                    )
                except StoreError as error:  # stacks need no disk
                    log.warning("finding %s: it has no dump: %s", finding.id, error)
                else:
                    self._attach(finding.id, Evidence(dump=taken.id))
                    return
            await self._dumper.stacks(key, ranks, timeout_s=TIMEOUT_S, on_stack=on_stack)
        except FrdError as error:
            log.warning("finding %s: evidence is missing: %s", finding.id, error)


def _involved(finding: Finding) -> list[int]:
    """The ranks of a finding, the most important first."""
    suspects = [suspect.rank for suspect in finding.suspects]
    collective = finding.collective
    members = (*collective.missing_ranks, *collective.waiting_ranks) if collective else ()
    return list(dict.fromkeys((*suspects, *members, *finding.victims)))[:MAX_INVOLVED]
