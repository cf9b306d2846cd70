"""HTTP middleware: requires a bearer token if the service has tokens.

It wraps the whole application, so that no route can be forgotten. Health and readiness need no
token, because supervisors have none; nor do runbooks, because a link in an alert has none and the
pages reveal nothing about a job.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from frd.service.access.grants import Role, Tokens
from frd.service.http.answers import error_response
from frd.service.http.runbooks import PREFIX as RUNBOOKS

OPEN: Final = ("/-/healthy", "/-/ready")


class HttpGuard:
    """`refused` counts by reason: ``token`` or ``role``."""

    def __init__(self, app: ASGIApp, tokens: Tokens, refused: Counter[str]) -> None:
        self._app = app
        self._tokens = tokens
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        role = _role(scope["method"], scope["path"])
        grant = self._tokens.grant(Headers(scope=scope).get("authorization"))
        if grant is None:
            self._refused["token"] += 1
            message = "authorization: missing or unknown token: name a token file"
            answer = error_response(401, message, {"WWW-Authenticate": "Bearer"})
        elif not grant.may(role):
            self._refused["role"] += 1
            answer = error_response(
                403, f"authorization: the token's role may not do this: use {role}"
            )
        else:
            await self._app(scope, receive, send)
            return
        await answer(scope, receive, send)


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(RUNBOOKS)


def _role(method: str, path: str) -> Role:
    """Reading needs the role reader; changes (taking a dump, closing a finding) need operator.

    So does reading a dump, which holds the stack frames of the user's program.
    """
    harmless = method in ("GET", "HEAD") and not path.startswith("/api/v1/dumps")
    return Role.READER if harmless else Role.OPERATOR
