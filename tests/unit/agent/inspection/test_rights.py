"""What is said of a process that the agent may not read: the missing right, and nothing else."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from frd.model import Certainty, WaitKind
from frd_agent.inspection.reading.rights import missing_right
from tests.world.suspects import inspect, of_kind, suspect

NOBODY = 65_534
SYS_PTRACE, DAC_READ_SEARCH = 19, 2
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def only_capabilities(*kept: int) -> Iterator[None]:
    """This thread, of root, has only these effective capabilities."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    before, after = (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()
    if os.geteuid() != 0:
        pytest.skip("only root can give up capabilities and take them again")
    _LIBC.capget(header, before)
    ctypes.memmove(after, before, ctypes.sizeof(before))
    after[0] = sum(1 << number for number in kept) & before[1]
    after[3] = 0
    assert _LIBC.capset(header, after) == 0
    try:
        yield
    finally:
        assert _LIBC.capset(header, before) == 0


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process of another user."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    process = subprocess.Popen(["sleep", "300"], user=NOBODY)
    yield process.pid
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("kept", "missing"),
    [
        ((), "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"),
        ((SYS_PTRACE,), "CAP_DAC_READ_SEARCH"),
        ((DAC_READ_SEARCH,), "CAP_SYS_PTRACE"),
    ],
)
def test_another_user(stranger: int, kept: tuple[int, ...], missing: str) -> None:
    """The agent needs both capabilities for a process of another user."""
    with only_capabilities(*kept):
        found = inspect(stranger)
    assert (found.kind, found.certainty) == (WaitKind.NOT_ALLOWED, Certainty.UNKNOWN)
    assert found.says == (
        f"the agent (uid 0) may not read a process of uid {NOBODY}: "
        f"run the agent as uid {NOBODY}, or give it {missing}"
    )
    assert (found.what, found.holder, found.rest) == ("", None, "")


def test_another_group() -> None:
    """The kernel requires the same group, too: a container may have its own runAsGroup."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another group")
    with subprocess.Popen(["sleep", "300"], group=4000) as process:
        with only_capabilities():
            found = inspect(process.pid)
        process.kill()
    assert found.kind is WaitKind.NOT_ALLOWED
    assert found.says == (
        "the agent (gid 0) may not read a process of gid 4000: run the agent with that group "
        "(runAsGroup in Kubernetes), or give it CAP_SYS_PTRACE"
    )


def test_a_process_that_is_not_dumpable() -> None:
    """A process of the same user may protect itself."""
    program = """
        import ctypes, time
        ctypes.CDLL(None).prctl(4, 0)
        print("ready", flush=True)
        time.sleep(300)
    """
    with suspect(program) as rank, only_capabilities():
        found = inspect(rank.pid)
    assert found.kind is WaitKind.NOT_ALLOWED
    assert found.says.endswith("give the agent CAP_SYS_PTRACE")


def test_what_needs_no_right(stranger: int) -> None:
    """With both capabilities everything is seen of a process of another user. If it is stopped,
    that is seen without them, whatever it would do."""
    with only_capabilities(SYS_PTRACE, DAC_READ_SEARCH):
        assert inspect(stranger).kind is WaitKind.SLEEP
    os.kill(stranger, 19)
    with only_capabilities():
        assert inspect(stranger, enough=of_kind(WaitKind.STOPPED)).certainty is Certainty.SEEN


def test_a_kernel_with_yama(proc_files: Path) -> None:
    """A process of the same user: who may read it is said with the setting's value."""
    (proc_files / "sys/kernel/yama").mkdir(parents=True)
    (proc_files / "sys/kernel/yama/ptrace_scope").write_text("1\n")
    (proc_files / "7").mkdir()
    uid, gid = os.geteuid(), os.getegid()
    (proc_files / "7/status").write_text(f"Uid:\t{uid} {uid}\nGid:\t{gid} {gid} {gid}\n")
    assert missing_right(7) == (
        f"the agent (uid {uid}) may not read this process of the same user: "
        "kernel.yama.ptrace_scope is 1: start the job with `frd-agent exec --allow-ptrace`, set it "
        "to 0, or give the agent CAP_SYS_PTRACE"
    )
