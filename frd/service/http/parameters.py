"""What requests ask for: parameters and bodies, each refused with what to write instead."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

import msgspec
from starlette.requests import Request

from frd.engine.views import AttemptView
from frd.forms import unfold_ranks, utc_ns
from frd.model import AlignedNs
from frd.service.http.answers import body_of, refuse
from frd.service.state import ServiceState
from frd.store.findings import Place

_Form = TypeVar("_Form")


def find_attempt(state: ServiceState, job: str, attempt: int | None) -> AttemptView:
    """None: the newest one."""
    if attempt is None:
        found = state.latest_attempts().get(job)
    else:
        wanted = (view for view in state.status_view.attempts if view.key.job == job)
        found = next((view for view in wanted if view.key.attempt == attempt), None)
    if found is None:
        which = repr(job) if attempt is None else f"{job!r} attempt {attempt}"
        refuse(404, f"job: {which}: unknown here: see /api/v1/jobs")
    return found


def number(request: Request, name: str, *, low: int, high: int = 2**31) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 12 and low <= int(text) <= high):
        refuse(400, f"{name}: {text!r}: write a number from {low} to {high}")
    return int(text)


def choice(request: Request, name: str, choices: Collection[str]) -> str | None:
    """One of some words."""
    text = request.query_params.get(name)
    if text is not None and text not in choices:
        refuse(400, f"{name}: {text!r}: write {' or '.join(choices)}, or leave it out")
    return text


def time(request: Request, name: str) -> AlignedNs | None:
    text = request.query_params.get(name)
    try:
        return None if text is None else utc_ns(text)
    except ValueError as error:
        refuse(400, f"{name}: {error}")


def place(text: str | None) -> Place:
    opened_ns, _, finding_id = (text or "0.").partition(".")
    is_number = opened_ns.isascii() and opened_ns.isdecimal() and len(opened_ns) < 20
    if not (is_number and int(opened_ns) < 2**63):
        refuse(400, f"after: {text!r}: write the key next of the previous page")
    return int(opened_ns), finding_id


async def body(request: Request, form: type[_Form], say: str) -> _Form:
    """The JSON object in the request's body; `say` is what to send instead of a bad one."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        refuse(400, "content-type: not application/json: send a JSON object")
    content = await body_of(request, say)
    try:
        return msgspec.json.decode(content, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        refuse(400, f"body: {error}: {say}")


def memory_of(text: str | None, view: AttemptView) -> Collection[int] | None:
    """Ranks whose memory is shown: `all`, or some; None (the default): a few ranks."""
    if text == "all":
        return range(max((rank.info.rank + 1 for rank in view.ranks), default=0))
    ranks = ranks_of(text, view)
    return None if ranks is None else frozenset(ranks)


def ranks_of(text: str | None, view: AttemptView) -> tuple[int, ...] | None:
    if text is None:
        return None
    ranks = ranks_in(text)
    world = max(view.world_size, int(view.rank_columns.rank.max(initial=-1)) + 1)
    if ranks[-1] >= world:
        refuse(400, f"ranks: {ranks[-1]}: the job has ranks 0 to {world - 1}")
    return ranks


def ranks_in(text: str) -> tuple[int, ...]:
    try:
        return unfold_ranks(text)
    except ValueError as error:
        refuse(400, str(error))
