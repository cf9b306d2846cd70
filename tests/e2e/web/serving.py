"""The service's HTTP application over a scripted state, on a real port, in a thread's loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from starlette.types import ASGIApp

from frd.engine.attempt import Attempt
from frd.engine.policy import Policy
from frd.engine.views import AttemptView
from frd.model import (
    AlignedNs,
    AttemptKey,
    Change,
    CollectiveRef,
    Confidence,
    Finding,
    FindingEvent,
    FindingState,
    Flags,
    GroupInfo,
    Kind,
    NodeNs,
    RankInfo,
    RankState,
    RankStatus,
    Reason,
    Severity,
    Signature,
    Suspect,
    Witness,
)
from frd.service.access.grants import Tokens
from frd.service.access.refusals import Refusals
from frd.service.http.routes import WebOptions, create_app
from frd.service.http.web.session import HttpGuard
from frd.service.servers import HttpServer
from tests.world import observe
from tests.world.http_api import Service
from tests.world.views import NOW, SECOND

T = TypeVar("T")


class Serving:
    """`service` has what the answers show; a test may replace its state at any time."""

    def __init__(self, service: Service, token_file: Path | None) -> None:
        self.service = service
        tokens = Tokens(token_file) if token_file is not None else None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="serving", daemon=True)
        self._thread.start()
        app: ASGIApp = create_app(service.view, web=WebOptions(tokens))
        if tokens is not None:
            app = HttpGuard(app, tokens, Refusals())
        self._server = HttpServer(app, "127.0.0.1:0")
        self.address = self._run(self._server.start())

    def shows(
        self, findings: Sequence[Finding] | None = None, jobs: Sequence[AttemptView] | None = None
    ) -> None:
        """From now on these are the open findings and the jobs; None: as before."""
        view = self.service.state.status_view
        view = dataclasses.replace(
            view,
            findings=view.findings if findings is None else list(findings),
            attempts=view.attempts if jobs is None else list(jobs),
        )
        self.service.state = dataclasses.replace(self.service.state, status_view=view)

    def keeps(self, finding: Finding) -> None:
        """The store has this version of a finding."""
        self.service.store.save([FindingEvent(Change.UPDATED, finding)])

    def close(self) -> None:
        self._run(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.service.store.close()
        self.service.timelines.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)


@contextlib.contextmanager
def serving(
    folder: Path,
    jobs: Sequence[AttemptView] = (),
    findings: Sequence[Finding] = (),
    *,
    token_file: Path | None = None,
) -> Iterator[Serving]:
    """`findings`: the stored ones, of which some are open."""
    one = Serving(Service(folder, jobs, findings), token_file)
    try:
        yield one
    finally:
        one.close()


# -- a job that hangs ------------------------------------------------------------------------------

_AGO_S: Final = 40.0
"""How long ago a rank should have joined."""


def hung(
    job: str,
    world: int = 4,
    *,
    node: str = "node",
    group: str = "default_pg",
    op: str = "all_reduce",
) -> AttemptView:
    """What the engine shows of an attempt, the last rank of which has not joined the sixth op."""
    attempt = Attempt(AttemptKey(job, 0), world, Policy(stall_after_s=10.0), _ago(60.0))
    infos = [RankInfo(rank, world, node, "boot0", 100 + rank) for rank in range(world)]
    ranks = [attempt.rank(info) for info in infos]
    place = attempt.group(GroupInfo("0", group, tuple(range(world))))
    attempt.connection(ranks, True)
    attempt.clocks.set(ranks, 0, 40_000, _ago(60.0))
    signature = Signature("nccl", op, ((4,),), ((4,),), ("Float",), ("Float",))
    for rank in ranks:
        live = RankStatus(rank, RankState.LIVE, NodeNs(_ago(0)))
        attempt.observe_status(live, _ago(0))
        for seq in range(1, 7):
            is_last = seq == 6
            if is_last and rank == world - 1:
                continue
            created = _ago(_AGO_S - (seq - 6) * 0.2)
            observe.entries(
                attempt,
                rank,
                place,
                seq,
                signature=signature,
                created=created,
                completed=0 if is_last else created + 50_000_000,
                flags=Flags.JOINED if is_last else Flags.JOINED | Flags.COMPLETED,
                now=_ago(1.0),
            )
    observe.watermarks(attempt, [], ranks, _ago(0))
    return attempt.view(_ago(0))


def _ago(seconds: float) -> AlignedNs:
    return AlignedNs(NOW - round(seconds * SECOND))


def stall(number: int, job: str, world: int = 4) -> Finding:
    """An open finding about a `hung` job, `number` seconds before now."""
    last = world - 1
    suspect = Suspect(
        last,
        "node",
        Reason.CPU_STUCK,
        Confidence.HIGH,
        "last joined seq 5",
        ("train.py:7 in load",),
    )
    waiting = tuple(range(last))
    collective = CollectiveRef(
        "default_pg", "", world, seq=6, op="all_reduce", waiting_ranks=waiting,
        missing_ranks=(last,), waited_s=_AGO_S,
    )  # fmt: skip
    return Finding(
        id=f"{number:016x}",
        kind=Kind.STALL,
        state=FindingState.OPEN,
        job=job,
        attempt=0,
        opened_at=_ago(number),
        severity=Severity.WARNING,
        collective=collective,
        groups_held_up=("default_pg",),
        suspects=(suspect,),
        victims=waiting,
        witness=Witness(0, ("train.py:9 in step",)),
        headline=f"all_reduce #6 on default_pg has waited 40 s for rank {last} (train.py:7 load)",
        summary=f"all_reduce #6 on default_pg has waited 40 s for rank {last} (train.py:7 load)",
    )
