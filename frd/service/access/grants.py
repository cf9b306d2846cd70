"""Authorization: a bearer token or a client certificate becomes a `Grant`.

If both are required, both must be valid. Tokens come from a file with one per line, so that each
kind of peer, or each job, has its own token, which can be withdrawn alone. TLS verifies a
certificate, which may name the jobs that its agent may report. This module knows neither gRPC nor
HTTP: its arguments are strings.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final, Generic, TypeVar
from urllib.parse import unquote

from frd.credentials import read_credential
from frd.errors import ConfigError

MIN_TOKEN_CHARS: Final = 16
MAX_NAME_CHARS: Final = 100
GRANT: Final = "frd.grant"
"""Key of the scope of an HTTP request: the grant of its token. Absent without tokens."""
JOB_NAME_PREFIX: Final = "urn:frd:job:"
"""A URI of this form among the alternative names of a certificate limits it to that job. The name
of the job is percent-encoded."""
T = TypeVar("T")

log = logging.getLogger(__name__)


class Reloaded(Generic[T]):
    """What `load` makes of the files at `paths`; `name` is for the log. Any thread may use it.

    Raises:
        ConfigError: from the constructor, when a file cannot be used. Later, the previous content
            stays in use, and the log says so once for each change of a file.
    """

    def __init__(self, name: str, paths: Iterable[Path], load: Callable[[], T]) -> None:
        self._name = name
        self._paths = tuple(paths)
        self.load = load
        self._lock = threading.Lock()
        self._stamps = self._stamp()
        self._content = load()

    def content(self) -> T:
        with self._lock:
            if (stamps := self._stamp()) != self._stamps:
                self._stamps = stamps
                try:
                    self._content = self.load()
                    log.info("%s: read again", self._name)
                except ConfigError as error:
                    log.error("%s: the previous %s stay in use", error, self._name)
            return self._content

    def _stamp(self) -> list[tuple[int, ...]]:
        """Differs after a file was written or replaced."""
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


class Role(StrEnum):
    AGENT = "agent"
    """May stream."""
    READER = "reader"
    """May read metrics, jobs and findings."""
    OPERATOR = "operator"
    """May also acknowledge, assign, note, silence and close findings, and take and fetch dumps,
    which hold the program's stack frames."""


@dataclass(frozen=True, slots=True)
class Grant:
    roles: frozenset[Role]
    jobs: frozenset[str] | None = None
    """Jobs that an agent may report; None for all."""
    name: str = ""
    """Of the person whose token it is; empty: the file does not say."""

    def may(self, role: Role) -> bool:
        return role in self.roles or (role is Role.READER and Role.OPERATOR in self.roles)

    def may_report(self, job: str) -> bool:
        return self.jobs is None or job in self.jobs

    def narrowed(self, names: Iterable[str]) -> Grant:
        """Limited to the jobs that a certificate with these alternative names allows."""
        jobs = {unquote(n[len(JOB_NAME_PREFIX) :]) for n in names if n.startswith(JOB_NAME_PREFIX)}
        if not jobs:
            return self
        return replace(self, jobs=frozenset(jobs if self.jobs is None else jobs & self.jobs))


EVERYTHING: Final = Grant(frozenset(Role))


class Tokens:
    """The tokens of a file, read again when it changes; see `Reloaded`."""

    def __init__(self, path: Path) -> None:
        self._file = Reloaded("tokens", [path], partial(_read, path))

    def grant(self, authorization: str | None) -> Grant | None:
        """The grant of ``Bearer <token>``; None for a missing or unknown token.

        Every known token is compared, each in constant time.
        """
        grants = self._file.content()
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        digest = _digest(token.strip())
        found = [grant for known, grant in grants if hmac.compare_digest(known, digest)]
        return found[0] if found else None

    def refresh(self) -> None:
        """Read the file if it has changed."""
        self._file.content()


def _digest(token: str) -> bytes:
    """Digests of equal length, so that a comparison reveals nothing about the token."""
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


def _read(path: Path) -> Sequence[tuple[bytes, Grant]]:
    try:
        text = (read_credential("auth.token_file", path) or b"").decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"auth.token_file: {path}: not UTF-8: write one token per line") from None
    with contextlib.suppress(OSError):
        if path.stat().st_mode & 0o007:
            log.warning("tokens: %s: all users may read it: chmod o= it", path)
    grants = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            # Errors go to the log, so they must not quote the line.
            grants.append((_digest(words[0]), _grant(f"{path} line {number}", *words)))
    if not grants:
        raise ConfigError(f"auth.token_file: {path}: contains no token: write one per line")
    return grants


def _grant(where: str, token: str, *limits: str) -> Grant:
    if len(token) < MIN_TOKEN_CHARS:
        raise ConfigError(
            f"auth.token_file: {where}: {len(token)} characters: use {MIN_TOKEN_CHARS} or more"
        )
    roles, jobs, name = set(), set(), ""
    for limit in limits:
        key, _, value = limit.partition("=")
        if key == "role" and value in tuple(Role):
            roles.add(Role(value))
        elif key == "job" and value:
            jobs.add(unquote(value))
        elif key == "name" and not name and _is_name(unquote(value)):
            name = unquote(value)
        else:
            raise ConfigError(
                f"auth.token_file: {where}: not a limit: write role=agent, role=reader, "
                f"role=operator, job=NAME or name=NAME (up to {MAX_NAME_CHARS} printable "
                "characters) behind the token"
            )
    if jobs and roles != {Role.AGENT}:
        raise ConfigError(f"auth.token_file: {where}: job= limits agents only: add role=agent")
    return Grant(frozenset(roles or Role), frozenset(jobs) if jobs else None, name)


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME_CHARS and text.isprintable()
