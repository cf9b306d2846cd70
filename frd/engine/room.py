"""How much all attempts of an engine hold, so that it fits into memory and no job takes it all.

A job may have as much as it leaves free: half of the room if it is the only large one, and there is
always room for another small one. This is the dynamic threshold of Choudhury and Hahne ("Dynamic
queue length thresholds for shared-memory packet switches", 1998) with the factor 1.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple
from typing import Final

from frd.errors import WireError
from frd.model import RankInfo, Signature

OBJECT_BYTES: Final = 128
"""About the memory of a pair; the other costs are as many times that (measured)."""
OF_ATTEMPT: Final = 350
OF_GROUP: Final = 4
"""Without its members, which are a pair each."""
OF_SERIES: Final = 18


def of_texts(*texts: str) -> int:
    return sum(map(len, texts)) // OBJECT_BYTES


def of_rank(info: RankInfo) -> int:
    texts = (info.node, info.boot_id, info.torch_version, *info.backends, *info.devices)
    address = astuple(info.address)[1:] if info.address is not None else ()
    return 5 + len(info.backends) + len(info.devices) + of_texts(*texts, *address)


def of_signature(signature: Signature) -> int:
    shapes = (*signature.input_sizes, *signature.output_sizes)
    texts = (*signature.input_dtypes, *signature.output_dtypes)
    objects = len(shapes) + sum(map(len, shapes)) // 3 + len(texts)
    return 5 + objects + of_texts(signature.op, *texts)


class Room:
    def __init__(self, most: int) -> None:
        """At most so many objects; 0: no limit."""
        self.most = most
        self.short: set[str] = set()
        """Jobs of which something did not fit since the last `take_short`."""
        self.held: Counter[str] = Counter()
        """By job."""
        self._total = 0

    def fits(self, job: str, objects: int) -> bool:
        free = self.most - self._total - objects
        return not self.most or self.held[job] + objects <= free

    def take(self, job: str, objects: int, field: str) -> None:
        """
        Raises:
            WireError: naming `field`, if it does not fit.
        """
        if objects > 0 and not self.fits(job, objects):
            self.short.add(job)
            why = f"job {job!r} holds {self.held[job]} objects already: raise policy.max_objects"
            raise WireError(field, "limit", why)
        self.held[job] += objects
        self._total += objects

    def take_short(self) -> list[str]:
        jobs = sorted(self.short)
        self.short.clear()
        return jobs

    def give_back(self, job: str, objects: int) -> None:
        self._total -= objects
        self.held[job] -= objects
        if not self.held[job]:
            del self.held[job]
