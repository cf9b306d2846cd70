"""Sends findings to the configured webhooks without delaying the evaluation.

Each target has its own thread and queue, so a receiver that is slow or down delays no other target;
`see` only puts messages into queues. A queue is bounded and drops its oldest message. A message is
repeated until the receiver accepts it, refuses it, or an hour has passed; the pauses grow to a
minute. The threads are not those of asyncio's pool, because the findings database writes there and
must not wait for a slow receiver.

Each message is delivered at least once: until it is settled (accepted, refused or dropped), it is
owed. The findings database keeps what is owed, and the next process goes on with it. Nothing here
waits for that database.

The URL is a secret: only `urllib` gets it. No message contains it, nor the text of an exception
that might.
"""

from __future__ import annotations

import contextlib
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
from typing import Any, Final

from frd import __version__
from frd.config import NotifyTarget, checked_url
from frd.credentials import read_credential
from frd.errors import ConfigError
from frd.model import Finding, FindingEvent
from frd.service.findings.notices import Choice, News, body
from frd.store.findings import Owed

MAX_QUEUED: Final = 256
"""Messages that wait for one target."""
GIVE_UP_AFTER_S: Final = 3600.0
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_STOP_WITHIN_S: Final = 3.0
"""For what is in the queues when the service ends."""
_TRY_AGAIN: Final = (408, 425, 429)

log = logging.getLogger(__name__)


class Result(StrEnum):
    SENT = "sent"
    FAILED = "failed"
    """The request is repeated."""
    REFUSED = "refused"
    """The receiver refuses this message; it is not repeated."""
    DROPPED = "dropped"
    """The queue was full, the message too old, or its target is configured no more."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Of one request."""

    result: Result
    why: str = ""
    wait_s: float = 0.0
    """How long the receiver asks not to be called again."""


