"""Mistakes that are more than one changed operator: whole functions, as they must not be written.

Each takes the place of a function of frd and is compiled as if it stood in that function's module,
whose names it uses.
"""

# ruff: noqa: F821  names of the other module
# mypy: ignore-errors

from __future__ import annotations


async def store_after_reading_again(self, cell, write):
    """`JetStreamCells._store`: a refused owner reads the claim, and goes on with its number."""
    claims = f"{self._prefix}c.{cell:02}"
    while True:
        headers = {
            "Nats-Expected-Stream": self._stream,
            "Nats-Expected-Last-Subject-Sequence": str(write.claim),
            "Nats-Expected-Last-Subject-Sequence-Subject": claims,
        }
        try:
            return (await self._connection.publish(write.subject, write.data, headers)).number
        except Refused:
            claim = await get_value(self._connection, self._stream, claims)
            write = write._replace(claim=claim.revision if claim else 0)
        except (Unanswered, Absent) as error:
            raise unavailable(self._stream, error) from None


def observe_by_clock(self, heartbeats):
    """`Ownership._observe`: a replica is silent by the clock, and not by our own heartbeats."""
    now = __import__("asyncio").get_running_loop().time()
    changed_at = self.__dict__.setdefault("_changed_at", {})
    for name in self._others.keys() - heartbeats.keys():
        del self._others[name]
    for name, heartbeat in heartbeats.items():
        if name == self._me:
            continue
        seen = self._others.get(name)
        if seen is None or seen.heartbeat.revision != heartbeat.revision:
            self._others[name], changed_at[name] = _Seen(heartbeat), now
        else:
            seen.silent = int((now - changed_at[name]) / 0.5)
