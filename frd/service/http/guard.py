"""HTTP middleware: requires a bearer token if the service has tokens.

It wraps the whole application, so that no route can be forgotten. Health and readiness need no
token, because supervisors have none; nor do runbooks and the files of the web page, because they
reveal nothing about a job and a link in an alert has no token.

A browser that has signed in sends the token as a cookie. Behind this module it is a bearer token
like any other, also when a request is forwarded to another replica. Caches know nothing about such
a cookie, so answers of the API forbid them to keep what it authorizes.
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frd.service.access.grants import GRANT, Role, Tokens
from frd.service.access.refusals import Refusals
from frd.service.http.answers import error_response
from frd.service.http.runbooks import PREFIX as RUNBOOKS
from frd.service.http.web.pages import is_page
from frd.service.http.web.session import PATH as SESSION
from frd.service.http.web.session import host_of, token_in

OPEN: Final = ("/-/healthy", "/-/ready", SESSION)
_API: Final = "/api/"


class HttpGuard:
    """`refusals` counts by reason: ``token`` (also if there is none) or ``role``."""

    def __init__(self, app: ASGIApp, tokens: Tokens, refusals: Refusals) -> None:
        self._app = app
        self._tokens = tokens
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"].startswith(_API):
            send = _unkept(send)
        scope = _with_cookie(scope)
        if _is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        role = _role(scope["method"], scope["path"])
        token = Headers(scope=scope).get("authorization")
        grant = self._tokens.grant(token)
        if grant is None:
            await self._refusals.no_grant(host_of(scope), token)
            message = "authorization: missing or unknown token: name a token file"
            answer = error_response(401, message, {"WWW-Authenticate": "Bearer"})
        elif not grant.may(role):
            self._refusals.http["role"] += 1
            answer = error_response(
                403, f"authorization: the token's role may not do this: use {role}"
            )
        else:
            await self._app({**scope, GRANT: grant}, receive, send)
            return
        await answer(scope, receive, send)


def _unkept(send: Send) -> Send:
    """`send`, with a header that forbids caches to keep the answer unless it has one about that."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).setdefault("cache-control", "private, no-store")
        await send(message)

    return sent


def _with_cookie(scope: Scope) -> Scope:
    """The scope of a request, with the token of its cookie unless it has another one."""
    headers = Headers(scope=scope)
    token = None if "authorization" in headers else token_in(headers.get("cookie"))
    if token is None:
        return scope
    bearer = (b"authorization", b"Bearer " + token.encode("latin-1", "replace"))
    return {**scope, "headers": [*scope["headers"], bearer]}


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(RUNBOOKS) or is_page(path)


def _role(method: str, path: str) -> Role:
    """Reading needs the role reader; changes (taking a dump, what people say) need operator.

    So does reading a dump, which holds the stack frames of the user's program, and the end of a
    log, which may hold anything.
    """
    # A route also matches a path with a line break at its end.
    is_log = path.startswith("/api/v1/findings/") and path.rstrip("\n").endswith("/log")
    is_inside = is_log or path.startswith("/api/v1/dumps")
    return Role.READER if method in ("GET", "HEAD") and not is_inside else Role.OPERATOR
