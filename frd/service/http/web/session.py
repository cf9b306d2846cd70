"""Which requests are authorized: by a bearer token, or by the cookie of a browser that signed in.

The cookie is the token itself, which scripts cannot read, so that any replica takes it, and a token
that is withdrawn ends its sessions. It ends with the browser. `SameSite=Strict` keeps it from
requests that other sites cause.

`HttpGuard` wraps the whole application, so that no route can be forgotten. Health and readiness
need no token, because supervisors have none; nor do runbooks and the files of the web page, because
they reveal nothing about a job and a link in an alert has no token. Behind the guard, a cookie is a
bearer token like any other, also when a request is forwarded to another replica. Caches know
nothing about such a cookie, so answers of the API forbid them to keep what it authorizes.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frd.decodable import decodable
from frd.service.access.grants import EVERYTHING, GRANT, Grant, Role, Tokens
from frd.service.access.refusals import Refusals
from frd.service.http import parameters
from frd.service.http.answers import error_response, json_answer, refuse
from frd.service.http.web.pages import is_page

PATH: Final = "/api/v1/session"
COOKIE: Final = "frd_token"
SECURE_COOKIE: Final = f"__Host-{COOKIE}"
"""By HTTPS: browsers accept a cookie of this name only from this host, and only by HTTPS."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_MAX_TOKEN_CHARS: Final = 2048
Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

OPEN: Final = ("/-/healthy", "/-/ready", PATH)
_API: Final = "/api/"


@decodable
class _SignIn(msgspec.Struct, forbid_unknown_fields=True):
    token: str


def token_in(cookies: str | None) -> str | None:
    """The token in a header ``Cookie``."""
    found = cookie_parser(cookies) if cookies else {}
    text = found.get(SECURE_COOKIE) or found.get(COOKIE)
    try:
        return base64.urlsafe_b64decode(text.encode()).decode("utf-8") if text else None
    except (binascii.Error, ValueError):
        return None


def host_of(scope: Scope) -> str:
    """The address of the client."""
    return (scope.get("client") or ("",))[0]


class OwnPage:
    """Tells the service's own page from other sites by the header Origin, which browsers send.

    A proxy may have replaced the header Host, so that only `public_url` says the origin of the
    page. Without tokens, a name in Host that `public_url` does not have may be that of another
    site, which has made it resolve to this service (DNS rebinding).
    """

    def __init__(self, public_url: str, *, has_tokens: bool = True) -> None:
        self._own = _origin(public_url)
        self._has_tokens = has_tokens

    def check(self, request: Request) -> None:
        """Refuse what another site sends."""
        origin, host = request.headers.get("origin"), request.headers.get("host")
        if origin is None or (self._own is not None and _origin(origin) == self._own):
            return
        if _host_in(origin) != host:
            refuse(403, "origin: another site: use the page of the service, at public_url")
        if not self._has_tokens and not _is_no_name(origin):
            refuse(403, f"origin: {host}: may be another site: set public_url, or use tokens")

    def only(self, handler: Handler) -> Handler:
        async def answer(request: Request) -> Response:
            self.check(request)
            return await handler(request)

        return answer


class Sessions:
    """Without `tokens`, everything is permitted. `public_url`: where browsers open the service; if
    empty, where the requests arrive. `refusals` counts by reason, as that of `HttpGuard`."""

    def __init__(self, tokens: Tokens | None, public_url: str, refusals: Refusals) -> None:
        self._tokens = tokens
        self._public_url = public_url
        self._page = OwnPage(public_url)
        self._refusals = refusals

    async def show(self, request: Request) -> Response:
        authorization = request.headers.get("authorization")
        grant = EVERYTHING if self._tokens is None else self._tokens.grant(authorization)
        if grant is None and authorization:
            await self._refusals.no_grant(host_of(request.scope), authorization)
        return await self._answer(grant)

    async def sign_in(self, request: Request) -> Response:
        self._page.check(request)
        wanted = await parameters.body(request, _SignIn, "send token")
        token = wanted.token.strip()
        if self._tokens is None:
            return await self._answer(EVERYTHING)
        if not 0 < len(token) <= _MAX_TOKEN_CHARS:
            refuse(400, f"token: {len(token)} characters: write a token of the service")
        grant = self._tokens.grant(f"Bearer {token}")
        if grant is None:
            await self._refusals.no_grant(host_of(request.scope), token)
        if grant is None or not grant.may(Role.READER):
            self._refusals.http["role"] += grant is not None
            refuse(401, "token: unknown, or only for agents: ask who runs the service for one")
        answer = await self._answer(grant)
        self._set(answer, request, base64.urlsafe_b64encode(token.encode()).decode(), None)
        return answer

    async def sign_out(self, request: Request) -> Response:
        self._page.check(request)
        answer = await self._answer(EVERYTHING if self._tokens is None else None)
        self._set(answer, request, "", 0)
        return answer

    def _set(self, answer: Response, request: Request, value: str, max_age: int | None) -> None:
        secure = (self._public_url or str(request.url)).lower().startswith("https:")
        if secure and max_age == 0:  # it may have been set by HTTP
            answer.delete_cookie(COOKIE, secure=True, httponly=True, samesite="strict")
        name = SECURE_COOKIE if secure else COOKIE
        answer.set_cookie(
            name, value, max_age, secure=secure, httponly=True, samesite="strict", path="/"
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


def _host_in(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # not an address
        return None


def _is_no_name(origin: str) -> bool:
    """Its host is an address, or this machine."""
    host = (_origin(origin) or ("", "", None))[1]
    try:
        return host == "localhost" or bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def _origin(url: str) -> tuple[str, str, int | None] | None:
    """Scheme, host and port; None if `url` is no address."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname else None


# -- the guard of all routes ----------------------------------------------------------------------


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
        if scope["path"] in OPEN or is_page(scope["path"]):
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


def _role(method: str, path: str) -> Role:
    """Reading needs the role reader; changes (taking a dump, what people say) need operator.

    So does reading a dump, which holds the stack frames of the user's program, and the end of a
    log, which may hold anything.
    """
    # A route also matches a path with a line break at its end.
    is_log = path.startswith("/api/v1/findings/") and path.rstrip("\n").endswith("/log")
    is_inside = is_log or path.startswith("/api/v1/dumps")
    return Role.READER if method in ("GET", "HEAD") and not is_inside else Role.OPERATOR
