"""A training job of scripted ranks that knows the truth about itself.

Its ranks step together in a thread of this process: all of them enter a collective, and leave it
when the last one has entered. A rank that is held does not enter. An account of a run compares the
journal with what each rank has recorded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

from tests.world.apart import ApartRank

RING: Final = 150
"""Entries that a recorder keeps: 3 s of the usual rate, so that agents look every 2 s."""
_PUBLISH_EVERY_S: Final = 0.5


class Training:
    """The ranks of `run_dirs` in turn, `each` in every one, at up to `rate` steps a second.

    They rest until `go_on`: entries that a recorder drops before its agent first reads it would not
    balance.
    """

    def __init__(
        self,
        run_dirs: Sequence[Path],
        *,
        each: int = 2,
        rate: float = 50.0,
        job: str = "training",
        ring: int = RING,
    ) -> None:
        world = each * len(run_dirs)
        self.job = job
        self.ranks = [
            ApartRank(run_dirs[number // each], number, world, job=job, ring=ring)
            for number in range(world)
        ]
        self.began_at: list[float] = []
        """When the collectives 1 and so on began, on the wall clock."""
        self._every_s = 1 / rate
        self._held: set[int] = set()
        self._resting = True
        self._inside: set[int] = set()
        """Ranks that have entered the present collective."""
        self._turn = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="training", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        with ThreadPoolExecutor(len(self.ranks)) as closing:
            list(closing.map(ApartRank.close, self.ranks))

    def hold(self, rank: int) -> int:
        """From now on `rank` enters nothing; returns the seq that it will be missing in."""
        with self._turn:
            self._held.add(rank)
            return self.ranks[rank].seq + 1

    def release(self, rank: int) -> None:
        with self._turn:
            self._held.discard(rank)

    def rest(self) -> None:
        """No rank takes another step; ranks that have not been held are in no collective."""
        with self._turn:
            self._resting = True

    def go_on(self) -> None:
        with self._turn:
            self._resting = False

    @property
    def steps(self) -> int:
        """Steps that all ranks have completed."""
        return min(rank.completed for rank in self.ranks)

    @property
    def joined(self) -> Mapping[int, int]:
        """Collectives that each rank has recorded as joined: 1 to this."""
        return {number: rank.seq for number, rank in enumerate(self.ranks)}

    @property
    def completed(self) -> Mapping[int, int]:
        return {number: rank.completed for number, rank in enumerate(self.ranks)}

    def _run(self) -> None:
        turns = 0
        publish_every = max(round(_PUBLISH_EVERY_S / self._every_s), 1)
        while not self._stop.wait(self._every_s):
            with self._turn:
                if not self._resting:
                    self._step()
            turns += 1
            if turns % publish_every == 0:
                for rank in self.ranks:
                    rank.publish()

    def _step(self) -> None:
        if not self._inside:
            self.began_at.append(time.time())
        for number, rank in enumerate(self.ranks):
            if number not in self._inside and number not in self._held:
                rank.enter()
                self._inside.add(number)
        if len(self._inside) == len(self.ranks):
            for rank in self.ranks:
                rank.leave()
            self._inside.clear()
