"""What to do about a finding: one to three steps, with commands that work when they are pasted.

`table` has them by case; the runbooks are written from it, too.
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

from frd.do_now.table import LOGIN, READ, RUNBOOKS, TABLE, Case, Row
from frd.forms import finding_json, utc_text
from frd.model import Address, AlignedNs, Certainty, Finding, Kind, Reason, Suspect, WaitKind

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


def do_now(finding: Finding) -> tuple[Step, ...]:
    """One to three steps."""
    suspect = next(iter(finding.suspects), None)
    address = (suspect.address if suspect is not None else None) or Address()
    values = _values(finding, suspect, address)
    return _filled(TABLE[case_of(finding)], values, address)[:_MOST]


def shown_json(finding: Finding) -> dict[str, Any]:
    """A finding as people and programs get it: `finding_json` with what to do and its runbook."""
    steps = [
        {"text": step.text} | ({"command": step.command, "args": [*step.args]} if step.args else {})
        for step in do_now(finding)
    ]
    return finding_json(finding) | {"do_now": steps, "runbook": RUNBOOKS[finding.kind]}


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
    rows = (LOGIN, *TABLE[case])
    names = {name for row in rows for name in re.findall(r"{(\w+)}", row.command)}
    return _filled(TABLE[case], {"id": "ID"} | {name: name.upper() for name in names}, Address())


def _filled(rows: Sequence[Row], values: Mapping[str, str], address: Address) -> tuple[Step, ...]:
    in_pod = _is_safe(address.pod)
    steps, is_there = [], in_pod
    for row in rows:
        if in_pod and row.place == "node":
            continue
        args = _args(row.command, values)
        if row.command and not args:
            continue
        if row.place != "here" and not is_there:
            login = _args(LOGIN.command, values)
            steps.append(Step(LOGIN.text if login else "Log in to the node of the rank.", login))
            is_there = True
        if in_pod and row.place == "pod":
            args = (*_exec(address), *args)
        steps.append(Step(row.text, args))
    if not any(step.args for step in steps):
        steps.insert(0, Step(READ.text, _args(READ.command, values)))
    return tuple(steps)


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
