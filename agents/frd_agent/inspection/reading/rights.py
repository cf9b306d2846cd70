"""Why this process may not read another one, and what would allow it."""

from __future__ import annotations

import os
from typing import Final

from frd_agent.proc import capabilities, ptrace_scope, status_line

_DAC_OVERRIDE: Final = 1
_DAC_READ_SEARCH: Final = 2
_SYS_PTRACE: Final = 19


def yama_advice() -> str:
    """For people: what lets the agent read a process of the same user; empty if Yama does not
    prevent it."""
    scope = ptrace_scope()
    match scope:
        case 0:
            return ""
        case 1:
            how = (
                "start the job with `frd-agent exec --allow-ptrace`, set it to 0, or give the "
                "agent CAP_SYS_PTRACE"
            )
        case 2:
            how = "set it to 0, or give the agent CAP_SYS_PTRACE"
        case _:
            how = "only a restart of the machine lowers it"
    return f"kernel.yama.ptrace_scope is {scope}: {how}"


def missing_right(pid: int) -> str:
    """For people, if the blocked call of `pid` may not be read."""
    users, groups = (status_line(pid, name) for name in ("Uid", "Gid"))
    uid, own = int(users[1]) if users else None, os.geteuid()
    held = capabilities("self", "CapEff")
    lacks = []
    if not held >> _SYS_PTRACE & 1:
        lacks.append("CAP_SYS_PTRACE")
    if own != uid and not held & (1 << _DAC_READ_SEARCH | 1 << _DAC_OVERRIDE):
        lacks.append("CAP_DAC_READ_SEARCH")
    give = " and ".join(lacks)
    if uid is None:
        return f"the agent (uid {own}) may not read it" + (
            f": give the agent {give}" if give else ""
        )
    if own != uid:
        return (
            f"the agent (uid {own}) may not read a process of uid {uid}: "
            f"run the agent as uid {uid}" + (f", or give it {give}" if give else "")
        )
    if give and {*groups[:3]} != {str(os.getegid())}:
        return (
            f"the agent (gid {os.getegid()}) may not read a process of gid {groups[1]}: run the "
            f"agent with that group (runAsGroup in Kubernetes), or give it {give}"
        )
    if give and (advice := yama_advice()):
        return f"the agent (uid {own}) may not read this process of the same user: {advice}"
    if give:
        return (
            f"the agent (uid {own}) may not read this process of the same user, which has more "
            f"capabilities or is not dumpable: give the agent {give}"
        )
    return "this kernel, or a security module, does not show its system calls"
