"""What a replica does about its cells while the registry does not answer it.

Other replicas may have taken them over. Its agents would not notice: their streams are well, and
acknowledge nothing. So it asks the others, as long as it is cut off, which cells they have. Only an
answer of a replica that the registry answers counts. While the registry answers none, there is no
such answer, and every replica keeps what it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from frd.cluster.lease import ClusterView, Replica
from frd.service.http.peers.client import Forwarded, NoAnswer, PeerClient
from frd.service.http.peers.questions import cells_in
from frd.service.http.peers.relay import FORWARDED
from frd.service.periodic import repeat

_EVERY_S: Final = 1.0
_TARGET: Final = b"/-/ready"
"""It needs no token, of which a replica has none to ask others with."""


@dataclass(slots=True, eq=False)
class CutOff:
    """`taken` gets each cell of `cells` that another replica has, and the address of that replica
    for agents."""

    client: PeerClient
    view: Callable[[], ClusterView]
    cells: Callable[[], Collection[int]]
    taken: Callable[[int, str], None]

    async def run(self) -> None:
        await repeat("cells that other replicas have", _EVERY_S, self.look)

    async def look(self) -> None:
        view = self.view()
        if view.connected or not self.cells():
            return
        others = [replica for replica in view.replicas if replica.name != view.me]
        sent = Forwarded("GET", _TARGET, [(FORWARDED.encode(), view.me.encode("ascii"))])
        answers = await asyncio.gather(*(self._ask(replica, sent) for replica in others))
        for replica, theirs in zip(others, answers, strict=True):
            for cell in theirs & frozenset(self.cells()):
                self.taken(cell, replica.grpc)

    async def _ask(self, replica: Replica, sent: Forwarded) -> frozenset[int]:
        try:
            answer = await self.client.ask(replica, sent)
            return cells_in(answer) if answer is not None else frozenset()
        except (NoAnswer, ValueError):
            return frozenset()  # it is asked again
