"""Faults in which ranks wait in what no recorder shows, and a long pause, which is no fault.

Each begins when its ranks begin a step that no rank has reached yet: then their devices have
nothing to do, and every rank can come to the point.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from tests.sim import places
from tests.sim.faults import ALL_BUT_ONE, FaultKind, Injected, befall
from tests.sim.ops import MS, S
from tests.sim.places import Place

if TYPE_CHECKING:
    from tests.sim.job import Job
    from tests.sim.ranks import SimRank


class Unrecorded:
    """The faults of this kind of one job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._dice: dict[Injected, random.Random] = {}
        self._caught: dict[Injected, list[SimRank]] = {}
        self._calls: dict[Injected, Place] = {}
        """Where the ranks wait for the one that does not come."""

    # -- begin ---------------------------------------------------------------------------------

    def inject(self, injected: Injected) -> None:
        job, kind = self._job, injected.fault.kind
        injected.step = max(rank.step for rank in job.ranks) + 1
        # What is drawn otherwise must not depend on these faults.
        dice = random.Random(f"unrecorded/{injected.at}/{kind}/{job.plan.step_ns}")
        self._dice[injected], self._caught[injected] = dice, []
        ranks = [job.ranks[number] for number in injected.fault.ranks]
        if kind is FaultKind.PAUSE:
            injected.lasts_ns = dice.randrange(20 * S, 90 * S)
            for rank in ranks:
                rank.drags.append(injected)
            return
        match kind:
            case FaultKind.CALL:
                self._calls[injected] = places.in_call(dice.choice(places.CALLS))
            case FaultKind.POLL_ALL:
                self._calls[injected] = places.polling()
            case FaultKind.DEVICE_WAIT:
                self._calls[injected] = places.synchronizing()
            case FaultKind.NEW_GROUP_CIRCLE:
                injected.culprits = frozenset(injected.fault.ranks)
                injected.may_name = frozenset(range(job.plan.world)) - injected.culprits
        for rank in ranks:
            rank.traps.append(injected)

    def is_due(self, rank: SimRank, injected: Injected) -> bool:
        """The program of the rank comes to the point now."""
        return rank.at == 0 and rank.step >= injected.step

    def catch(self, rank: SimRank, injected: Injected) -> None:
        """Its program waits from now on."""
        caught = self._caught[injected]
        place = self._place(rank, injected, caught)
        caught.append(rank)
        if injected.began is None and rank.rank in (injected.culprits or injected.fault.ranks):
            befall(injected, rank, self._job.now)
        injected.may_name |= frozenset(one.rank for one in caught) - injected.culprits
        injected.undo = partial(self._let_go, injected)
        self._job.hold(rank, place)

    def _place(self, rank: SimRank, injected: Injected, caught: list[SimRank]) -> Place:
        dice = self._dice[injected]
        match injected.fault.kind:
            case FaultKind.LOCK | FaultKind.FILELOCK if not caught:  # the first one has it
                injected.culprits = frozenset({rank.rank})
                rank.lets_go = partial(self._died, injected)
                return places.locked("/data/index.lock")
            case FaultKind.LOCK:
                return places.locked("/data/index.lock", caught[0])
            case FaultKind.FILELOCK:
                return places.polling_lock("/data/index.lock", caught[0])
            case FaultKind.RECV_CIRCLE:
                injected.culprits = frozenset(injected.fault.ranks)
                return places.in_message(sends=False)
            case FaultKind.NEW_GROUP_CIRCLE:
                return places.in_call("new_group")
            case kind if kind in ALL_BUT_ONE:
                injected.culprits = frozenset(injected.fault.ranks[:1])
                is_late = rank.rank in injected.culprits
                return places.reading(dice) if is_late else self._calls[injected]
            case FaultKind.SERVING:
                return places.serving(dice)
            case _:
                return places.reading(dice)

    def late_ns(self, rank: SimRank, injected: Injected) -> int:
        """By how much the pause makes the step of a rank late."""
        if injected.healed is not None or rank.step < injected.step:
            return 0
        rank.drags.remove(injected)
        dice = self._dice[injected]
        injected.began = injected.began or self._job.now
        # The ranks began the step at other times; they end the pause together, nearly.
        left = injected.began + injected.lasts_ns - self._job.now
        rank.place = places.saving() if injected.lasts_ns % 2 else places.computing()
        return max(left, 0) + dice.randrange(300 * MS)

    # -- ends ----------------------------------------------------------------------------------

    def _let_go(self, injected: Injected) -> None:
        for number, rank in enumerate(self._caught[injected]):
            rank.traps = [one for one in rank.traps if one is not injected]
            if rank.alive:
                self._job.after(number * 5 * MS, self._job.release, rank)
        self._caught[injected] = []
        for number in injected.fault.ranks:
            rank = self._job.ranks[number]
            rank.traps = [one for one in rank.traps if one is not injected]

    def _died(self, injected: Injected) -> None:
        """The kernel gives the lock of a process that has ended to the next one."""
        if injected.healed is None:
            self._let_go(injected)

    def is_felt(self, injected: Injected) -> bool:
        """A rank waits with the culprits, apart from those that wait in ops."""
        return any(
            rank.alive
            for rank in self._caught.get(injected, ())
            if rank.rank not in injected.culprits
        )
