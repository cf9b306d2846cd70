"""HTTP client of the commands, with a time limit on every request.

Built on http.client, so that `frd status` starts fast and follows no redirect or proxy. Every
failure is an `FrdError` that names the address. Answers are returned as the JSON that the service
sent.
"""

from __future__ import annotations

import http.client
import shutil
import ssl
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlencode

import msgspec

from frd.address import split_address
from frd.errors import ConfigError, FrdError, ServiceUnavailable

TIMEOUT_S = 10.0
_MAX_JSON_BYTES = 256 * 1024 * 1024
_MAX_NAMES = 10


class Client:
    """One service, with a new connection for each call: commands are short and services restart."""

    def __init__(
        self,
        address: str,
        timeout_s: float = TIMEOUT_S,
        *,
        tls: ssl.SSLContext | None = None,
        token: str | None = None,
    ) -> None:
        self.address = address
        self._where = split_address(address)
        self._timeout_s = timeout_s
        self.tls = tls
        self._token = token

    def get(self, path: str, query: Mapping[str, str | None] | None = None) -> Any:
        """The JSON at `path`; query parameters that are None are left out."""
        with self._answer("GET", _target(path, query)) as response:
            return self._json(response)

    def post(self, path: str, body: object, *, timeout_s: float | None = None) -> Any:
        """Send `body` as JSON; the JSON of the answer."""
        with self._answer("POST", _target(path), msgspec.json.encode(body), timeout_s) as response:
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
        connection = self._connection(timeout_s)
        headers = {"Accept": "application/json", "Connection": "close"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            if response.status >= http.client.BAD_REQUEST:
                raise self._refusal(response)
            yield response
        except (OSError, http.client.HTTPException) as error:
            raise ServiceUnavailable(
                f"service: {self.address}: {_advice(error, timeout_s)}"
            ) from None
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection(*self._where, timeout=timeout_s)
        return http.client.HTTPSConnection(*self._where, timeout=timeout_s, context=self.tls)

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
                    return FrdError(message)
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
        case ssl.SSLError():
            why = getattr(error, "verify_message", "") or error.reason or str(error)
            return f"TLS: {why}: does it speak TLS, and did --tls-ca-file sign its certificate?"
        case http.client.HTTPException():
            return (
                f"does not speak HTTP as frd does ({type(error).__name__}): "
                "name the HTTP address of `frd serve`"
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


def unknown_job(job: str, known: Collection[str], where: str = "this service") -> FrdError:
    """``job: 'x': unknown to this service: ...`` with the jobs that there are."""
    names = ", ".join(repr(name) for name in sorted(known)[:_MAX_NAMES])
    more = f" and {len(known) - _MAX_NAMES} more" if len(known) > _MAX_NAMES else ""
    known_jobs = f"it knows {names}{more}" if known else "it has seen no job yet"
    return FrdError(f"job: {job!r}: unknown to {where}: {known_jobs}")


def _target(path: str, query: Mapping[str, str | None] | None = None) -> str:
    given = {key: value for key, value in (query or {}).items() if value is not None}
    return path + (f"?{urlencode(given)}" if given else "")


def job_path(job: str, *rest: str) -> str:
    """``/api/v1/jobs/{job}/...``, with the job percent-encoded."""
    return "/".join(["/api/v1/jobs", *(quote(part, safe="") for part in (job, *rest))])
