"""Which cells a replica should claim, has lost, and should hand over: decided from heartbeats.

A replica is dead when its heartbeat has not changed during `SILENT` heartbeats of *this* replica
that the registry has acknowledged. No clock is involved: when the registry is down, no heartbeat of
any replica is acknowledged, and no owner is taken for dead. A wrong decision costs a takeover, but
no data, because the claim excludes the former owner.

This module does no I/O, reads no clock and rolls no dice. It never robs a living owner: cells move
to their preferred replica one at a time, when their owner drains them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from frd.cluster.cells import CELLS, preferred

SILENT: Final = 6
"""A replica is dead after so many own heartbeats without a change of its heartbeat."""
LATE: Final = 2
"""A replica may be dead after so many: agents are no longer sent to it."""
LATER: Final = 2
"""Replicas that are not preferred wait for so many more heartbeats before they claim a cell."""
QUIET: Final = 20
"""Heartbeats without any change before a cell is drained, and between two: 10 s."""
FORGOTTEN: Final = 172_800
"""The key of a replica that died or left is deleted after so many heartbeats: 24 h."""
_AVOID: Final = 10
"""A cell that this replica has given up is not claimed again for so many heartbeats."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The last heartbeat of a replica, as the registry holds it."""

    generation: int
    """Rises with each process of the replica's name."""
    revision: int
    """Of the key: another one with each heartbeat."""
    claims: Mapping[int, int] = field(default_factory=dict)
    """Its cells, each with the revision of the claim; the highest revision is the owner's."""
    leaving: bool = False
    """It claims nothing more. Without cells, it has left."""


class Claim(NamedTuple):
    """Who has claimed a cell, as its key in the registry says."""

    owner: str
    """Empty: the owner has released it."""
    generation: int
    revision: int


class Decision(NamedTuple):
    claim: Sequence[int]
    """Cells without an owner that this replica should claim now."""
    lost: Sequence[int]
    """Cells that another replica has claimed since."""
    drain: tuple[int, str] | None
    """A cell to hand over, and its successor."""
    forget: tuple[str, int] | None
    """A replica that is gone for good: delete its heartbeat if it has this revision still."""


@dataclass(slots=True)
class _Seen:
    heartbeat: Heartbeat
    silent: int = 0


