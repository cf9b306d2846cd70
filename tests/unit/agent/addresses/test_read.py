"""What the agent reads of the process of a rank, of real processes and of the files of others."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec
import pytest

from frd.errors import ConfigError
from frd.model import Address
from frd_agent.addresses.read import Addresses, Stderr, _read
from frd_agent.config import load
from frd_agent.ranks.tap_files import TapIdentity
from tests.world.run_dir import NOBODY, identity, process_of

SAID = msgspec.convert(identity(), TapIdentity)
ID = "0123456789abcdef" * 4


@contextmanager
def sleeping(
    *words: str, env: Mapping[str, str] = {}, stderr: IO[bytes] | int | None = None
) -> Iterator[int]:
    """The pid of a process that runs."""
    code = "import time; print('ready', flush=True); time.sleep(300)"
    with subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, **env},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def test_a_real_process(tmp_path: Path) -> None:
    """Its command line without secrets, its user, the job of Slurm, and where its stderr goes;
    nothing of the rest of its environment."""
    log = tmp_path / "rank1.err"
    env = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "WANDB_API_KEY": "hidden"}
    with log.open("wb") as stderr, sleeping("--token", "hidden", env=env, stderr=stderr) as pid:
        address, seen = Addresses().of(process_of(pid, os.getuid()), SAID)
    assert address is not None
    assert seen is not None
    assert (address.pid, address.user) == (pid, pwd.getpwuid(os.getuid()).pw_name)
    assert (address.slurm_job, address.slurm_step) == ("4711", "0")
    assert address.command.startswith(sys.executable)
    assert address.command.endswith(" --token REDACTED")
    assert "hidden" not in repr(address)
    assert (address.log, seen.path, seen.has_path) == (str(log), str(log), True)
    assert seen.inode in (0, log.stat().st_ino)


def test_a_process_of_another_user_or_none() -> None:
    """The number of a process that is not the rank's, or is gone, is not an address."""
    with sleeping() as pid:
        assert Addresses().of(process_of(pid, os.getuid() + 1), SAID) == (None, None)
        process = process_of(pid, os.getuid())
    assert Addresses().of(process, SAID) == (None, None)


def test_a_long_command_line_is_cut() -> None:
    """After its secrets were blanked; a word of which only a part is read is left out."""
    for words, end in ((["x" * 1_000], "x"), (["s" * 5_000], "(300)'")):
        with sleeping(*words) as pid:
            address, _ = Addresses().of(process_of(pid), SAID)
        assert address is not None
        assert len(address.command) <= 300
        assert address.command.endswith(end)


def test_an_unknown_user_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container without the site's directory."""
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    with sleeping() as pid:
        address, _ = Addresses().of(process_of(pid), SAID)
    assert address is not None
    assert address.user == str(os.getuid())


def test_the_configured_log() -> None:
    """Its parts are those of the rank."""
    addresses = Addresses("/logs/{job}/{rank}-{local_rank}.{node}")
    assert addresses.configured(SAID) == "/logs/j/1-1.n1"
    assert addresses.configured(msgspec.structs.replace(SAID, job="a..b")) == "/logs/a..b/1-1.n1"
    for job in ("../etc", ".."):  # a job names itself
        assert addresses.configured(msgspec.structs.replace(SAID, job=job)) == ""
    with sleeping() as pid:
        address, _ = addresses.of(process_of(pid), SAID)
    assert address is not None
    assert address.log == "/logs/j/1-1.n1"


@pytest.mark.parametrize("path", ["logs/{rank}", "/logs/{pid}", "/logs/{rank", "/{rank!r}", "/{}"])
def test_a_path_that_cannot_be_used(path: str) -> None:
    """The agent does not start."""
    with pytest.raises(ConfigError, match=r"^log_path: .*: write an absolute path"):
        load(None, {"log_path": path})
    assert load(None, {"log_path": "/logs/{job}/{rank}.err"}).log_path == "/logs/{job}/{rank}.err"


