"""One request to a webhook, and what came of it.

The URL and PagerDuty's routing key are secrets: only `urllib` gets them. No message in the outbox
and no line of the log contains them, nor the text of an exception that might.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from frd import __version__
from frd.config import NotifyTarget
from frd.config.checks import checked_url
from frd.credentials import read_credential
from frd.errors import ConfigError
from frd.store.findings import Owed

_TRY_AGAIN: Final = (408, 425, 429)
_ROUTING_KEY_CHARS: Final = 32


class Result(StrEnum):
    SENT = "sent"
    FAILED = "failed"
    """The request is repeated."""
    REFUSED = "refused"
    """The receiver refuses this message; it is not repeated."""
    DROPPED = "dropped"
    """The queue was full, the message too old, or its target is configured no more."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one request."""

    result: Result
    why: str
    """What was answered, or why nothing was."""
    wait_s: float = 0.0
    """How long the receiver asks not to be called again."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects are errors: the finding is only for the configured receiver."""

    def redirect_request(self, *_: object) -> None:
        return None


def post(target: NotifyTarget, message: Owed) -> Outcome:
    """Send a message once."""
    try:
        url, headers = _url(target), _headers(target)
        headers |= {"Content-Type": "application/json", "User-Agent": f"frd/{__version__}"}
        headers["Idempotency-Key"] = f'"{message.key}"'
        content = message.body
        if (key := _routing_key(target)) is not None:
            content = json.dumps({**json.loads(content), "routing_key": key}).encode()
        request = urllib.request.Request(url, content, headers, method="POST")
        # A proxy of the environment would read what is not encrypted, the URL included.
        proxies = urllib.request.getproxies() if url.startswith("https:") else {}
        opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies), _NoRedirects())
        with opener.open(request, timeout=target.timeout_s) as answer:
            return Outcome(Result.SENT, f"HTTP {answer.status}")
    except ConfigError as error:
        return Outcome(Result.FAILED, str(error))
    except urllib.error.HTTPError as error:
        with error:
            if error.code >= 500 or error.code in _TRY_AGAIN:
                return Outcome(Result.FAILED, f"HTTP {error.code}", _retry_after(error.headers))
            advice = ": redirects are not followed" if error.code < 400 else ""
            return Outcome(Result.REFUSED, f"HTTP {error.code}{advice}")
    except urllib.error.URLError as error:
        why: Any = error.reason
        text = why.strerror if isinstance(why, OSError) and why.strerror else type(why).__name__
        return Outcome(Result.FAILED, text)
    except TimeoutError:
        return Outcome(Result.FAILED, "no answer in time")
    except Exception as error:  # its text may contain the URL
        return Outcome(Result.FAILED, type(error).__name__)


def _retry_after(headers: Any) -> float:
    try:
        return min(max(float(headers.get("Retry-After", 0)), 0.0), 300.0)
    except ValueError:  # a date, which is not used with 429
        return 0.0


def check_files(target: NotifyTarget) -> None:
    """Raises ConfigError if a file of the target cannot be used."""
    _url(target)
    _headers(target)
    _routing_key(target)


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


def _routing_key(target: NotifyTarget) -> str | None:
    key = f"notify {target.name}: routing_key_file"
    if (text := _text(key, target.routing_key_file)) is None:
        return None
    word = text.strip()
    if not (len(word) == _ROUTING_KEY_CHARS and word.isascii() and word.isalnum()):
        raise ConfigError(
            f"{key}: {target.routing_key_file}: not {_ROUTING_KEY_CHARS} letters and digits: write "
            "the integration key of PagerDuty's Events API v2"
        )
    return word


def _text(key: str, path: Path | None) -> str | None:
    data = read_credential(key, path)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{key}: {path}: not UTF-8") from None
