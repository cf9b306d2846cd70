"""Sends findings to the configured webhooks without delaying the evaluation.

Each target has its own thread and queue, so a receiver that is slow or down delays no other
target; `see` only puts messages into queues. The queue is bounded and drops its oldest message. A
message is tried until the receiver takes it, refuses it, or an hour has passed; the pauses between
tries grow to a minute. Separate threads, not asyncio's pool: the findings database writes
there, and a slow receiver must not take its place.

The URL is a secret. It is handed to `urllib` and to nothing else: no message here quotes it, nor
the text of an exception that might.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import queue
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Final

from frd import __version__
from frd.config import NotifyTarget, checked_url
from frd.errors import ConfigError
from frd.model import Finding, FindingEvent
from frd.service.findings.notices import Choice, News, body

MAX_QUEUED: Final = 256
"""Messages that wait for one target."""
GIVE_UP_AFTER_S: Final = 3600.0
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_STOP_WITHIN_S: Final = 3.0
"""For what is in the queues when the service ends."""
_MAX_FILE_BYTES: Final = 64 * 1024
_TRY_AGAIN: Final = (408, 425, 429)

log = logging.getLogger(__name__)


class Result(StrEnum):
    SENT = "sent"
    FAILED = "failed"
    """A try that is repeated."""
    REFUSED = "refused"
    """The receiver will not take this message; it is not repeated."""
    DROPPED = "dropped"
    """The queue was full, the message too old, or the service ended."""


class _Refused(Exception):
    """It makes no sense to try again; says why."""


class _Failed(Exception):
    """Try again; says why."""


@dataclass(frozen=True, slots=True)
class _Message:
    content: bytes
    since_s: float
    """Of the monotonic clock."""


class Notifier:
    """All targets. `own_url` says where the service's HTTP listens, once it does.

    Raises:
        ConfigError: from the constructor and from `adopt`, when a file cannot be used.
    """

    def __init__(
        self,
        targets: Sequence[NotifyTarget],
        own_url: Callable[[], str],
        *,
        first_pause_s: float = _FIRST_PAUSE_S,
    ) -> None:
        self.results: Counter[tuple[str, Result]] = Counter()
        """By target."""
        self._own_url = own_url
        self._first_pause_s = first_pause_s
        self._news = News()
        for target in targets:
            _check_files(target)
        self._lines = [self._line(target, ()) for target in targets]

    def take_up(self, known: Sequence[Finding]) -> None:
        """`known` were open when the service started: their opening is no news."""
        self._news = News(known)
        for line in self._lines:
            line.choice = Choice(line.target, known)

    def see(self, events: Iterable[FindingEvent]) -> None:
        """Queue messages for changes; does not block."""
        for event in events:
            notices = self._news.of(event)
            for line in self._lines:
                if (notice := line.choice.of(notices)) is not None:
                    line.put(body(notice, line.target, self._own_url()))

    def adopt(self, targets: Sequence[NotifyTarget]) -> None:
        """Go on with these targets. One that has not changed keeps its queue; what waits for one
        that has changed or is gone is dropped."""
        for target in targets:
            _check_files(target)
        kept = {line.target: line for line in self._lines if line.target in targets}
        for line in self._lines:
            if line.target not in kept:
                line.stop()
        self._lines = [kept.get(target) or self._line(target, ()) for target in targets]

    def counted(self) -> Mapping[tuple[str, str], int]:
        """Results by target and result, with zeros for what has not happened."""
        zeros = {(line.target.name, result.value): 0 for line in self._lines for result in Result}
        return zeros | {(name, result.value): n for (name, result), n in list(self.results.items())}

    def close(self) -> None:
        """Give what is queued a few seconds, then end. For a worker thread."""
        for line in self._lines:
            line.stop(when_empty=True)
        deadline = time.monotonic() + _STOP_WITHIN_S
        for line in self._lines:
            line.thread.join(max(0.0, deadline - time.monotonic()))
            line.stop()

    def _line(self, target: NotifyTarget, known: Sequence[Finding]) -> _Line:
        return _Line(target, Choice(target, known), self.results, self._first_pause_s)


class _Line:
    """One target: its queue, and the thread that empties it."""

    def __init__(
        self,
        target: NotifyTarget,
        choice: Choice,
        results: Counter[tuple[str, Result]],
        first_pause_s: float,
    ) -> None:
        self.target = target
        self.choice = choice
        self._results = results
        self._first_pause_s = first_pause_s
        self._queue: queue.SimpleQueue[_Message | None] = queue.SimpleQueue()
        """None: nothing more will come."""
        self._stopping = threading.Event()
        self._counting = threading.Lock()
        self._is_failing = False
        # A daemon: a receiver that does not answer must not keep the process from ending.
        self.thread = threading.Thread(target=self._run, name=f"notify-{target.name}", daemon=True)
        self.thread.start()

    def put(self, content: bytes) -> None:
        while self._queue.qsize() >= MAX_QUEUED:
            with contextlib.suppress(queue.Empty):
                self._queue.get_nowait()
                self._count(Result.DROPPED)
        self._queue.put(_Message(content, time.monotonic()))

    def stop(self, *, when_empty: bool = False) -> None:
        if not when_empty:
            self._stopping.set()
        self._queue.put(None)

    def _run(self) -> None:
        while (message := self._queue.get()) is not None:
            self._deliver(message)

    def _deliver(self, message: _Message) -> None:
        """Until the receiver has taken or refused it, or it is no longer worth a try."""
        pause_s = self._first_pause_s
        while not (self._stopping.is_set() or _is_old(message)):
            result, why, wait_s = self._try(message)
            self._count(result)
            self._report(result, why)
            if result is not Result.FAILED:
                return
            self._stopping.wait(max(pause_s, wait_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._count(Result.DROPPED)

    def _try(self, message: _Message) -> tuple[Result, str, float]:
        """What came of it, why, and how long the receiver asks to be left alone."""
        try:
            _post(self.target, message.content)
        except _Refused as error:
            return Result.REFUSED, str(error), 0.0
        except _Failed as error:
            wait_s = error.args[1] if len(error.args) > 1 else 0.0
            return Result.FAILED, str(error.args[0]), wait_s
        except Exception as error:  # its text may hold the URL
            return Result.FAILED, type(error).__name__, 0.0
        return Result.SENT, "", 0.0

    def _report(self, result: Result, why: str) -> None:
        """Log when a target stops accepting messages and when it accepts them again."""
        name = self.target.name
        match result:
            case Result.SENT:
                if self._is_failing:
                    log.info("notify %s: takes messages again", name)
                self._is_failing = False
            case Result.REFUSED:
                log.warning("notify %s: message refused: %s", name, why)
            case _:
                if not self._is_failing:
                    log.warning("notify %s: not delivered: %s: trying again", name, why)
                self._is_failing = True

    def _count(self, result: Result) -> None:
        with self._counting:  # `put` counts on another thread
            self._results[self.target.name, result] += 1


def _is_old(message: _Message) -> bool:
    return time.monotonic() - message.since_s > GIVE_UP_AFTER_S


# -- one request ---------------------------------------------------------------------------------


class _StaysPut(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the finding is only for the configured receiver."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        fp.close()
        raise _Refused(f"HTTP {code}: redirects are not followed")


def _post(target: NotifyTarget, content: bytes) -> None:
    try:
        url, headers = _url(target), _headers(target)
    except ConfigError as error:
        raise _Failed(str(error)) from None
    headers |= {"Content-Type": "application/json", "User-Agent": f"frd/{__version__}"}
    request = urllib.request.Request(url, content, headers, method="POST")
    # A proxy of the environment would read what is not encrypted, the URL included.
    proxies = urllib.request.getproxies() if url.startswith("https:") else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies), _StaysPut())
    try:
        with opener.open(request, timeout=target.timeout_s):
            return
    except urllib.error.HTTPError as error:
        with error:
            if error.code >= 500 or error.code in _TRY_AGAIN:
                raise _Failed(f"HTTP {error.code}", _retry_after(error.headers)) from None
            raise _Refused(f"HTTP {error.code}") from None
    except urllib.error.URLError as error:
        why: Any = error.reason
        text = why.strerror if isinstance(why, OSError) and why.strerror else type(why).__name__
        raise _Failed(text) from None
    except TimeoutError:
        raise _Failed("no answer in time") from None


def _retry_after(headers: Any) -> float:
    try:
        return min(max(float(headers.get("Retry-After", 0)), 0.0), 300.0)
    except ValueError:  # a date, which is not used with 429
        return 0.0


def _check_files(target: NotifyTarget) -> None:
    _url(target)
    _headers(target)


def _url(target: NotifyTarget) -> str:
    if target.url_file is None:
        return target.url
    key = f"notify {target.name}: url_file: {target.url_file}"
    url = _read(key, target.url_file).strip().partition("\n")[0].strip()
    checked_url(key, url)
    return url


def _headers(target: NotifyTarget) -> dict[str, str]:
    if target.headers_file is None:
        return {}
    key = f"notify {target.name}: headers_file: {target.headers_file}"
    found = {}
    for number, line in enumerate(_read(key, target.headers_file).splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, value = line.partition(":")
        is_name = name.strip().replace("-", "").isalnum() and name.isascii()
        if not (colon and is_name and value.strip().isprintable() and value.isascii()):
            raise ConfigError(f"{key}: line {number}: write NAME: VALUE")
        found[name.strip()] = value.strip()
    return found


def _read(key: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES).decode()
    except OSError as error:
        raise ConfigError(f"{key}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{key}: not UTF-8") from None
