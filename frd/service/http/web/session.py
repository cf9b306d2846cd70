"""Signing in with a browser: the token becomes a cookie that scripts cannot read.

The cookie is the token itself, so that any replica takes it, and a token that is withdrawn ends its
sessions. It ends with the browser. `SameSite=Strict` keeps it from requests that other sites cause.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request, cookie_parser
from starlette.responses import Response

from frd.decodable import decodable
from frd.service.access.grants import EVERYTHING, Grant, Role, Tokens
from frd.service.http import parameters
from frd.service.http.answers import json_answer, refuse

PATH: Final = "/api/v1/session"
COOKIE: Final = "frd_token"
_MAX_TOKEN_CHARS: Final = 2048


@decodable
class _SignIn(msgspec.Struct, forbid_unknown_fields=True):
    token: str


def token_in(cookies: str | None) -> str | None:
    """The token in a header ``Cookie``."""
    text = cookie_parser(cookies).get(COOKIE) if cookies else None
    try:
        return base64.urlsafe_b64decode(text.encode()).decode("utf-8") if text else None
    except (binascii.Error, ValueError):
        return None


class Sessions:
    """Without `tokens`, everything is permitted. `is_https`: whether browsers use HTTPS, up to a
    proxy at least; None: as the requests that arrive."""

    def __init__(self, tokens: Tokens | None, *, is_https: bool | None) -> None:
        self._tokens = tokens
        self._is_https = is_https

    async def show(self, request: Request) -> Response:
        authorization = request.headers.get("authorization")
        grant = EVERYTHING if self._tokens is None else self._tokens.grant(authorization)
        return await self._answer(grant)

    async def sign_in(self, request: Request) -> Response:
        _check_origin(request)
        wanted = await parameters.body(request, _SignIn, "send token")
        token = wanted.token.strip()
        if self._tokens is None:
            return await self._answer(EVERYTHING)
        if not 0 < len(token) <= _MAX_TOKEN_CHARS:
            refuse(400, f"token: {len(token)} characters: write a token of the service")
        grant = self._tokens.grant(f"Bearer {token}")
        if grant is None or not grant.may(Role.READER):
            refuse(401, "token: unknown, or only for agents: ask who runs the service for one")
        answer = await self._answer(grant)
        self._set(answer, request, base64.urlsafe_b64encode(token.encode()).decode(), None)
        return answer

    async def sign_out(self, request: Request) -> Response:
        _check_origin(request)
        answer = await self._answer(EVERYTHING if self._tokens is None else None)
        self._set(answer, request, "", 0)
        return answer

    def _set(self, answer: Response, request: Request, value: str, max_age: int | None) -> None:
        secure = request.url.scheme == "https" if self._is_https is None else self._is_https
        answer.set_cookie(
            COOKIE, value, max_age, secure=secure, httponly=True, samesite="strict", path="/"
        )

    async def _answer(self, grant: Grant | None) -> Response:
        may_read = grant is not None and grant.may(Role.READER)
        role = None
        if grant is not None and may_read:
            role = Role.OPERATOR if grant.may(Role.OPERATOR) else Role.READER
        form = {
            "required": self._tokens is not None,
            "signed_in": may_read,
            "role": role and role.value,
        }
        return await json_answer(lambda: form)


def _check_origin(request: Request) -> None:
    """Refuse what another site sends."""
    origin = request.headers.get("origin")
    if origin is not None and _host_in(origin) != request.headers.get("host"):
        refuse(403, "origin: another site: sign in on the page of the service")


def _host_in(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # not an address
        return None
