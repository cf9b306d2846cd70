"""The last lines that a rank wrote to its stderr, or why there are none: see `log_tail`."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Any, Final

from frd.forms import log_lines
from frd_agent.addresses import log_tail
from frd_agent.addresses.read import Stderr, shown
from frd_agent.proc import path_of
from frd_agent.ranks.rank_process import RankProcess
from frd_agent.ranks.stacks.outside import output_of

WITHIN_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Log:
    """Of one rank."""

    process: RankProcess
    seen: Stderr | None
    """As it was when the agent found the process."""
    configured: str
    """Its path by the agent's configuration; empty without one."""

    async def json(self) -> dict[str, Any]:
        """``{"path": "/logs/rank1.err", "lines": [...], "why": ""}``; raises nothing."""
        if (seen := self.seen) is None:
            return no_log("the agent has not seen its process")
        files = [(self.configured, 0, False)] if self.configured else []
        if seen.path and (pid := self.process.readable) is not None:
            files.append((path_of(f"{pid}/fd/2"), seen.inode, True))
        if seen.path and seen.has_path:
            files.append((seen.path, seen.inode, False))
        if not files:
            goes = f"its stderr goes to {seen.link or 'what the agent may not see'}"
            return no_log(f"{goes}: if that ends up in a file, set log_path of the agent")
        return await _tail({"uid": seen.uid, "gid": seen.gid, "files": files})


async def _tail(asked: dict[str, Any]) -> dict[str, Any]:
    command = sys.executable, "-I", "-S", log_tail.__file__, json.dumps(asked)
    try:
        async with asyncio.timeout(WITHIN_S):
            status, out, _ = await output_of(*command, env={})
    except TimeoutError:
        return no_log(f"its file system has not answered within {WITHIN_S:g} s")
    except OSError as error:
        return no_log(f"{sys.executable}: {error.strerror}")
    head, _, data = out.partition(b"\n")
    try:
        found = json.loads(head)
    except ValueError:
        return no_log(f"the process that read it ended with status {status}")
    lines = log_lines(data.decode("utf-8", "replace"))
    return {"path": shown(found["path"]), "lines": lines, "why": shown(found["why"])}


def no_log(why: str) -> dict[str, Any]:
    return {"path": "", "lines": [], "why": why}
