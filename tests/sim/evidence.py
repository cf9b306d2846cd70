"""What an expert could conclude about a fault from the messages of the agents, and by when.

- A wait that is long enough is evidence by itself.
- Lateness is evidence once chance can be ruled out; memory, once it is short or has risen for a
  while. Both need a period without gaps in the telemetry.
- A fault in a job that already hung, or had lost a rank, cannot be distinguished from the first.
- Evidence that only a recorder's entries hold is lost if the recorder is reset before it is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log
from typing import TYPE_CHECKING, Final

from frd.engine.hangs.unrecorded import threshold_of_call_ns
from frd.engine.memory.walk.levels import WINDOW_NS
from frd.engine.memory.walk.series import HIGH
from tests.sim.faults import FaultKind, Injected
from tests.sim.scenario import HIDDEN_POLICY, LEAK_WINDOW, POLICY, Trouble
from tests.world.clocks import S

if TYPE_CHECKING:
    from tests.sim.ops import Op
    from tests.sim.ranks import SimRank
    from tests.sim.world import Run, World

_LOSSES: Final = frozenset({FaultKind.CRASH, FaultKind.CRASH_RECORDED, FaultKind.OOM})
_MEMORY: Final = frozenset({FaultKind.MEMORY_SPIKE, FaultKind.LEAK, FaultKind.OOM})
_HANGS: Final = frozenset(FaultKind) - {
    *_LOSSES, *_MEMORY, FaultKind.STRAGGLER, FaultKind.NEW_GROUP, FaultKind.RECORDER_RESET,
    FaultKind.PAUSE
}  # fmt: skip
_SEEN_BY_PEERS: Final = frozenset(
    {FaultKind.DEVICE_STUCK, FaultKind.IN_COLLECTIVE_ALONE, FaultKind.ORDER, FaultKind.P2P_STUCK}
)
"""Visible only if peers come to the same op and go on, not if something else holds them."""
_CUTS: Final = frozenset({Trouble.PARTITION, Trouble.CUT_FROM_AGENTS})
_SEEN_IN_ENTRIES: Final = _SEEN_BY_PEERS | {FaultKind.MISMATCH}
_LOOKS: Final = 5 * S
"""From when a wait is long enough until telemetry has confirmed that; and until clocks are known,
once wire and machines work."""
_TOGETHER: Final = S // 20
"""Of two losses so close to each other, either may be the first."""
_WINDOW: Final = round(POLICY.straggler_window_s * S)
_STRETCH: Final = _WINDOW * 5 // 6
"""Some window contains any stretch of this length."""
_SETTLES: Final = round(POLICY.telemetry_late_s * S) + _WINDOW // 6 + 2 * _LOOKS
_NATS: Final = 25.0
"""A rank that is last so often is not last by chance."""
_WARMS_UP: Final = round(POLICY.memory_warmup_s * S) + 2 * S
_PACED: Final = 4 * S
"""A rise that lasts so long has a rate; a shorter one is a jump to another level."""
_LEAKS: Final = LEAK_WINDOW * 3 // 2
"""A rise for so long is recognized as a line."""


class Evidence:
    def __init__(self, world: World) -> None:
        self._world = world
        self._lost_rows = 0
        self._whole_since = 0
        """True time of the last lost row."""
        self._served_since = 0
        """True time of the start of this service process."""

    def restarted(self) -> None:
        self._served_since = self._world.kernel.now

    def look(self) -> None:
        """Sum up the rows that agents count as lost."""
        lost = 0
        for node in self._world.nodes:
            for agent in node.sessions:
                lost += sum(agent.outbox.dropped.values())
                lost += sum(watched.lost for watched in agent.watched.values())
        if lost != self._lost_rows:
            self._lost_rows, self._whole_since = lost, self._world.kernel.now

    def known_by(self, injected: Injected) -> int:
        """True time from which the fault can be known, if at all."""
        began = injected.began or 0
        match injected.fault.kind:
            case FaultKind.STRAGGLER:
                return self._clear_since(began) + _WINDOW + _SETTLES
            case FaultKind.LEAK:
                return began + _LEAKS + 2 * _LOOKS
            case FaultKind.STANDSTILL:
                plan = self._world.scenario.plan
                rests_ns = 10 * (plan.checkpoint_ns + 2 * plan.step_ns)
                lasts_ns = max(rests_ns, round(HIDDEN_POLICY.standstill_after_s * S))
                return self._clear_since(began) + lasts_ns + 2 * _LOOKS
            case _:
                return began

    def is_enough(self, injected: Injected, run: Run) -> bool:
        """True if the fault can be known, from `known_by` on at the latest."""
        if not run.job.is_felt(injected):
            return False
        assert injected.began is not None
        match injected.fault.kind:
            case FaultKind.STRAGGLER if run.job.plan.hooks == "issue":
                return False  # an op before may still have run
            case FaultKind.STRAGGLER:
                is_due = self._world.kernel.now >= self.known_by(injected)
                return not is_due or _beyond_chance(injected, self._clear_since(injected.began))
            case FaultKind.MEMORY_SPIKE | FaultKind.LEAK:
                is_first = not _is_linked(injected, run)
                return is_first and self._saw(injected, run) and _is_rise(injected, run)
            case FaultKind.OOM:
                return self._is_reported(injected, run) and not _is_linked(injected, run)
            case FaultKind.CALL:
                return self._is_seen_in_call(injected, run)
            case FaultKind.POLL_ALL | FaultKind.DEVICE_WAIT | FaultKind.NEW_GROUP_CIRCLE:
                return self._is_shown(injected, run)
            case FaultKind.STANDSTILL:  # another fault may have been a longer rest before
                is_only = [one for one in run.job.injected if one.began] == [injected]
                return is_only and self._is_shown(injected, run)
            case kind if kind in _HANGS and run.job.plan.hooks == "issue":
                return False  # nothing shows that a rank waits, so it may be at work
            case _:
                is_loss = injected.fault.kind in _LOSSES
                hidden = _is_eclipsed(injected, run) or _is_erased(injected, run)
                return not hidden and (is_loss or _shows_a_wait(injected, run))

    def _clear_since(self, began: int) -> int:
        """Since then every row has arrived: it has begun, and machines and wire work."""
        well = max(self._served_since, self._world.troubles.well_since)
        return max(began, self._whole_since, well) + _LOOKS

    def _is_seen_in_call(self, injected: Injected, run: Run) -> bool:
        """Stacks prove that all other ranks wait in the call, for too long, and the culprit is
        outside; nothing else is wrong."""
        service, now = self._world.service, self._world.kernel.now
        attempt = service.engine.known(run.key) if service is not None else None
        still = [one for one in run.job.injected if one.began is not None and one.healed is None]
        if service is None or attempt is None or still != [injected]:
            return False
        groups, learned = attempt.tables.groups, attempt.call_thresholds_ns(service.now())
        highest_ns = int(groups.threshold_ns[: groups.count].max())
        proofs = self._world.oracle.waits.proofs
        for process in run.processes:
            seen = proofs.of(process.info.pid)
            if seen is None or now < seen.at + _LOOKS or process.rank.head is not None:
                return False
            if process.rank.rank in injected.culprits:
                if seen.call:
                    return False
                continue
            least_ns = threshold_of_call_ns(seen.call, service.policy, highest_ns, learned)
            if not seen.call or proofs.lasted_ns(process.info.pid) < least_ns:
                return False
        return True

    def _is_shown(self, injected: Injected, run: Run) -> bool:
        """Agents have shown for long enough where all ranks are; nothing else is wrong."""
        service, nodes = self._world.service, {rank.node for rank in run.job.ranks}
        attempt = service.engine.known(run.key) if service is not None else None
        still = [one for one in run.job.injected if one.began is not None and one.healed is None]
        if attempt is None or still != [injected] or injected.began is None:
            return False
        for agent in (self._world.nodes[node].agent for node in nodes):
            if agent is None or not agent.is_welcome or agent.mood != "good":
                return False
        groups = attempt.tables.groups
        highest_ns = int(groups.threshold_ns[: groups.count].max())
        since = self._clear_since(injected.began)
        return self._world.kernel.now >= since + highest_ns + 2 * _LOOKS

    def _is_reported(self, injected: Injected, run: Run) -> bool:
        """An agent was running when an allocation failed."""
        (number,) = injected.fault.ranks
        agent = self._world.nodes[run.job.ranks[number].node].agent
        return agent is not None and not agent.samples.dropped and agent.born < injected.at

    def _saw(self, injected: Injected, run: Run) -> bool:
        """Agent and service had seen the rank's usual memory before it began to rise, and watched
        until the rise was over: telemetry that arrives long after that does not count."""
        (number,) = injected.fault.ranks
        rank = run.job.ranks[number]
        agent = self._world.nodes[rank.node].agent
        if agent is None or agent.samples.dropped:
            return False
        since = max(agent.born, self._served_since, run.began)
        over = injected.at + injected.lasts_ns
        heard_late = any(
            event.trouble in _CUTS and event.at < over < event.until
            for event in self._world.scenario.events
        )
        return rank.alive and injected.at >= since + _WARMS_UP and not heard_late


def _beyond_chance(injected: Injected, since: int) -> bool:
    """By chance, one of so many ranks is not the last so often (Chernoff's bound)."""
    for group in {group for group, _ in injected.kept_waiting}:
        mine, others = (
            [at for of, at in waits if of is group and at >= since]
            for waits in (injected.kept_waiting, injected.rivals)
        )
        for at in mine:
            inside = [other for other in mine if at <= other < at + _STRETCH]
            rivals = sum(at <= other < at + _STRETCH for other in others)
            lasts = inside[-1] - at >= _STRETCH * 4 // 5
            if lasts and _nats(len(inside), rivals, 1 / len(group.ranks)) >= _NATS:
                return True
    return False


def _nats(mine: int, others: int, chance: float) -> float:
    share = mine / (mine + others)
    if share <= chance:
        return 0.0
    rest = (1 - share) * log((1 - share) / (1 - chance)) if others else 0.0
    return (mine + others) * (share * log(share / chance) + rest)


def _is_rise(injected: Injected, run: Run) -> bool:
    """Memory gets short, or rises for long enough."""
    (number,) = injected.fault.ranks
    memory = run.job.ranks[number].memory()
    needed = _LEAKS if injected.fault.kind is FaultKind.LEAK else _PACED
    is_short = memory.used >= HIGH * memory.total
    return injected.lasts_ns >= needed or is_short


def _is_linked(injected: Injected, run: Run) -> bool:
    """Another rank's memory began to rise shortly before, so that both are one incident."""
    assert injected.began is not None
    link = WINDOW_NS + _LOOKS
    return any(
        other.fault.kind in _MEMORY
        and other.began is not None
        and other.began <= injected.began <= other.began + link
        for other in run.job.injected
        if other is not injected
    )


def _is_eclipsed(injected: Injected, run: Run) -> bool:
    """True if another fault took a rank away before this hang could be seen, so that all ranks wait
    for that rank; or if its peers hang in another op."""
    assert injected.began is not None
    is_loss = injected.fault.kind in _LOSSES
    hangs_ns = round(POLICY.stall_after_s * S) + _LOOKS
    known_at = injected.began + (_TOGETHER if is_loss else hangs_ns)
    hides = _LOSSES | _HANGS if injected.fault.kind in _SEEN_BY_PEERS else _LOSSES
    of = {group.name for rank in injected.culprits for group in run.job.ranks[rank].groups}
    return any(
        (other.fault.kind in hides or (is_loss and _disagree(other) and other.group in of))
        and other.began is not None
        and other.began < known_at
        for other in run.job.injected
        if other is not injected
    )


def _disagree(injected: Injected) -> bool:
    """Ranks disagree: one of their group that exits later is taken for one that left because of
    it."""
    return injected.fault.kind in (FaultKind.MISMATCH, FaultKind.ORDER) and injected.healed is None


def _shows_a_wait(injected: Injected, run: Run) -> bool:
    """The recorder of a rank that answers shows that it waits because of the fault.

    Gloo's recorder has no sends and receives, nccl2's no batches of them. With several hangs in
    such a job, a wait counts only if it is in a collective of a culprit: any other may be due to
    another hang.
    """
    if not run.job.plan.hides_p2p:
        return True
    collectives = collectives_waited_in(rank for rank in run.job.ranks if not rank.stopped)
    hangs = [
        other for other in run.job.injected if other.fault.kind in _HANGS and other.healed is None
    ]
    if len(hangs) < 2 or not injected.culprits:
        return bool(collectives)
    return any(injected.culprits & set(op.group.ranks) for op in collectives)


def collectives_waited_in(ranks: Iterable[SimRank]) -> list[Op]:
    """As the recorders show them."""
    return [record.op for rank in ranks for record in rank.queue if record.op.dst < 0]


def _is_erased(injected: Injected, run: Run) -> bool:
    """Recorders were reset at about the time it began."""
    assert injected.began is not None
    return injected.fault.kind in _SEEN_IN_ENTRIES and any(
        other.fault.kind is FaultKind.RECORDER_RESET
        and other.began is not None
        and abs(other.began - injected.began) < _LOOKS
        for other in run.job.injected
    )
