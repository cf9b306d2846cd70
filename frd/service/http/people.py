"""What people say of findings, over HTTP: acknowledge, assign, note, silence, close.

The service's own page may ask for it, another site may not (see `session.OwnPage`). The name of a
person is that of the token; without tokens it is what the client says, and shown as unverified.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from frd.decodable import decodable
from frd.do_now import shown_json
from frd.engine.findings.text import clean
from frd.forms import encodable, utc_ns, utc_text
from frd.model import AlignedNs, Finding, FindingState, Note
from frd.service.access.grants import GRANT, MAX_NAME_CHARS, Grant
from frd.service.findings import people
from frd.service.findings.people import Mark, Scope, Silence
from frd.service.http import parameters
from frd.service.http.answers import API_VERSION, json_answer, refuse
from frd.service.journal.payloads import Dismissal
from frd.service.view import ServiceView

MAX_TEXT_CHARS: Final = 1000
MAX_SCOPE_CHARS: Final = 256
MAX_SILENCE_D: Final = 90
_SEE_FINDINGS: Final = "see /api/v1/findings or `frd findings --all`"
_CLOSED: Final = "finding: {0.id}: closed already: {0.close_reason}"


class _Said(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    by: str = ""


@decodable
class _Ack(_Said):
    undo: bool = False


@decodable
class _Assign(_Said):
    to: str


@decodable
class _Note(_Said):
    text: str


@decodable
class _Close(_Said):
    because: str


@decodable
class _Silence(_Said):
    until: str | None
    because: str = ""


@decodable
class _SilenceOf(_Silence):
    until: str
    job: str = ""
    node: str = ""


class PeopleApi:
    def __init__(self, view: ServiceView) -> None:
        self._view = view

    async def finding(self, finding_id: str) -> Finding:
        if (found := await asyncio.to_thread(self._view.finding, finding_id)) is not None:
            return found
        refuse(404, f"finding: {finding_id!r}: unknown here: {_SEE_FINDINGS}")

    async def ack(self, request: Request) -> Response:
        """The first who acknowledges has it; another one learns who that is."""
        said = await parameters.body(request, _Ack, "send {}, or undo")
        acknowledge = people.acknowledge(_by(request, said), self._now())
        mark = people.undo_acknowledge if said.undo else acknowledge
        return await self._marked(_open(await self._asked(request)), mark)

    async def assign(self, request: Request) -> Response:
        """An empty name takes the assignment back."""
        said = await parameters.body(request, _Assign, "send to")
        to = _text("to", said.to, 0, MAX_NAME_CHARS)
        return await self._marked(await self._asked(request), people.assign(to))

    async def note(self, request: Request) -> Response:
        said = await parameters.body(request, _Note, "send text")
        note = Note(_by(request, said), self._now(), _text("text", said.text))
        return await self._marked(await self._asked(request), people.add_note(note))

    async def silence(self, request: Request) -> Response:
        said = await parameters.body(request, _Silence, "send until, or null for it, and because")
        found = _open(await self._asked(request))
        if said.until is None:
            await self._view.silences.end(found.id, self._now())
        else:
            await self._put(request, said, said.until, Scope.FINDING, found.id)
        return await self._marked(found, lambda finding: finding)

    async def close(self, request: Request) -> Response:
        """Close an open finding by hand; its incident opens no other finding while it lasts."""
        said = await parameters.body(request, _Close, "send because")
        because, finding_id = _text("because", said.because), request.path_params["id"]
        by = _by(request, said) if said.by or GRANT in request.scope else ""
        dismissal = Dismissal(finding_id, because, by)
        if (closed := await self._view.live.dismiss(dismissal)) is None:
            known = await self.finding(finding_id)
            refuse(409, _CLOSED.format(known))
        return await json_answer(lambda: shown_json(closed))

    async def silences(self, _: Request) -> Response:
        await self._view.silences.read()
        known = [_silence_json(one) for one in self._view.silences.all(self._now())]
        return await json_answer(lambda: {"api_version": API_VERSION, "silences": known})

    async def put_silence(self, request: Request) -> Response:
        say = "send job or node, until and because"
        said = await parameters.body(request, _SilenceOf, say)
        if bool(said.job) == bool(said.node):
            refuse(400, "silence: neither job nor node, or both: write one of them")
        scope = Scope.JOB if said.job else Scope.NODE
        if len(name := said.job or said.node) > MAX_SCOPE_CHARS:
            refuse(400, f"{scope}: {len(name)} characters: write up to {MAX_SCOPE_CHARS}")
        silence = await self._put(request, said, said.until, scope, encodable(name))
        return await json_answer(lambda: _silence_json(silence), 201)

    async def end_silence(self, request: Request) -> Response:
        silence_id = request.path_params["id"]
        ended = await self._view.silences.end(silence_id, self._now())
        if ended is None:
            refuse(404, f"silence: {silence_id!r}: there is none: see /api/v1/silences")
        return await json_answer(lambda: _silence_json(ended))

    async def _asked(self, request: Request) -> Finding:
        return await self.finding(request.path_params["id"])

    async def _marked(self, finding: Finding, mark: Mark) -> Response:
        marked = await self._view.live.mark(finding, mark)
        return await json_answer(lambda: shown_json(marked))

    async def _put(
        self, request: Request, said: _Silence, until: str, scope: Scope, name: str
    ) -> Silence:
        now = self._now()
        try:
            until_at = utc_ns(until)
        except ValueError as error:
            refuse(400, f"until: {error}")
        if not 0 < until_at - now <= MAX_SILENCE_D * 86_400 * 1e9:
            which = utc_text(until_at)
            refuse(400, f"until: {which}: write a time within the next {MAX_SILENCE_D} days")
        because = _text("because", said.because, 0)
        silence = Silence(scope, name, until_at, _by(request, said), because)
        await self._view.silences.put(silence, now)
        return silence

    def _now(self) -> AlignedNs:
        return self._view.state.utc(self._view.now())


def _by(request: Request, said: _Said) -> str:
    grant: Grant | None = request.scope.get(GRANT)
    if grant is not None:
        return grant.name or "operator"
    return f"{_text('by', said.by or 'unknown', 1, MAX_NAME_CHARS)} (unverified)"


def _open(finding: Finding) -> Finding:
    if finding.state is FindingState.CLOSED:
        refuse(409, _CLOSED.format(finding))
    return finding


def _text(key: str, text: str, least: int = 1, most: int = MAX_TEXT_CHARS) -> str:
    """What a person wrote, on one printable line."""
    words = clean(" ".join(text.split()), MAX_TEXT_CHARS + 1)
    if not least <= len(words) <= most:
        refuse(400, f"{key}: {len(words)} characters: write {least} to {most}")
    return words


def _silence_json(silence: Silence) -> dict[str, str]:
    return {
        "id": silence.id,
        silence.of.value: silence.name,
        "until": utc_text(silence.until_at),
        "because": silence.because,
        "by": silence.by,
    }