class Notifier:
    """All targets. `url` says where people open the service, once it listens.

    With `has_pages`, messages link to the page of the finding.

    Raises:
        ConfigError: from the constructor and from `adopt`, when a file cannot be used.
    """

    def __init__(
        self,
        targets: Sequence[NotifyTarget],
        url: Callable[[], str],
        *,
        has_pages: bool = True,
        first_pause_s: float = _FIRST_PAUSE_S,
    ) -> None:
        self._results: Counter[tuple[str, Result]] = Counter()
        """By name of the target."""
        self._url = url
        self._has_pages = has_pages
        self._first_pause_s = first_pause_s
        self._news = News()
        self._is_closed = False
        self._ready: dict[str, list[tuple[_Sender, Owed]]] = {}
        """Messages whose finding is not published yet, by its id."""
        self._owed: dict[tuple[str, str], Owed] = {}
        """By target and key. All threads use it, in single steps."""
        for target in targets:
            _check_files(target)
        self._senders = [self._sender(target) for target in targets]

    def take_up(self, known: Sequence[Finding]) -> None:
        """`known` were open when the service started, or took their cell over: their opening is no
        news."""
        self._news.know(known)
        for sender in self._senders:
            sender.choice.know(known)

    def forget(self, left: Sequence[Finding]) -> None:
        """`left` are open, and their cell is no longer this process's."""
        for finding in left:
            for _, message in self._ready.pop(finding.id, ()):
                self._settle(message)
        self._news.forget(left)
        for sender in self._senders:
            sender.choice.forget(left)

    def resume(self, owed: Iterable[Owed]) -> None:
        """Go on with what an earlier process owed."""
        senders = {sender.target.name: sender for sender in self._senders}
        for message in owed:
            if (sender := senders.get(message.target)) is not None:
                self._owed[message.target, message.key] = message
                sender.put(message)
            else:
                self._results[message.target, Result.DROPPED] += 1

    def prepare(self, events: Iterable[FindingEvent]) -> None:
        """Make the messages for changes, which are owed from now on; `see` sends them."""
        for event in events:
            notices, finding = self._news.of(event), event.finding.id
            for sender in self._senders:
                if (notice := sender.choice.of(notices)) is not None:
                    url, key = self._url(), f"{finding}-{notice.event}"
                    content = body(notice, sender.target, url, has_pages=self._has_pages)
                    message = Owed(sender.target.name, key, time.time_ns(), content)
                    self._owed[message.target, key] = message
                    self._ready.setdefault(finding, []).append((sender, message))

    def owed(self) -> list[Owed]:
        """Any thread may call it."""
        return list(self._owed.values())

    def see(self, events: Iterable[FindingEvent]) -> None:
        """Queue the messages for changes that are published; does not block."""
        for event in events:
            for sender, message in self._ready.pop(event.finding.id, ()):
                sender.put(message)

    def adopt(self, targets: Sequence[NotifyTarget]) -> None:
        """Continue with these targets. A target that has not changed keeps its queue; the messages
        of changed and removed targets are dropped."""
        for target in targets:
            _check_files(target)
        kept = {sender.target: sender for sender in self._senders if sender.target in targets}
        for sender in self._senders:
            if sender.target not in kept:
                sender.stop()
        self._senders = [kept.get(target) or self._sender(target) for target in targets]

    def counted(self) -> Mapping[tuple[str, str], int]:
        """Requests by target and result, zeros included."""
        zeros = {
            (sender.target.name, result.value): 0 for sender in self._senders for result in Result
        }
        results = list(self._results.items())  # other threads add to it
        return zeros | {(name, result.value): count for (name, result), count in results}

    def close(self) -> None:
        """Give queued messages a few seconds, then end. For a worker thread."""
        for sender in self._senders:
            sender.stop(when_empty=True)
        deadline = time.monotonic() + _STOP_WITHIN_S
        for sender in self._senders:
            sender.thread.join(max(0.0, deadline - time.monotonic()))
        self._is_closed = True
        for sender in self._senders:
            sender.stop()

    def _sender(self, target: NotifyTarget) -> _Sender:
        return _Sender(target, self._results, self._first_pause_s, self._settle)

    def _settle(self, message: Owed) -> None:
        if not self._is_closed:  # otherwise the next process goes on with it
            self._owed.pop((message.target, message.key), None)


