"""How a simulated job ends, and what an expert would conclude about each end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from tests.sim.faults import Fault, FaultKind
from tests.world.clocks import S

if TYPE_CHECKING:
    from tests.sim.ranks import SimRank
    from tests.sim.world import World

Words: TypeAlias = tuple[str, str] | None
"""Kind and text of the exit record that a process leaves, if any."""


class EndKind(StrEnum):
    INTERRUPT = "interrupt"
    """Ctrl-C reaches all ranks; the launcher kills those that do not leave."""
    CANCEL = "cancel"
    """SIGTERM of all ranks and agents, as by scancel."""
    PREEMPTION = "preemption"
    """SIGTERM of all ranks, and SIGKILL of those that still run after a grace."""
    KILLED = "killed"
    RAISES = "raises"
    """An exception of the rank's own."""
    SLOW = "slow"
    """The same, and the interpreter takes long to leave."""
    STATUS = "status"
    """sys.exit(1)"""
    OS_EXIT = "os_exit"
    RETURNS = "returns"
    """Cleanly, while the others go on."""
    RESTART = "restart"
    """An exception, and the launcher starts the job again."""
    ABORT = "abort"
    """A rank passes another size, and the library aborts its peers in the collective."""


ASKED: Final = frozenset({EndKind.INTERRUPT, EndKind.CANCEL, EndKind.PREEMPTION})
"""A person or the scheduler wants the end: there is nothing to find."""
_BLAMES: Final = (
    "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.7]:40123",
    "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0",
)
_OWN: Final = {
    EndKind.KILLED: (None, int(signal.SIGKILL)),
    EndKind.STATUS: (("clean", ""), 1 << 8),
    EndKind.OS_EXIT: (None, 3 << 8),
    EndKind.RETURNS: (("clean", ""), 0),
}
"""What the rank that fails leaves; others raise an exception."""
LASTS: Final = 45 * S
"""How long an end takes, until everything that can be known of it is known."""
_RAISED: Final = (("exception", "ValueError: a sample has no label"), 1 << 8)
_INTERRUPTED: Final = (("exception", "KeyboardInterrupt"), 1 << 8)


@dataclass(slots=True)
class End:
    kind: EndKind
    began: int
    """True time."""
    attempt: int
    known: frozenset[str]
    """The findings of before, by id."""
    culprit: int | None = None
    """The rank that fails; None if none does."""


def begin(world: World) -> End:
    """The present job of a world begins to end, in a way that its seed decides."""
    dice, run = world.dice("end"), world.runs[-1]
    job, ranks = run.job, list(run.job.ranks)
    end = End(
        dice.choice(tuple(EndKind)),
        world.kernel.now,
        run.key.attempt,
        frozenset(world.oracle.findings),
    )

    def later(rank: SimRank, seconds: float, words: Words, status: int, lingers: float = 0) -> None:
        """The rank leaves; what it leaves is written at first."""
        job.after(round(seconds * S), partial(job.leave, words=words), rank)
        job.after(round((seconds + lingers) * S) + 1, partial(job.gone, status=status), rank)

    def stop(seconds: float, grace: float) -> None:
        """SIGTERM to all ranks, by the launchers of several nodes; SIGKILL after a grace."""
        for rank in ranks:
            ignores = dice.random() < 0.1
            status = signal.SIGKILL if ignores else signal.SIGTERM
            after = grace if ignores else dice.uniform(0, 1)
            later(rank, seconds + after, None, int(status))

    match end.kind:
        case EndKind.INTERRUPT:
            for rank in ranks:
                is_deaf = dice.random() < 0.2 and rank is not ranks[0]
                words, status = (None, int(signal.SIGKILL)) if is_deaf else _INTERRUPTED
                lingers = 0.0 if is_deaf else dice.uniform(0, 3)
                later(rank, 5 if is_deaf else dice.uniform(0, 0.3), words, status, lingers)
        case EndKind.CANCEL:
            stop(0, 30)
            for number in range(len(world.nodes)):
                world.kernel.after(dice.randrange(S), partial(world.stop_agent, number))
        case EndKind.PREEMPTION:
            stop(0, dice.choice((5, 10, 30)))
        case EndKind.ABORT:
            _abort(world, end, dice.choice(ranks), later, stop)
        case _:
            first = dice.choice(ranks)
            end.culprit = first.rank
            words, status = _OWN.get(end.kind, _RAISED)
            lingers = dice.uniform(3, 12) if end.kind is EndKind.SLOW else 0.0
            later(first, 0, words, status, lingers)
            for rank in ranks:
                if rank is not first and dice.random() < 0.3:
                    blames = ("exception", dice.choice(_BLAMES))
                    later(rank, lingers + dice.uniform(0.02, 1.5), blames, 1 << 8)
            is_restarted = end.kind is EndKind.RESTART
            if end.kind is not EndKind.RETURNS:  # no launcher stops the others for that
                stop(lingers + dice.uniform(0.1, 5), 3 if is_restarted else 30)
            if is_restarted:
                world.kernel.after(12 * S, world.start_job)
    return end


def _abort(
    world: World,
    end: End,
    culprit: SimRank,
    later: Callable[[SimRank, float, Words, int], None],
    stop: Callable[[float, float], None],
) -> None:
    """The culprit passes another size; those in the collective are aborted."""
    dice, job = world.dice("abort"), world.runs[end.attempt].job
    job.inject(Fault(FaultKind.MISMATCH, (culprit.rank,)))
    injected = job.injected[-1]

    def abort(culprit: SimRank) -> None:
        if injected.began and job.now >= injected.began + 2 * S:  # it has begun everywhere
            for rank in job.ranks:
                is_in = rank.head is not None and rank.head.op.group.name == injected.group
                if is_in and (rank is not culprit or dice.random() < 0.5):
                    later(rank, dice.uniform(0.01, 0.3), None, int(signal.SIGABRT))
            stop(dice.uniform(0.4, 3), 30)
        elif job.now < end.began + LASTS - 15 * S:
            job.after(S // 2, abort, culprit)

    abort(culprit)
