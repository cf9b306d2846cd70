"""Why this process may not read another one, and what would allow it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from frd_agent.inspection.reading.threads import read_file
from frd_agent.proc import PROC

_DAC_OVERRIDE: Final = 1
_DAC_READ_SEARCH: Final = 2
_SYS_PTRACE: Final = 19


def missing_right(pid: int, proc: Path = PROC) -> str:
    """For people, if the blocked call of `pid` may not be read."""
    uid, own = _uid(pid, proc), os.geteuid()
    capabilities = _own_capabilities(proc)
    lacks = []
    if not capabilities >> _SYS_PTRACE & 1:
        lacks.append("CAP_SYS_PTRACE")
    if own != uid and not capabilities & (1 << _DAC_READ_SEARCH | 1 << _DAC_OVERRIDE):
        lacks.append("CAP_DAC_READ_SEARCH")
    give = " and ".join(lacks)
    if uid is None:
        return (
            f"the agent (uid {own}) may not read it: give the agent {give}"
            if give
            else (f"the agent (uid {own}) may not read it")
        )
    if own != uid:
        return (
            f"the agent (uid {own}) may not read a process of uid {uid}: "
            f"run the agent as uid {uid}" + (f", or give it {give}" if give else "")
        )
    if give:
        return (
            f"the agent (uid {own}) may not read this process of the same user, which has more "
            f"capabilities, is not dumpable, or is protected by Yama: give the agent {give}"
        )
    return "this kernel, or a security module, does not show its system calls"


def _uid(pid: int, proc: Path) -> int | None:
    try:
        status = read_file(f"{proc}/{pid}/status")
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith(b"Uid:"):
            return int(line.split()[2])
    return None


def _own_capabilities(proc: Path) -> int:
    try:
        status = read_file(f"{proc}/self/status")
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith(b"CapEff:"):
            return int(line.split()[1], 16)
    return 0
