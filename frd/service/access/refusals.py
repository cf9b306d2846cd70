"""What a refused peer causes besides the refusal: a line of the log, and a delay for wrong tokens.

Repeated attempts must not fill the disk: a line a minute for each host and reason. The delay slows
a client that guesses tokens. Only answers to wrong tokens are delayed, so a right token of the same
host (NAT, a proxy) is answered as always, and only so many at a time, so that connections remain.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Final

_QUIET_S: Final = 60.0
_MAX_HOSTS: Final = 1_000
"""Hosts with separate lines in a minute; all others share one."""
_DELAY_S: Final = 1.0
_MAX_DELAYED: Final = 64

log = logging.getLogger(__name__)


class Refusals:
    """`http` counts refused requests and closed connections by reason."""

    def __init__(self) -> None:
        self.http: Counter[str] = Counter()
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}
        """By host and reason: when a line was logged, and the refusals since."""
        self._delayed = asyncio.Semaphore(_MAX_DELAYED)

    def warn(self, host: str, reason: str, text: str) -> None:
        """Log `text`, unless the host was refused for this reason within the last minute."""
        key, now_s = (host, reason), asyncio.get_running_loop().time()
        if key not in self._logged and len(self._logged) >= _MAX_HOSTS:
            quiet_s = now_s - _QUIET_S
            self._logged = {of: last for of, last in self._logged.items() if last[0] > quiet_s}
            key = key if len(self._logged) < _MAX_HOSTS else ("", reason)
        at_s, since = self._logged.get(key, (-_QUIET_S, 0))
        if now_s - at_s < _QUIET_S:
            self._logged[key] = (at_s, since + 1)
            return
        self._logged[key] = (now_s, 0)
        log.warning("%s%s", text, f" ({since} more since the last such line)" if since else "")

    async def no_grant(self, host: str, token: str | None) -> None:
        """An HTTP request has no token, or a wrong one: returns when it is time to answer."""
        self.http["token"] += 1
        if token:
            self.warn(host, "HTTP token", f"HTTP client {host} refused: unknown token")
            await self.delay()

    async def delay(self) -> None:
        """Until the answer to a wrong token may be sent."""
        if not self._delayed.locked():
            async with self._delayed:
                await asyncio.sleep(_DELAY_S)
