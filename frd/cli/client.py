"""HTTP client of the commands, with a time limit on every request.

Built on http.client, so that `frd status` starts fast and follows no redirect or proxy. Every
failure is an `FrdError` that names the address. Answers are returned as the JSON that the service
sent. Any replica of a cluster answers for all of them, so several addresses are tried in order; the
one that answered is asked first from then on.
"""

from __future__ import annotations

import http.client
import shutil
import ssl
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlencode

import msgspec

from frd.address import split_address
from frd.errors import ConfigError, FrdError, ServiceUnavailable, UnknownThing
from frd.forms import json_bytes
from frd.usage import guess

TIMEOUT_S = 10.0
_MAX_JSON_BYTES = 256 * 1024 * 1024
_MAX_NAMES = 10
_ERRORS = {
    http.client.NOT_FOUND: UnknownThing,
    # An agent, or another replica, does not answer at present.
    http.client.SERVICE_UNAVAILABLE: ServiceUnavailable,
}
_NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"}
"""So says OpenSSL, by version, of an answer without TLS."""
_CONNECT_S = 3.0
"""For connecting to an address, when another one could be tried."""


class Client:
    """One service, with a new connection for each call: commands are short and services restart.

    `others` are tried when `address` does not answer.
    """

    def __init__(
        self,
        address: str,
        timeout_s: float = TIMEOUT_S,
        *,
        others: Sequence[str] = (),
        tls: ssl.SSLContext | None = None,
        token: str | None = None,
    ) -> None:
        self._addresses = deque((address, *others))
        for one in self._addresses:
            split_address(one)
        self._timeout_s = timeout_s
        self.tls = tls
        self._token = token

    @property
    def address(self) -> str:
        """The address that has answered last."""
        return self._addresses[0]

    @property
    def url(self) -> str:
        """The URL of `address`, without a slash at the end."""
        scheme, usual = ("http", ":80") if self.tls is None else ("https", ":443")
        return f"{scheme}://{self.address.removesuffix(usual)}"

    def has_page(self) -> bool:
        """Does the service serve the page for browsers? `web` may be off."""
        with suppress(FrdError), self._answer("GET", "/"):
            return True
        return False

    def get(self, path: str, query: Mapping[str, str | None] | None = None) -> Any:
        """The JSON at `path`; query parameters that are None are left out."""
        with self._answer("GET", _target(path, query)) as response:
            return self._json(response)

    def post(self, path: str, body: object, *, timeout_s: float | None = None) -> Any:
        """Send `body` as JSON; the JSON of the answer."""
        with self._answer("POST", _target(path), json_bytes(body), timeout_s) as response:
            return self._json(response)

    def delete(self, path: str) -> Any:
        with self._answer("DELETE", _target(path)) as response:
            return self._json(response)

    def text(self, path: str) -> str:
        with self._answer("GET", _target(path)) as response:
            return response.read(_MAX_JSON_BYTES).decode("utf-8", "replace")

    def download(self, path: str, into: IO[bytes]) -> None:
        """Copy the body at `path` to `into`.

        Raises:
            ServiceUnavailable: also when the body ends early.
        """
        with self._answer("GET", _target(path)) as response:
            shutil.copyfileobj(response, into, 1 << 20)
            if response.length:
                raise ServiceUnavailable(
                    f"service: {self.address}: the answer ended {response.length} bytes early: "
                    "try again"
                )

    @contextmanager
    def _answer(
        self, method: str, target: str, body: bytes | None = None, timeout_s: float | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        headers = {"Accept": "application/json", "Connection": "close"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection, response = self._first_answer(method, target, body, headers, timeout_s)
        with closing(connection):
            try:
                if response.status >= http.client.BAD_REQUEST:
                    raise self._refusal(response)
                yield response
            except (OSError, http.client.HTTPException) as error:
                raise ServiceUnavailable(
                    f"service: {self.address}: {_advice(error, timeout_s)}"
                ) from None

    def _first_answer(
        self,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """The first address that answers. A POST that may have arrived is not sent to another."""
        failed: dict[str, list[str]] = {}
        connect_s = timeout_s if len(self._addresses) == 1 else min(timeout_s, _CONNECT_S)
        for _ in range(len(self._addresses)):
            connection, is_connected = self._connection(connect_s), False
            try:
                connection.connect()
                is_connected = True
                connection.sock.settimeout(timeout_s)
                connection.request(method, target, body, dict(headers))
                return connection, connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                advice = _advice(error, timeout_s if is_connected else connect_s)
                failed.setdefault(advice, []).append(self.address)
                if is_connected and method != "GET":
                    break
                self._addresses.rotate(-1)
        why = "; ".join(f"{', '.join(where)}: {advice}" for advice, where in failed.items())
        raise ServiceUnavailable(f"service: {why}")

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        where = split_address(self.address)
        if self.tls is None:
            return http.client.HTTPConnection(*where, timeout=timeout_s)
        return http.client.HTTPSConnection(*where, timeout=timeout_s, context=self.tls)

    def _json(self, response: http.client.HTTPResponse) -> Any:
        data = response.read(_MAX_JSON_BYTES)
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise FrdError(
                f"service: {self.address}: the answer is not JSON: "
                "name the HTTP address of `frd serve`"
            ) from None

    def _refusal(self, response: http.client.HTTPResponse) -> FrdError:
        """The service's own message if it sent one."""
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            match msgspec.json.decode(response.read(1 << 20)):
                case {"error": str(message)}:
                    if response.status == http.client.UNAUTHORIZED and self._token is None:
                        message += " with --token-file or FRD_TOKEN_FILE"
                    return _ERRORS.get(response.status, FrdError)(message)
        return FrdError(
            f"service: {self.address}: answered {response.status} {response.reason}: "
            "name the HTTP address of `frd serve`"
        )


def _advice(error: Exception, timeout_s: float) -> str:
    """What went wrong with a request, and what to do."""
    match error:
        case TimeoutError():
            return f"no answer within {timeout_s:g} s: is it `frd serve`, and is it overloaded?"
        case ConnectionRefusedError():
            return (
                "nothing listens there: start `frd serve`, or name its address with "
                "--http HOST:PORT or FRD_HTTP"
            )
        case ssl.SSLError(reason=reason) if reason in _NO_TLS:
            return "does not speak TLS: leave out --tls and the options of TLS, or write http://"
        case ssl.SSLError():
            why = getattr(error, "verify_message", "") or error.reason or str(error)
            return f"TLS: {why}: does it speak TLS, and did --tls-ca-file sign its certificate?"
        case http.client.HTTPException():
            return (
                f"does not speak HTTP as frd does ({type(error).__name__}): "
                "name the HTTP address of `frd serve`; if it speaks TLS, add --tls or write https://"
            )
        case _:
            return f"{getattr(error, 'strerror', None) or error}: check the address"


def tls_context(ca_file: Path | None, cert_file: Path | None) -> ssl.SSLContext:
    """The context with the CA that verifies the service, and the client certificate followed by its
    key.

    Raises:
        ConfigError: naming the option whose file cannot be used.
    """
    option, path = "--tls-ca-file", ca_file
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if cert_file is not None:
            option, path = "--tls-cert-file", cert_file
            context.load_cert_chain(cert_file)
    except (OSError, ssl.SSLError) as error:
        why = getattr(error, "reason", None) or error.strerror or str(error)
        raise ConfigError(f"{option}: {path}: {why}: name a PEM file") from None
    return context


def unknown_job(
    job: str, known: Collection[str], where: str = "this service", silent: Sequence[str] = ()
) -> FrdError:
    """``job: 'x': unknown to this service: ...`` with the jobs that there are; `silent` replicas
    may know it."""
    names = ", ".join(repr(name) for name in sorted(known)[:_MAX_NAMES])
    more = f" and {len(known) - _MAX_NAMES} more: see `frd status`" * (len(known) > _MAX_NAMES)
    known_jobs = f"it knows {names}{more}" if known else "it has seen no job yet"
    known_jobs += guess(job, known)
    if silent:
        known_jobs += f"; {', '.join(silent)} did not answer: try again"
    return FrdError(f"job: {job!r}: unknown to {where}: {known_jobs}")


def _target(path: str, query: Mapping[str, str | None] | None = None) -> str:
    given = {key: value for key, value in (query or {}).items() if value is not None}
    return path + (f"?{urlencode(given)}" if given else "")


def job_path(job: str, *rest: str) -> str:
    """``/api/v1/jobs/{job}/...``, with the job percent-encoded."""
    return "/".join(["/api/v1/jobs", *(quote(part, safe="") for part in (job, *rest))])