class Ownership:
    """One replica's view of who owns what."""

    def __init__(self, me: str) -> None:
        self._me = me
        self.mine: dict[int, int] = {}
        """Cells that this replica owns, each with the revision of the claim."""
        self.leaving = False
        """This replica claims nothing more."""
        self._others: dict[str, _Seen] = {}
        self._beats = 0
        self._free: dict[int, int] = {}
        """Cells without an owner: during how many heartbeats."""
        self._avoid: dict[int, int] = {}
        """Cells not to claim before a heartbeat."""
        self._held: dict[int, tuple[int, int]] = {}
        """Claims that their living owners do not report: revision, and the heartbeat from which on
        they are not respected."""
        self._quiet_since = 0
        self._last_living: Sequence[str] = ()

    # -- what is known ---------------------------------------------------------------------------

    @property
    def living(self) -> Sequence[str]:
        """Replicas that have neither died nor left, this one included, sorted."""
        names = [name for name, seen in self._others.items() if _lives(seen)]
        return sorted([*names, self._me])

    @property
    def late(self) -> frozenset[str]:
        """Replicas whose last heartbeats are missing."""
        return frozenset(name for name, seen in self._others.items() if seen.silent >= LATE)

    def owners(self) -> dict[int, str]:
        """The living owner of each cell that has one."""
        best: dict[int, tuple[int, str]] = {
            cell: (revision, self._me) for cell, revision in self.mine.items()
        }
        for name, seen in self._others.items():
            if _lives(seen):
                for cell, revision in seen.heartbeat.claims.items():
                    best[cell] = max(best.get(cell, (0, "")), (revision, name))
        return {cell: name for cell, (_, name) in best.items()}

    # -- what happens ----------------------------------------------------------------------------

    def beat(self, heartbeats: Mapping[str, Heartbeat], ready: Collection[int]) -> Decision:
        """A heartbeat of this replica was acknowledged, and these were read after that. `ready` are
        the cells whose takeover is complete."""
        self._beats += 1
        self._observe(heartbeats)
        lost = [cell for cell, revision in self.mine.items() if self._newer(cell, revision)]
        for cell in lost:
            del self.mine[cell]
        owners = self.owners()
        # At first it is not known which replicas live, so waiting begins after that.
        waited = self._free if self._beats > SILENT else {}
        self._free = {cell: waited.get(cell, -1) + 1 for cell in range(CELLS) if cell not in owners}
        if self._free or lost or self._last_living != self.living:
            self._last_living = self.living
            self._quiet_since = self._beats
        return Decision(self._to_claim(), lost, self._to_drain(ready), self._to_forget())

    def may_claim(self, cell: int, claim: Claim | None) -> bool:
        """Whether to overwrite this claim of a cell that no living replica reports as its own.

        A living replica that has just claimed the cell reports it with its next heartbeat; it
        has `SILENT` heartbeats time.
        """
        if claim is None or not claim.owner or claim.owner == self._me:
            return True
        seen = self._others.get(claim.owner)
        if seen is None or not _lives(seen) or seen.heartbeat.generation != claim.generation:
            return True
        revision, until = self._held.get(cell, (0, 0))
        if revision != claim.revision:
            self._held[cell] = (claim.revision, self._beats + SILENT)
            return False
        return self._beats >= until

    def rivals(self, cell: int, former: Claim | None) -> Sequence[str]:
        """Other replicas that may take a cell without a living owner for theirs."""
        said = [name for name, seen in self._others.items() if cell in seen.heartbeat.claims]
        return sorted({*said, former.owner if former else ""} - {"", self._me})

    def claimed(self, cell: int, revision: int) -> None:
        """The claim of this replica has this revision."""
        self.mine[cell] = revision
        self._held.pop(cell, None)
        self._free.pop(cell, None)

    def dropped(self, cell: int) -> None:
        """The cell is no longer of this replica, which leaves it to others for a while."""
        self.mine.pop(cell, None)
        self._avoid[cell] = self._beats + _AVOID

    # -- decisions -------------------------------------------------------------------------------

    def _observe(self, heartbeats: Mapping[str, Heartbeat]) -> None:
        for name in self._others.keys() - heartbeats.keys():
            # One reading without it proves nothing.
            self._others[name].silent += 1
            if not _lives(self._others[name]):
                del self._others[name]
        for name, heartbeat in heartbeats.items():
            if name == self._me:
                continue
            seen = self._others.get(name)
            if seen is None or seen.heartbeat.revision != heartbeat.revision:
                self._others[name] = _Seen(heartbeat)
            else:
                seen.silent += 1

    def _newer(self, cell: int, revision: int) -> bool:
        """Some replica has claimed the cell after this one, whether it lives or not."""
        return any(seen.heartbeat.claims.get(cell, 0) > revision for seen in self._others.values())

    def _candidates(self) -> Sequence[str]:
        return [
            name
            for name in self.living
            if name == self._me or not self._others[name].heartbeat.leaving
        ]

    def _to_claim(self) -> Sequence[int]:
        if self.leaving or self._beats < SILENT:
            return ()
        candidates = self._candidates()
        return [
            cell
            for cell, since in self._free.items()
            if (since >= LATER or preferred(cell, candidates) == self._me)
            and self._avoid.get(cell, 0) <= self._beats
        ]

    def _to_drain(self, ready: Collection[int]) -> tuple[int, str] | None:
        if self.leaving or self._beats - self._quiet_since < QUIET:
            return None
        candidates, busy = self._candidates(), {self._me, *self.late}
        for cell in sorted(self.mine.keys() & ready):
            if (successor := preferred(cell, candidates)) not in busy:
                self._quiet_since = self._beats
                return cell, successor
        return None

    def _to_forget(self) -> tuple[str, int] | None:
        """One at a time, by the first of the living replicas: every key costs every replica a read
        with each heartbeat."""
        if self._me != self.living[0]:
            return None
        gone = (name for name, seen in self._others.items() if seen.silent >= FORGOTTEN)
        name = min(gone, default=None)
        return None if name is None else (name, self._others[name].heartbeat.revision)


def _lives(seen: _Seen) -> bool:
    left = seen.heartbeat.leaving and not seen.heartbeat.claims
    return seen.silent < SILENT and not left
