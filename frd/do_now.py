"""What to do about a finding: one to three steps, with commands that work when they are pasted.

One table by what a suspect waits for, by reason and by kind; the runbooks are written from it, too.
Commands are lists of arguments and are filled in from the finding alone. A value that has control
characters, or that a program would take for an option, gives no command.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from frd.forms import finding_json, utc_text
from frd.model import Address, AlignedNs, Certainty, Finding, Kind, Reason, Suspect, WaitKind

Case = WaitKind | Reason | Kind
_MOST: Final = 3
_EARLIER_NS: Final = 60_000_000_000
"""The kernel's log is read from this long before the fault."""
_CONTROL: Final = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
_PORT: Final = re.compile(r"\[?([^\[\]]+)\]?:(\d+)")


@dataclass(frozen=True, slots=True)
class Step:
    text: str
    args: tuple[str, ...] = ()
    """Empty: it is only advice."""

    @property
    def command(self) -> str:
        return shlex.join(self.args)


@dataclass(frozen=True, slots=True)
class _Row:
    """A step with names in braces where the finding has values."""

    text: str
    command: str = ""
    place: str = "here"
    """``here``: any shell; ``node``: on the node; ``pod``: on the node, or in the pod."""


_LOGIN: Final = _Row("Log in to the node.", "ssh {node}")
_READ: Final = _Row("Read the evidence.", "frd findings {id}")
_SLURM: Final = _Row("See what Slurm says of the job.", "scontrol show job {slurm_job}")
_STACK: Final = _Row("Read the stacks of all its threads.", "py-spy dump --pid {pid}", "pod")
_RESTART: Final = _Row("Repair what it waits for; if it still waits then, restart the job.")
_FILE: Final = _Row("Does the file answer? Use a shell that you can lose.", "ls -l {path}", "pod")
_MOUNT: Final = _Row("Does the file system answer, and has it space left?", "df -h {mount}", "pod")
_HOLDER: Final = _Row("Look at the process that holds the lock.", "ps -f -p {holder}", "pod")
_LOG: Final = _Row("Read the end of its log.", "tail -n 50 {log}", "pod")
_KERNEL: Final = _Row(
    "Read the kernel's log: out of memory, errors of a GPU (Xid).",
    "journalctl --dmesg --since {since}",
    "node",
)
_STATE: Final = _Row(
    "Is the process stopped, or in a call that cannot be interrupted (D)?",
    "ps -o pid,stat,wchan:32,args -p {pid}",
    "pod",
)
_GPU: Final = _Row("Look for errors of the GPU.", "nvidia-smi -q -d ECC,PERFORMANCE", "pod")
_LEAVE: Final = _Row("Take the node out of the job, and restart it on others.")
_FINDING: Final = _Row("Compare the lines of the ranks.", "frd findings {id}")
_STATUS: Final = _Row("See where each rank is.", "frd status --job {job}")
_AGENTS: Final = _Row("Which agents are missing or late, and why?", "frd status")
_MEMORY: Final = _Row("See which rank uses the memory.", "frd status --job {job} --memory")
_SAVE: Final = _Row("Save a checkpoint while there is time; then restart without the cause.")

