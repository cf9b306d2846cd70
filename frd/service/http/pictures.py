"""Requests for pictures: the timeline of a finding, the map and the summary of a job.

They are computed in a worker thread from what is published. Many viewers ask for the same map and
the same summary, so these are made once for each publication.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from hashlib import blake2b
from typing import Final, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from frd.engine.views import GroupMap
from frd.errors import StoreError
from frd.forms import fold_ranks, json_bytes
from frd.model import AlignedNs, Finding
from frd.service.http import parameters
from frd.service.http.answers import API_VERSION, Content, large_answer, refuse
from frd.service.http.job_json import MOST_ROWS, job_summary, map_json, map_tag, rank_detail
from frd.service.http.people import PeopleApi
from frd.service.timelines.form import DEFAULT_LANES, MEDIA_TYPE, perfetto_bytes, timeline_json
from frd.service.timelines.timeline import Timeline
from frd.service.timelines.timelines import MAX_LANES, lanes_of
from frd.service.view import ServiceView

_Wanted: TypeAlias = tuple[str, int | None]
"""A job, and the number of an attempt; None: the newest."""
FORMS: Final = ("summary", "map", "rank")
"""Of a job, for the parameter `view`."""
_FORMATS: Final = ("json", "perfetto")
_SHARED: Final = 32
"""Answers that are kept."""


class Pictures:
    def __init__(self, view: ServiceView, people: PeopleApi) -> None:
        self._view = view
        self._people = people
        self._made: dict[Hashable, tuple[AlignedNs, asyncio.Task[Content]]] = {}
        """The last answer of each kind, of the publication at this time."""

    async def job(self, request: Request, wanted: _Wanted, form: str, rank: int | None) -> Response:
        """An attempt in one of `FORMS`; `rank` is the one that is asked for."""
        match form:
            case "map":
                return (await self._once(wanted, "map", self._map)).answer(request)
            case "rank":
                if rank is None:
                    refuse(400, "rank: missing: write the number of a rank")
                return await large_answer(request, lambda: self._rank(wanted, rank))
            case _:
                tag = (await self._once(wanted, "map", self._map)).tag
                summary = self._once(wanted, "summary", lambda of: self._summary(of, tag))
                return (await summary).answer(request)

    # What follows is called in worker threads, and looks for the attempt there: the event loop
    # would free the arrays of a publication if it had the last reference to it.

    def _map(self, wanted: _Wanted) -> Content:
        state = self._view.state
        view = parameters.find_attempt(state, *wanted)
        found = view.history.group_map(MOST_ROWS) if view.history else GroupMap.empty()
        tag = map_tag(found)
        return Content.of(map_json(state, view, found, tag), tag)

    def _summary(self, wanted: _Wanted, tag: str) -> Content:
        state = self._view.state
        return Content.of(job_summary(state, parameters.find_attempt(state, *wanted), tag))

    def _rank(self, wanted: _Wanted, rank: int) -> object:
        state = self._view.state
        view = parameters.find_attempt(state, *wanted)
        if rank not in view.rank_columns.rank:
            known = fold_ranks(view.rank_columns.rank.tolist())
            refuse(404, f"rank: {rank}: unknown here: the job has ranks {known}")
        return rank_detail(state, view, rank)

    async def _once(
        self, wanted: _Wanted, form: str, make: Callable[[_Wanted], Content]
    ) -> Content:
        at = self._published_at(wanted)
        return await self._shared((form, *wanted), at, lambda: make(wanted))

    async def _shared(self, key: Hashable, at: AlignedNs, make: Callable[[], Content]) -> Content:
        """What `make` returns, which is called once for each publication, in a worker thread: all
        requests for it wait for the same thread."""
        known = self._made.get(key)
        if known is None or known[0] != at or not at:
            self._made.pop(key, None)
            while len(self._made) >= _SHARED:
                del self._made[next(iter(self._made))]
            self._made[key] = known = at, asyncio.create_task(asyncio.to_thread(make))
        return await asyncio.shield(known[1])

    def _published_at(self, wanted: _Wanted) -> AlignedNs:
        history = parameters.find_attempt(self._view.state, *wanted).history
        return history.at if history is not None else AlignedNs(0)

    def keeps(self, finding_id: str) -> bool:
        """Whether this process has the timeline of a closed finding. Reads the disk."""
        try:
            return self._view.timelines.keeps(finding_id)
        except StoreError:
            return False

    async def timeline(self, request: Request) -> Response:
        finding = await self._people.finding(request.path_params["id"])
        form = parameters.choice(request, "format", _FORMATS)
        text = request.query_params.get("ranks")
        ranks = None if text is None else parameters.ranks_in(text)
        if ranks is not None and len(ranks) > MAX_LANES:
            refuse(400, f"ranks: {len(ranks)}: ask for at most {MAX_LANES} at a time")
        if form == "perfetto":
            content = await asyncio.to_thread(
                lambda: perfetto_bytes(finding, self._view.timelines.now(finding, ranks))
            )
            name = "".join(c for c in finding.id if c.isascii() and c.isalnum())
            headers = {"content-disposition": f'attachment; filename="frd-{name}.pftrace"'}
            return Response(content, 200, headers, media_type=MEDIA_TYPE)

        def make() -> Content:
            timeline = (
                self._default(finding)
                if ranks is None
                else self._view.timelines.now(finding, ranks)
            )
            form = timeline_json(finding, timeline)
            tag = blake2b(json_bytes({**form, "at": None}), digest_size=8).hexdigest()
            return Content.of({"api_version": API_VERSION, **form}, tag)

        if ranks is not None:
            return (await asyncio.to_thread(make)).answer(request)
        at = self._view.state.status_view.at
        return (await self._shared(("timeline", finding.id), at, make)).answer(request)

    def _default(self, finding: Finding) -> Timeline:
        """With the lanes that matter most."""
        timelines = self._view.timelines
        timeline = timelines.now(finding, timelines.lanes(finding, DEFAULT_LANES))
        known = sorted(lane.rank for lane in timeline.lanes)
        return timeline.of(lanes_of(finding, known, DEFAULT_LANES))