def test_where_stderr_is_no_file() -> None:
    """A terminal, a pipe, and nothing."""
    for link in ("/dev/pts/0", "/dev/null", "pipe:[4711]", "socket:[1]", ""):
        assert not Stderr(0, 0, link).path
    assert Stderr(0, 0, "/dev/shm/rank1.err").path == "/dev/shm/rank1.err"


# -- as /proc shows other processes ------------------------------------------------------------


@pytest.fixture
def made(proc_files: Path) -> Callable[..., Address]:
    """The address of a process whose files are these."""

    def make(**files: bytes) -> Address:
        at = proc_files / "7"
        at.mkdir(exist_ok=True)
        (at / "status").write_text("Uid:\t5\t5\t5\t5\nGid:\t6\t6\t6\t6\n")
        for name, content in files.items():
            (at / name).write_bytes(content)
        return _read(7, "n1")[0]

    return make


@pytest.mark.parametrize(
    "line",
    [
        f"0::/system.slice/docker-{ID}.scope",
        f"12:pids:/docker/{ID}",
        f"1:name=systemd:/kubepods/burstable/pod1234/{ID}",
        f"0::/kubepods.slice/kubepods-pod12.slice/cri-containerd-{ID}.scope",
        f"0::/kubepods.slice/crio-{ID}.scope",
        f"0::/machine.slice/libpod-{ID}.scope/container",
        f"0::/docker/{'f' * 64}/docker/{ID}",
    ],
)
def test_the_container(made: Callable[..., Address], line: str) -> None:
    """Of docker, containerd, CRI-O and podman, by either version of cgroups; the innermost one."""
    assert made(cgroup=line.encode()).container == ID


def test_no_container(made: Callable[..., Address]) -> None:
    """A session of a login, and the root of a cgroup namespace."""
    assert made(cgroup=b"0::/user.slice/user-1000.slice/session-2.scope").container == ""
    assert made(cgroup=b"0::/").container == ""


def pod(**variables: str) -> bytes:
    return b"\0".join(f"{name}={value}".encode() for name, value in variables.items())


def test_the_pod(made: Callable[..., Address], proc_files: Path) -> None:
    """By its own variables, or by its host's name and the files of its service account; the name
    of the node, which a pod in its network has, is not one."""
    given = made(environ=pod(POD_NAME="train-0", POD_NAMESPACE="research"))
    assert (given.namespace, given.pod) == ("research", "train-0")
    assert made(environ=pod(HOSTNAME="train-0")).pod == ""
    cluster = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert made(environ=pod(HOSTNAME="n1", **cluster)).pod == ""
    root = proc_files / "7/root"
    account = root / "run/secrets/kubernetes.io/serviceaccount"
    (account / "..data").mkdir(parents=True)
    (root / "var").mkdir()
    (root / "var/run").symlink_to("/run")
    (account / "..data/namespace").write_text("research")
    found = made(environ=pod(HOSTNAME="train-0", **cluster))
    assert (found.namespace, found.pod) == ("research", "train-0")
    (account / "..data/namespace").unlink()
    (account / "..data/namespace").symlink_to("/etc/hostname")
    assert made(environ=pod(HOSTNAME="train-0", **cluster)).namespace == ""


def test_values_of_another_form_are_left_out(made: Callable[..., Address]) -> None:
    """The job writes its environment: nothing in it becomes an option or a command."""
    hostile = pod(SLURM_JOB_ID="1; reboot", SLURM_STEP_ID="--all", POD_NAME="$(reboot)")
    found = made(environ=hostile + b"\0POD_NAMESPACE=\xff\0=\0no pair")
    assert found == Address(pid=7)


def test_a_command_line_of_bytes(made: Callable[..., Address]) -> None:
    """What is no UTF-8 can be sent, too."""
    found = made(cmdline=b"python\0\xff\xfe\0--password\0\xff\0\0\0")
    assert found.command.encode()
    assert found.command.endswith(" --password REDACTED")


def test_no_process() -> None:
    """It ended while it was read."""
    with pytest.raises(LookupError):
        _read(NOBODY, "n1")
