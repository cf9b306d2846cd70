"""The JSON form of what the suspects of a finding logged last.

The lines are in the dump that was taken when the finding opened, as the agents sent them: they are
text of the job, and of agents that may lie, so they are bounded and cleaned here again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from frd.decodable import decodable
from frd.forms import log_lines
from frd.model import Finding
from frd.store.dumps import DumpStore


@decodable
class _Log(msgspec.Struct):
    path: str
    lines: list[str]
    why: str


@decodable
class _Identity(msgspec.Struct):
    log: _Log


def logs_json(finding: Finding, dumps: DumpStore) -> dict[str, Any]:
    """Reads files."""
    suspects = ((one, _log(dumps, finding.dump or "", one.rank)) for one in finding.suspects)
    ranks = [
        {
            "rank": one.rank,
            "node": one.node,
            "path": "".join(log_lines(log.path)[-1:]),
            "lines": log_lines("\n".join(log.lines)),
            "why": "".join(log_lines(log.why)[-1:]),
        }
        for one, log in suspects
    ]
    return {"ranks": ranks}


def _log(dumps: DumpStore, dump_id: str, rank: int) -> _Log:
    if (said := dumps.identity(dump_id, rank)) is None:
        return _Log("", [], "no dump with it has been taken, or it is evicted")
    try:
        return msgspec.json.decode(said, type=_Identity).log
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Log("", [], "its agent has sent none")
