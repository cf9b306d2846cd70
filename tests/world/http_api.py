"""The HTTP API over a fixed state and real stores, and a client that speaks ASGI to it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from frd.engine.views import AttemptView, StatusView
from frd.errors import ServiceUnavailable
from frd.model import (
    AlignedNs,
    AttemptKey,
    Change,
    Confidence,
    Finding,
    FindingEvent,
    FindingState,
    Kind,
    RankState,
    Reason,
    Suspect,
)
from frd.service.findings.people import LocalKeys, Mark, People, Silences
from frd.service.http.routes import WebOptions, create_app
from frd.service.http.web.session import HttpGuard
from frd.service.journal.payloads import Dismissal
from frd.service.state import DumpResult, ServiceState
from frd.service.timelines.timelines import Timelines
from frd.service.view import ServiceView
from frd.store.dumps import DumpStore
from frd.store.findings import FindingStore
from frd.store.timelines import TimelineStore
from frd.wire.messages import Part
from tests.world.views import NOW, SECOND, attempt_view, group_view, node_view, rank_view


def job_view(job: str, attempt: int = 0, world_size: int = 2) -> AttemptView:
    ranks = [
        rank_view(
            rank,
            RankState.LIVE if rank else RankState.SILENT,
            world=world_size,
            per_node=world_size,
            detail="T",
            as_of=NOW - rank * SECOND if rank else 0,
            waiting_in="all_reduce #7 on default_pg" if rank else "",
            waiting_s=12.5 if rank else 0.0,
        )
        for rank in range(world_size)
    ]
    group = group_view(
        group_id="00aa", size=world_size, open_collectives=1, stall_s=12.5, matched=6, enqueued=7,
        completed=6, threshold_s=0.0,
    )  # fmt: skip
    return attempt_view(ranks, key=AttemptKey(job, attempt), groups=[group])


def finding(number: int, job: str = "train") -> Finding:
    suspect = Suspect(0, "node0", Reason.CPU_STUCK, Confidence.HIGH, "evidence", ("a.py:1",))
    return Finding(
        id=f"{number:016x}",
        kind=Kind.STALL,
        state=FindingState.OPEN,
        job=job,
        attempt=0,
        opened_at=AlignedNs(NOW + number * SECOND),
        suspects=(suspect,),
        victims=(1,),
        summary="summary",
    )


def closed(one: Finding) -> Finding:
    return dataclasses.replace(
        one, state=FindingState.CLOSED, closed_at=AlignedNs(NOW + 9 * SECOND)
    )


_OPEN = WebOptions()


class Service:
    """A service over real stores, with a fixed state and agents that answer from a script."""

    def __init__(
        self, folder: Path, jobs: Sequence[AttemptView], findings: Sequence[Finding] | None = None
    ) -> None:
        """`findings`: the stored ones; by default two that are open, and a closed one."""
        self.store = FindingStore(folder / "findings.sqlite")
        self.dumps = DumpStore(folder / "dumps", max_count=5, max_bytes=1_000_000)
        if findings is None:
            findings = [finding(1), finding(2), closed(finding(3))]
        self.store.save([FindingEvent(Change.OPENED, item) for item in findings])
        findings = [one for one in findings if one.state is FindingState.OPEN]
        ranks = {view.key: (0, 1) for view in jobs}
        node = node_view("node0", ranks, heard_s=0.5, behind_ns=1_000_000, boot="boot0")
        self.state = ServiceState(StatusView(NOW, jobs, findings), [node], evaluated_at=NOW)
        self.now = NOW
        self.asked: list[tuple[AttemptKey, Sequence[int] | None, bool, float]] = []
        self.timelines = TimelineStore(folder / "timelines.sqlite")
        timelines = Timelines(self.timelines, lambda: self.state, lambda: self.now)
        self.silences = Silences(LocalKeys(self.store))
        self._people = People(self.silences)
        of_stores = self.store, self.dumps
        self.view = ServiceView(self, *of_stores, lambda: self.now, timelines, self.silences)

    def close(self) -> None:
        self.store.close()
        self.timelines.close()

    def is_sure(self) -> bool:
        return self.state.cluster is None or self.state.cluster.sure

    def kept_back(self) -> list[Finding]:
        return []

    async def dismiss(self, dismissal: Dismissal) -> Finding | None:
        found = self.store.get(dismissal.finding)
        if found is None or found.state is FindingState.CLOSED:
            return None
        closed = dataclasses.replace(
            found, state=FindingState.CLOSED, closed_at=NOW, close_reason=dismissal.close_reason
        )
        self.store.save([FindingEvent(Change.CLOSED, closed)])
        still_open = [one for one in self.state.open_findings() if one.id != closed.id]
        status_view = dataclasses.replace(self.state.status_view, findings=still_open)
        self.state = dataclasses.replace(self.state, status_view=status_view)
        return closed

    async def mark(self, finding: Finding, mark: Mark) -> Finding:
        self._people.change(finding, mark)
        marked = self._people.said(finding, self.now)
        self.store.save([FindingEvent(Change.UPDATED, marked)])
        found = [marked if one.id == marked.id else one for one in self.state.open_findings()]
        status_view = dataclasses.replace(self.state.status_view, findings=found)
        self.state = dataclasses.replace(self.state, status_view=status_view)
        return marked

    async def take(
        self, key: AttemptKey, ranks: Sequence[int] | None, *, stacks: bool, timeout_s: float
    ) -> DumpResult:
        self.asked.append((key, ranks, stacks, timeout_s))
        if key.job == "gone":
            raise ServiceUnavailable("agents: none of job 'gone' is connected: wait for them")
        writer = self.dumps.create(key, NOW)
        writer.add(0, Part.DUMP, b"pickle", last=True)
        failed = {1: "no answer within 1 s"}
        dump_id = writer.finish({"answered": [0], "failed": {"1": failed[1]}})
        return DumpResult(dump_id, (0,), failed)


@dataclass
class Answer:
    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def json(self) -> Any:
        assert self.content_type == "application/json"
        return json.loads(self.body)


class Client:
    """Speaks ASGI to the application, as a server would: no sockets, no extra packages."""

    def __init__(self, service: Service, web: WebOptions = _OPEN) -> None:
        """If `web` has tokens, each request needs one."""
        self.service = service
        app = create_app(service.view, web=web)
        self._app = HttpGuard(app, web.tokens, web.refusals) if web.tokens is not None else app

    def get(self, path: str, query: str = "", **headers: str) -> Answer:
        """Names of headers have underscores instead of hyphens."""
        return self.send("GET", path, query, headers=headers)

    def post(
        self,
        path: str,
        body: object = b"",
        *,
        content_type: str = "application/json",
        origin: str = "",
        scheme: str = "http",
        **headers: str,
    ) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        more = {"content_type": content_type, "origin": origin, **headers}
        return self.send("POST", path, body=data, headers=more, scheme=scheme)

    def send(
        self,
        method: str,
        path: str,
        query: str = "",
        *,
        body: bytes = b"",
        headers: Mapping[str, str] = MappingProxyType({}),
        scheme: str = "http",
    ) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items() if value}
        scope = {
            "type": "http",
            "method": method,
            "scheme": scheme,
            "path": path,
            "query_string": query.encode(),
            "headers": [
                (name.encode(), value.encode("latin-1"))
                for name, value in {"host": "frd", **named}.items()
            ],
        }
        return asyncio.run(self._answer(scope, body))

    async def _answer(self, scope: dict[str, Any], body: bytes) -> Answer:
        sent: list[dict[str, Any]] = []
        received = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> dict[str, Any]:
            if (message := next(received, None)) is not None:
                return message
            await asyncio.Event().wait()  # the client stays
            raise AssertionError

        async def send(message: Any) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        headers = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
        content = b"".join(message.get("body", b"") for message in sent[1:])
        return Answer(sent[0]["status"], headers.get("content-type", ""), content, headers)