class _Sender:
    """One target: its queue, and the thread that empties it."""

    def __init__(
        self,
        target: NotifyTarget,
        results: Counter[tuple[str, Result]],
        first_pause_s: float,
        settle: Callable[[Owed], None],
    ) -> None:
        self.target = target
        self.choice = Choice(target)
        self._results = results
        self._first_pause_s = first_pause_s
        self._settle = settle
        self._queue: queue.SimpleQueue[tuple[Owed, float] | None] = queue.SimpleQueue()
        """Each with the time of the monotonic clock at which to give up; None ends the thread."""
        self._stopping = threading.Event()
        self._counting = threading.Lock()
        self._is_failing = False
        # A daemon thread: a receiver that does not answer must not delay the end of the process.
        self.thread = threading.Thread(target=self._run, name=f"notify-{target.name}", daemon=True)
        self.thread.start()

    def put(self, message: Owed) -> None:
        while self._queue.qsize() >= MAX_QUEUED:
            with contextlib.suppress(queue.Empty):
                if (oldest := self._queue.get_nowait()) is not None:
                    self._drop(oldest[0])
        age_s = max(time.time_ns() - message.since_ns, 0) / 1e9
        self._queue.put((message, time.monotonic() + GIVE_UP_AFTER_S - age_s))

    def stop(self, *, when_empty: bool = False) -> None:
        if not when_empty:
            self._stopping.set()
        self._queue.put(None)

    def _run(self) -> None:
        while (waiting := self._queue.get()) is not None:
            self._deliver(*waiting)

    def _deliver(self, message: Owed, until_s: float) -> None:
        """Repeat until the receiver accepts or refuses the message, or the message is too old."""
        pause_s = self._first_pause_s
        while not (self._stopping.is_set() or time.monotonic() > until_s):
            outcome = _post(self.target, message)
            self._count(outcome.result)
            self._log(outcome)
            if outcome.result is not Result.FAILED:
                self._settle(message)
                return
            self._stopping.wait(max(pause_s, outcome.wait_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._drop(message)

    def _drop(self, message: Owed) -> None:
        self._count(Result.DROPPED)
        self._settle(message)

    def _log(self, outcome: _Outcome) -> None:
        """Log when a target stops accepting messages and when it accepts them again."""
        name, was_failing = self.target.name, self._is_failing
        if outcome.result is Result.REFUSED:
            log.warning("notify %s: message refused: %s", name, outcome.why)
            return
        self._is_failing = outcome.result is Result.FAILED
        if self._is_failing and not was_failing:
            log.warning("notify %s: not delivered: %s: trying again", name, outcome.why)
        elif was_failing and not self._is_failing:
            log.info("notify %s: takes messages again", name)

    def _count(self, result: Result) -> None:
        with self._counting:  # `put` counts on another thread
            self._results[self.target.name, result] += 1


# -- one request ---------------------------------------------------------------------------------


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects are errors: the finding is only for the configured receiver."""

    def redirect_request(self, *_: object) -> None:
        return None


def _post(target: NotifyTarget, message: Owed) -> _Outcome:
    try:
        url, headers = _url(target), _headers(target)
        headers |= {"Content-Type": "application/json", "User-Agent": f"frd/{__version__}"}
        headers["Idempotency-Key"] = f'"{message.key}"'
        request = urllib.request.Request(url, message.body, headers, method="POST")
        # A proxy of the environment would read what is not encrypted, the URL included.
        proxies = urllib.request.getproxies() if url.startswith("https:") else {}
        opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies), _NoRedirects())
        with opener.open(request, timeout=target.timeout_s):
            return _Outcome(Result.SENT)
    except ConfigError as error:
        return _Outcome(Result.FAILED, str(error))
    except urllib.error.HTTPError as error:
        with error:
            if error.code >= 500 or error.code in _TRY_AGAIN:
                return _Outcome(Result.FAILED, f"HTTP {error.code}", _retry_after(error.headers))
            advice = ": redirects are not followed" if error.code < 400 else ""
            return _Outcome(Result.REFUSED, f"HTTP {error.code}{advice}")
    except urllib.error.URLError as error:
        why: Any = error.reason
        text = why.strerror if isinstance(why, OSError) and why.strerror else type(why).__name__
        return _Outcome(Result.FAILED, text)
    except TimeoutError:
        return _Outcome(Result.FAILED, "no answer in time")
    except Exception as error:  # its text may contain the URL
        return _Outcome(Result.FAILED, type(error).__name__)


def _retry_after(headers: Any) -> float:
    try:
        return min(max(float(headers.get("Retry-After", 0)), 0.0), 300.0)
    except ValueError:  # a date, which is not used with 429
        return 0.0


def _check_files(target: NotifyTarget) -> None:
    _url(target)
    _headers(target)


def _url(target: NotifyTarget) -> str:
    key = f"notify {target.name}: url_file"
    if (text := _text(key, target.url_file)) is None:
        return target.url
    url = text.strip().partition("\n")[0].strip()
    checked_url(f"{key}: {target.url_file}", url)
    return url


def _headers(target: NotifyTarget) -> dict[str, str]:
    key, found = f"notify {target.name}: headers_file", {}
    text = _text(key, target.headers_file) or ""
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, value = line.partition(":")
        is_name = name.strip().replace("-", "").isalnum() and name.isascii()
        if not (colon and is_name and value.strip().isprintable() and value.isascii()):
            raise ConfigError(f"{key}: {target.headers_file}: line {number}: write NAME: VALUE")
        found[name.strip()] = value.strip()
    return found


def _text(key: str, path: Path | None) -> str | None:
    data = read_credential(key, path)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{key}: {path}: not UTF-8") from None
