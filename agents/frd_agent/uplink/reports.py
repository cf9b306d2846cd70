"""Where the ranks of one job put what they have to report.

The job's stream (`frd_agent.uplink.uplinks`) takes it from here. Two jobs of a node may belong to
two processes of the service, so they share no queue: a service that is slow for one of them delays
and drops nothing of the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from frd_agent.memory.samples import Samples
from frd_agent.uplink.current_state import CurrentState
from frd_agent.uplink.outbox import Outbox


@dataclass(frozen=True, slots=True, eq=False)
class Reports:
    job: str
    outbox: Outbox
    current: CurrentState
    samples: Samples
    wake: Callable[[], None]
    """Called when there is something to send to the service."""
    is_connected: Callable[[], bool]
    """The stream is up."""

    def forget(self, rank: int) -> None:
        self.current.forget(rank)
        self.outbox.forget(rank)
