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
    ranks = [
        {"rank": one.rank, "node": one.node, **_log(dumps, finding.dump, one.rank)}
        for one in finding.suspects
    ]
    return {"ranks": ranks}


def _log(dumps: DumpStore, dump_id: str | None, rank: int) -> dict[str, Any]:
    path, lines, why = "", list[str](), "no dump with it has been taken, or it is evicted"
    if dump_id and (said := dumps.identity(dump_id, rank)) is not None:
        try:
            log = msgspec.json.decode(said, type=_Identity).log
            path, lines, why = log.path, log_lines("\n".join(log.lines)), log.why
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            why = "its agent has sent none: is it of an earlier release?"
    path, why = ("".join(log_lines(text)[-1:]) for text in (path, why))
    return {"path": path, "lines": lines, "why": why}
