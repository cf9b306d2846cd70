"""What to do about a finding."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from frd.do_now import do_now, in_general
from frd.do_now.table import TABLE
from frd.model import (
    Address,
    AlignedNs,
    Certainty,
    Confidence,
    Finding,
    FindingState,
    Holder,
    Kind,
    Reason,
    Suspect,
    WaitKind,
    WaitsFor,
)

ADDRESS: Final = Address(13908, log="/logs/rank1.err", slurm_job="4711")
READ: Final = WaitsFor(
    WaitKind.FILE_READ, Certainty.SEEN, "/data/a b.tar", "/data", pid=25037, says="it has been"
)
READ_IT: Final = "frd findings 0123456789abcdef"
STACK: Final = "py-spy dump --pid 13908"
HANG: Final = Finding(
    "0123456789abcdef", Kind.STALL, FindingState.OPEN, "job", 0, AlignedNs(1_700_000_000 * 10**9)
)


def hang(
    reason: Reason = Reason.CPU_STUCK,
    waits: WaitsFor | None = None,
    address: Address | None = ADDRESS,
    node: str = "node7",
) -> Finding:
    one = Suspect(1, node, reason, Confidence.HIGH, "seen", waits_for=waits, address=address)
    return replace(HANG, suspects=(one,))


def commands(finding: Finding) -> list[str]:
    return [step.command for step in do_now(finding) if step.args]


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (hang(waits=READ), ["ssh node7", "ls -l '/data/a b.tar'", "df -h /data"]),
        (hang(waits=replace(READ, certainty=Certainty.UNKNOWN)), ["ssh node7", STACK.replace(
            "13908", "25037")]),
        (hang(), ["ssh node7", STACK]),
        (
            hang(waits=WaitsFor(WaitKind.SOCKET, Certainty.SEEN, "[fe80::1]:443")),
            ["ssh node7", "nc -vz -w 5 fe80::1 443", "ss -tnp"],
        ),
        (
            hang(waits=WaitsFor(WaitKind.LOCK_FILE, Certainty.SEEN, "/l", holder=Holder(991))),
            ["ssh node7", "ps -f -p 991"],
        ),
        (
            hang(Reason.EXITED),
            ["scontrol show job 4711", "ssh node7", "tail -n 50 /logs/rank1.err"],
        ),
        (
            hang(Reason.EXITED, address=None),
            ["ssh node7", "journalctl --dmesg --since '2023-11-14 22:12:20 UTC'"],
        ),
        (hang(Reason.MEMORY), ["frd status --job job --memory"]),
        (hang(node=""), [STACK]),
        (hang(node="-oProxyCommand=x"), [STACK]),
        (hang(node="node\ufffd", address=None), [READ_IT]),
        (
            replace(HANG, reason=Reason.NETWORK_OR_DEVICE),
            ["frd dump --finding 0123456789abcdef -o 0123456789abcdef", "frd status --job job"],
        ),
        (replace(HANG, unknown=(2,)), ["frd status"]),
        (replace(HANG, kind=Kind.STANDSTILL, job="-x"), [READ_IT]),
    ],
)  # fmt: skip
def test_commands(finding: Finding, expected: list[str]) -> None:
    """The most useful first; on the node after the step that leads there; a value that is not
    known, or would be an option, gives no command."""
    assert commands(finding) == expected


def test_in_a_pod() -> None:
    """Commands are executed in the pod, but those with a pid are left out: it may be the node's,
    and another process in the pod."""
    address = replace(ADDRESS, namespace="ml", pod="train-0")
    assert commands(hang(waits=READ, address=address)) == [
        "kubectl exec --namespace ml train-0 -- ls -l '/data/a b.tar'",
        "kubectl exec --namespace ml train-0 -- df -h /data",
    ]
    stopped = WaitsFor(WaitKind.STOPPED, Certainty.SEEN, pid=7)
    held = WaitsFor(WaitKind.LOCK_FILE, Certainty.SEEN, "/l", holder=Holder(991))
    for wait in (None, stopped, held):
        assert commands(hang(waits=wait, address=address)) == [READ_IT]


def test_every_case_has_steps() -> None:
    """Reasons, waits that are known, and kinds without suspects."""
    assert {*Reason, *WaitKind} - {WaitKind.UNKNOWN} <= TABLE.keys()
    for kind in Kind:
        assert do_now(replace(HANG, kind=kind))
    for case in TABLE:
        assert in_general(case)


@pytest.fixture
def stopped() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        yield process.pid
        process.kill()


def test_commands_of_the_node_work(stopped: int, tmp_path: Path) -> None:
    """Pasted into a shell: a stopped process goes on, and its state, a file and its mount are
    shown."""
    odd = tmp_path / "it's $HOME `x`.tar"
    odd.touch()
    read = replace(READ, what=str(odd), mount=str(tmp_path))
    address = Address(stopped)
    for finding in (hang(waits=read), hang(Reason.UNREACHABLE, address=address)):
        for command in commands(finding):
            if not command.startswith(("ssh ", "frd ", "scontrol ")):
                shell = subprocess.run(
                    ["bash", "-c", command], check=True, capture_output=True, text=True
                )
                assert any(name in shell.stdout for name in (odd.name, "Use%", "sleep 600"))
    wait = WaitsFor(WaitKind.STOPPED, Certainty.SEEN, pid=stopped)
    subprocess.run(["bash", "-c", commands(hang(waits=wait))[1]], check=True)
    assert os.waitid(os.P_PID, stopped, os.WCONTINUED) is not None
