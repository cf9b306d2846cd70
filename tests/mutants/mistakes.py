"""Mistakes that are more than one changed operator: whole functions, as they must not be written.

Each takes the place of a function of frd and is compiled as if it stood in that function's module,
whose names it uses.
"""

# ruff: noqa: F821  names of the other module
# mypy: ignore-errors

from __future__ import annotations


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