TABLE: Final[Mapping[Case, tuple[_Row, ...]]] = {
    WaitKind.FILE_READ: (_FILE, _MOUNT),
    WaitKind.FILE_OPEN: (_FILE, _MOUNT),
    WaitKind.PAGE_FAULT: (_FILE, _MOUNT),
    WaitKind.FILE_WRITE: (_MOUNT, _FILE),
    WaitKind.FILE_SYNC: (_MOUNT, _FILE),
    WaitKind.LOCK_FILE: (
        _HOLDER,
        _Row("End or repair the holder; a lock lives as long as any child that inherited it."),
    ),
    WaitKind.LOCK_SHARED: (_HOLDER, _STACK),
    WaitKind.LOCK_INNER: (
        _STACK,
        _Row("Look for a deadlock of two threads, or a wait for another rank in `work.wait()`."),
    ),
    WaitKind.PIPE_WORKER: (_STACK, _RESTART),
    WaitKind.CHILD: (_STACK, _RESTART),
    WaitKind.SOCKET: (
        _Row("Does the other host answer?", "nc -vz -w 5 {host} {port}", "pod"),
        _Row("See the connections of the process.", "ss -tnp", "pod"),
    ),
    WaitKind.SLEEP: (
        _STACK,
        _Row("It waits on purpose: read the line; it is often a loop that tries again."),
    ),
    WaitKind.ON_CPU: (_STACK, _Row("It computes. If the line stays the same, restart the job.")),
    WaitKind.STOPPED: (
        _Row("Let it go on, unless a debugger holds it.", "kill -CONT {pid}", "node"),
        _Row("If its container is paused, resume that (`docker unpause`)."),
    ),
    WaitKind.ZOMBIE: (_STATE, _Row("It has ended: restart the job.")),
    WaitKind.NOT_ALLOWED: (
        _Row("Give the agent the right that the finding names.", "frd doctor", "node"),
        _STACK,
    ),
    Reason.CPU_STUCK: (_STACK, _RESTART),
    Reason.EXITED: (_SLURM, _LOG, _KERNEL, _Row("Repair the cause, and restart the job.")),
    Reason.UNREACHABLE: (_STATE, _SLURM, _AGENTS),
    Reason.IN_COLLECTIVE_ALONE: (_GPU, _LEAVE),
    Reason.DEVICE_STUCK: (_GPU, _STACK),
    Reason.MISMATCH: (
        _FINDING,
        _Row("Stop the job: results since then are wrong. Repair the program."),
    ),
    Reason.ORDER: (
        _FINDING,
        _Row("Let all ranks enter the groups in one order; then restart the job."),
    ),
    Reason.NETWORK_OR_DEVICE: (
        _Row("Check links, switches and NCCL's logs of the nodes of the group."),
        _Row("Keep what each rank has recorded.", "frd dump --finding {id} -o {id}"),
        _STATUS,
    ),
    Reason.LATE: (
        _Row(
            "Compare clocks and limits with those of another node.",
            "nvidia-smi -q -d PERFORMANCE,CLOCK",
            "pod",
        ),
        _Row("See what the program does while the others wait.", "py-spy dump --pid {pid}", "pod"),
    ),
    Reason.MEMORY: (_MEMORY, _SAVE),
    Kind.RANK_LOST: (
        _Row("Read the logs of the ranks: the earliest error is the cause.", "frd findings {id}"),
    ),
    Kind.STANDSTILL: (
        _STATUS,
        _Row("If what they wait for is slow but works, do nothing; else repair it."),
    ),
    Kind.TELEMETRY_GAP: (
        _AGENTS,
        _Row("Start agents that are gone; read the log of one that cannot connect."),
    ),
    Kind.CLOCK_UNSYNCHRONIZED: (
        _AGENTS,
        _Row("Check the time synchronization of the nodes.", "chronyc tracking"),
    ),
}
"""What to check and what usually helps, the most useful first. `_LOGIN` comes before the first
command of a node, and `_READ` comes first if there is no command."""


def do_now(finding: Finding) -> tuple[Step, ...]:
    """One to three steps."""
    suspect = next(iter(finding.suspects), None)
    address = (suspect.address if suspect is not None else None) or Address()
    return _filled(TABLE[case_of(finding)], _values(finding, suspect, address), address)


def shown_json(finding: Finding) -> dict[str, Any]:
    """A finding as people and programs get it: `finding_json` with what to do."""
    steps = [
        {"text": step.text} | ({"command": step.command, "args": [*step.args]} if step.args else {})
        for step in do_now(finding)
    ]
    return finding_json(finding) | {"do_now": steps}


