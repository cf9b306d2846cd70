"""What is heard of replicas: scrapes of their metrics, notices to people, acknowledgements.

Each cell has one true owner at each moment: the replica that has gained it last. A former owner may
believe what it likes, but it must not be heard, and the servers must not store what it writes.
Findings are heard under one id, for as long as they are true, whichever replica has them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from frd.cluster.cells import cell_of
from frd.cluster.registry import Entry, claim_of
from frd.model import Finding, FindingState
from frd.service.ingest.streams import Stream
from tests.sim.oracle import Violation, _about
from tests.sim.world import EVALUATE
from tests.world.clocks import S

if TYPE_CHECKING:
    from tests.sim.cluster.replica import SimReplica
    from tests.sim.cluster.world import ClusterWorld

SCRAPE: Final = 5 * S
AGAIN_WITHIN: Final = 15 * S
"""After a takeover, and the last fault, a finding is heard again."""
_NOTICED_WITHIN: Final = 15 * S
_STORED_WITHIN: Final = 5 * S
"""A sender that is sure of its cells has stored that it has sent a message."""
_OPENED: Final = frozenset({"opened", "critical", "suspect"})


class Process(NamedTuple):
    """A process of a replica, as its claims and heartbeats say."""

    name: str
    generation: int


@dataclass(frozen=True, slots=True)
class _Heard:
    finding: Finding
    """In the last version that was heard."""
    by: Process
    """Who was heard first."""
    first_at: int
    last_at: int


@dataclass(slots=True)
class _Noticed:
    by: SimReplica
    sure_for: int = 0
    """How long the sender has had the cell since, and was sure of it."""


class Entries(dict[str, Entry]):
    """What the servers hold; each change is reported to `Heard`."""

    def __init__(self, heard: Heard) -> None:
        super().__init__()
        self._heard = heard

    def __setitem__(self, key: str, entry: Entry) -> None:
        super().__setitem__(key, entry)
        if key.startswith("v."):
            self._heard.written(int(key[2:4]), self[f"c.{key[2:4]}"])


class Heard:
    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._owners: dict[int, Process] = {}
        """The process that has gained each cell last, also if it has released it."""
        self._heard: dict[str, _Heard] = {}
        """Findings by id; those that are closed since are in `_over`."""
        self._over: dict[str, _Heard] = {}
        self._applied: dict[tuple[Process, str, int], int] = {}
        """The last revision that a process has applied, by agent session and pid."""
        self._noticed: dict[str, _Noticed] = {}
        """By finding and what happened to it, how the message was sent last."""
        self.unstored: set[str] = set()
        """Findings that were heard before they were stored."""
        self.counts: Counter[str] = Counter()
        self._broken: list[Violation] = []

    @property
    def _cell(self) -> int:
        return cell_of(self._world.job)

    def check(self) -> None:
        if self._broken:
            raise self._broken[0]

    def look(self) -> None:
        """Every `EVALUATE`: which senders could have stored what they have sent."""
        for one in self._noticed.values():
            if one.by in self._world.running() and self.is_owner(one.by) and one.by.lease.is_sure:
                one.sure_for += EVALUATE

    @contextmanager
    def judging(self) -> Iterator[None]:
        """What is judged in the middle of a replica's work, which would handle the exception."""
        try:
            yield
        except Violation as violation:
            self._broken.append(violation)

    def is_owner(self, replica: SimReplica, cell: int | None = None) -> bool:
        """No other process has gained the cell since."""
        return self._owners.get(self._cell if cell is None else cell) == replica.process

    # -- the servers -----------------------------------------------------------------------------

    def gained(self, replica: SimReplica, cell: int) -> None:
        """Its claim on the cell is confirmed. All others are heard now, if they are."""
        self._owners[cell] = replica.process
        if cell == self._cell:
            self.counts["takeovers"] += 1
            self._world.kernel.after(0, self._scrape_all)

    def written(self, cell: int, claim: Entry) -> None:
        """A value of the cell was stored, under this claim. The writer is the process whose event
        loop runs."""
        known, loop = claim_of(claim), asyncio.get_running_loop()
        writer = next(one for one in self._world.all_replicas if one.loop is loop)
        if known is None or (known.owner, known.generation) != writer.process:
            self._breaks("stored by another", f"{writer.process}: cell {cell}: {known}")

    # -- a replica is heard ----------------------------------------------------------------------

    def applied(self, replica: SimReplica, stream: Stream, pid: int, last: int) -> None:
        """Rows up to a revision."""
        of = replica.process, stream.session.key[1], pid
        self._applied[of] = max(self._applied.get(of, 0), last)

    def acknowledged(self, replica: SimReplica, session: str, revisions: dict[int, int]) -> None:
        """An agent is sent that rows up to these revisions, by stream index, are applied."""
        self.counts["acknowledgements"] += 1
        if not self.is_owner(replica):
            self._breaks("former owner, acknowledged", f"{replica.process}: {revisions}")
        for index, revision in revisions.items():
            pids = {
                stream.session.ranks[index].info.pid
                for stream in replica.streams_of(session)
                if index in range(len(stream.session.ranks))
            }
            last = max(
                (self._applied.get((replica.process, session, p), 0) for p in pids), default=0
            )
            if pids and revision > last:
                what = f"{replica.process}: {revision}, it has applied {last}"
                self._breaks("acknowledged, not applied", what)

    def noticed(self, replica: SimReplica, key: str) -> None:
        """People get a message. `key` is the id of the finding, and what has happened to it.

        A replica that is killed, paused or cut off before it could store that it has sent a message
        leaves it to the next owner, which sends it again.
        """
        self.counts["notices"] += 1
        if (earlier := self._noticed.get(key)) is not None:
            self.counts["notices sent again"] += 1
            if earlier.by == replica or earlier.sure_for > _STORED_WITHIN:
                self._breaks("noticed twice", key)
        elif f"{key.rpartition('-')[0]}-closed" in self._noticed:
            self._breaks("notice after the end", f"{replica.process}: {key}")
        if not self.is_owner(replica):
            self._breaks("former owner, notice", f"{replica.process}: {key}")
        self._noticed[key] = _Noticed(replica)

    def scraped(self, replica: SimReplica) -> set[str]:
        """Prometheus reads its metrics; returns the findings of the job."""
        series = [
            sample
            for family in text_string_to_metric_families(replica.metrics())
            for sample in family.samples
            if sample.labels.get("job") == self._world.job
        ]
        if not series:
            return set()
        self.counts["scrapes"] += 1
        if not self.is_owner(replica):
            self._breaks("former owner, scraped", f"{replica.process}: {series[0]}")
        shown = {id_ for one in series if (id_ := one.labels.get("finding"))}
        assert replica.cell is not None
        findings = {one.id: one for one in replica.cell.state.status_view.findings}
        for id_ in shown & findings.keys():
            self._hear(replica, findings[id_])
        self._world.people.look(replica, findings)
        return shown

    def _hear(self, replica: SimReplica, finding: Finding) -> None:
        now = self._world.kernel.now
        known = self._heard.get(finding.id)
        if known is not None:
            self._heard[finding.id] = replace(known, finding=finding, last_at=now)
            return
        if f"v.{self._cell:02}.{finding.id}" not in self._world.servers.entries:
            self.unstored.add(finding.id)
        others = self._heard.values() if not self._world.troubles.liars else ()
        for other in others:  # a lie about the job may close what is true, until all is sent again
            if other.by != replica.process and _is_same(other.finding, finding):
                what = f"{other.finding.id}: {other.finding.summary} -> {finding.id}"
                self._breaks("heard twice", f"{what}: {finding.summary}")
        self._heard[finding.id] = _Heard(finding, replica.process, now, now)

    # -- what must be heard ----------------------------------------------------------------------

    def scrape(self) -> None:
        """Every `SCRAPE`: of all replicas."""
        self._scrape_all()
        self.check()
        world, now = self._world, self._world.kernel.now
        self._forget_closed()
        since = max(world.troubles.well_since, world.oracle.taken_at)
        for id_, one in self._heard.items():
            if now > max(since, one.last_at) + AGAIN_WITHIN:
                silent_s = (now - one.last_at) / S
                raise Violation(
                    "not heard again", f"{silent_s:.0f} s: {id_}: {one.finding.summary}"
                )
        world.kernel.after(SCRAPE, self.scrape)

    def _scrape_all(self) -> None:
        for replica in self._world.running():
            self.scraped(replica)

    def _forget_closed(self) -> None:
        """Findings that their owner has closed, or never stored before another took the cell."""
        shown = self._world.oracle.findings
        for id_ in list(self._heard):
            known = shown.get(id_)
            is_lost = known is None and id_ in self.unstored
            if is_lost or (known is not None and known.state is FindingState.CLOSED):
                self._over[id_] = self._heard.pop(id_)

    def check_noticed(self) -> None:
        """At the end: people got a message of each finding that was heard for some time."""
        for id_, one in (self._heard | self._over).items():
            has_lasted = one.last_at - one.first_at > _NOTICED_WITHIN
            if has_lasted and not any(f"{id_}-{what}" in self._noticed for what in _OPENED):
                raise Violation("no notice", f"{id_}: {one.finding.summary}")

    def open_now(self, replica: SimReplica) -> Collection[Finding]:
        """Findings that people see."""
        return [one.finding for one in self._heard.values() if self.is_owner(replica)]

    def lasting(self, finding: Finding) -> Iterator[Finding]:
        """Others that were heard later about the same."""
        for one in self._heard.values():
            if one.finding.id != finding.id and _is_same(one.finding, finding):
                yield one.finding

    def _breaks(self, promise: str, how: str) -> None:
        self._broken.append(Violation(promise, f"{self._world.kernel.now / S:.2f} s: {how}"))


def _is_same(one: Finding, other: Finding) -> bool:
    """Both are about one trouble."""
    return (one.attempt, one.kind, _about(one)) == (other.attempt, other.kind, _about(other))
