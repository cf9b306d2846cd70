"""Whether the kernel's out-of-memory killer was at work where a rank ran.

SIGKILL does not say who sent it. The kernel counts what it kills for want of memory, by cgroup and
for the whole machine, before it sends the signal; so the count when a process has ended, less the
count when it was first seen, speaks of the time between. It does not name the processes.
"""

from __future__ import annotations

from pathlib import Path

from frd_agent.memory.host.cgroup import kills_file, oom_kills

_PROC = Path("/proc")


class OomKills:
    """Kills from now on, in the cgroup of a process, else on its node."""

    def __init__(self, pid: int, proc: Path = _PROC, root: Path | None = None) -> None:
        own = kills_file(pid, proc) if root is None else kills_file(pid, proc, root)
        places = ((own, "in its cgroup"), (proc / "vmstat", "on its node"))
        self._places = [
            (file, where, before)
            for file, where in places
            if file is not None and (before := oom_kills(file)) is not None
        ]

    def text(self) -> str:
        """For people; empty where nobody counts."""
        for file, where, before in self._places:
            if (count := oom_kills(file)) is not None:
                killed = max(count - before, 0)
                what = f"{killed} process{'' if killed == 1 else 'es'}" if killed else "no process"
                during = " while it ran" if killed else ""
                return f"the kernel's out-of-memory killer killed {what} {where}{during}"
        return ""