def case_of(finding: Finding) -> Case:
    if finding.suspects:
        first = finding.suspects[0]
        wait = first.waits_for
        if first.reason in (Reason.CPU_STUCK, Reason.UNREACHABLE) and wait is not None:
            is_known = wait.certainty is not Certainty.UNKNOWN or wait.kind is WaitKind.NOT_ALLOWED
            if wait.kind in TABLE and is_known:
                return wait.kind
        return first.reason
    if finding.kind in TABLE:
        return finding.kind
    if finding.kind in (Kind.MEMORY_SPIKE, Kind.OOM):
        return Reason.MEMORY
    if finding.kind is Kind.STRAGGLER:
        return Reason.LATE
    return Kind.TELEMETRY_GAP if finding.unknown else Reason.NETWORK_OR_DEVICE


def in_general(case: Case) -> tuple[Step, ...]:
    """The steps of a case for a runbook, with ``NODE``, ``PID`` in place of values."""
    rows = (_LOGIN, *TABLE[case])
    names = {name for row in rows for name in re.findall(r"{(\w+)}", row.command)}
    return _filled(TABLE[case], {"id": "ID"} | {name: name.upper() for name in names}, Address())


def _filled(rows: Sequence[_Row], values: Mapping[str, str], address: Address) -> tuple[Step, ...]:
    in_pod = _is_safe(address.pod)
    steps, is_there = [], in_pod
    for row in rows:
        if in_pod and row.place == "node":
            continue
        args = _args(row.command, values)
        if row.command and not args:
            continue
        if row.place != "here" and not is_there:
            login = _args(_LOGIN.command, values)
            steps.append(Step(_LOGIN.text if login else "Log in to the node of the rank.", login))
            is_there = True
        if in_pod and row.place == "pod":
            args = (*_exec(address), *args)
        steps.append(Step(row.text, args))
    if not any(step.args for step in steps):
        steps.insert(0, Step(_READ.text, _args(_READ.command, values)))
    return tuple(steps[:_MOST])


def _exec(address: Address) -> tuple[str, ...]:
    namespace = ("--namespace", address.namespace) if _is_safe(address.namespace) else ()
    return "kubectl", "exec", *namespace, address.pod, "--"


def _args(command: str, values: Mapping[str, str]) -> tuple[str, ...]:
    """Empty if a value is missing."""
    try:
        return tuple(arg.format_map(values) for arg in command.split())
    except KeyError:
        return ()


def _values(finding: Finding, suspect: Suspect | None, address: Address) -> dict[str, str]:
    """What is known, and may be an argument."""
    at = suspect.onset_at if suspect is not None and suspect.onset_at else finding.opened_at
    since = utc_text(AlignedNs(max(0, at - _EARLIER_NS)))
    known = {
        "id": finding.id,
        "job": finding.job,
        "since": f"{since[:10]} {since[11:19]} UTC",
        "node": suspect.node if suspect is not None else "",
        "pid": str(address.pid or ""),
        "log": _path(address.log),
        "slurm_job": address.slurm_job,
    }
    if suspect is not None and (wait := suspect.waits_for) is not None:
        host = _PORT.fullmatch(wait.what)
        known |= {
            "pid": str(wait.pid or address.pid or ""),
            "path": _path(wait.what),
            "mount": _path(wait.mount),
            "holder": str(wait.holder.pid or "") if wait.holder is not None else "",
            **({"host": host[1], "port": host[2]} if host is not None else {}),
        }
    return {name: value for name, value in known.items() if _is_safe(value)}


def _path(path: str) -> str:
    return f"./{path}" if path.startswith("-") else path


def _is_safe(value: str) -> bool:
    """Not empty, no option, no control characters, and not replaced or cut by `clean`."""
    is_whole = "\ufffd" not in value and not value.endswith("…")
    is_clear = not any(unicodedata.category(c) in _CONTROL for c in value)
    return bool(value) and not value.startswith("-") and is_whole and is_clear
