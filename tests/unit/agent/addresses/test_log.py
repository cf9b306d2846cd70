"""The last lines of a rank's stderr, of real processes: also after their death, and never what the
rank's user may not read."""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import msgspec
import pytest

from frd.errors import ConfigError
from frd.forms import log_lines
from frd.model import Address
from frd_agent.addresses import log_tail
from frd_agent.addresses import read as log_module
from frd_agent.addresses.read import Addresses, Log, Stderr, _read
from frd_agent.config import load
from frd_agent.ranks.tap_files import TapIdentity
from tests.world.run_dir import NOBODY, identity, process_of

SAID = msgspec.convert(identity(), TapIdentity)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two users")
USER = 4711


@contextmanager
def rank(
    stderr: IO[bytes] | int,
    *,
    says: str = "",
    uid: int | None = None,
    log_path: str = "",
    within: tuple[str, ...] = (),
) -> Iterator[tuple[subprocess.Popen[bytes], Log]]:
    """A process as the agent found it, after it has written to stderr."""
    code = f"printf '%b' '{says}' >&2; echo ready; exec sleep 300"
    with subprocess.Popen(
        [*within, "/bin/sh", "-c", code],
        stdout=subprocess.PIPE,
        stderr=stderr,
        user=uid,
        group=uid,
        extra_groups=None if uid is None else [],
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        owner = os.geteuid() if uid is None else uid
        addresses, known = Addresses(log_path), process_of(process.pid, owner)
        _, seen = addresses.of(known, SAID)
        try:
            yield process, Log(known, seen, addresses.configured(SAID))
        finally:
            process.kill()


def read(log: Log) -> dict[str, Any]:
    found = asyncio.run(log.json())
    is_late = "has not answered within" in found["why"]  # on a busy machine
    return asyncio.run(log.json()) if is_late else found


def no_file(log: Log) -> str:
    """Why there is none."""
    found = read(log)
    assert (found["path"], found["lines"]) == ("", [])
    return str(found["why"])


def test_while_it_lives_and_after_it_was_killed(tmp_path: Path) -> None:
    """The last 20 lines, without colours, and of a progress bar what it showed last."""
    path = tmp_path / "rank1.err"
    says = "".join(f"line {i}\\n" for i in range(30)) + r"\033[31mKilled\033[0m\n10%\r20%\r\n"
    with path.open("wb") as stderr, rank(stderr, says=says) as (process, log):
        alive = read(log)
        process.kill()
        process.wait()
        dead = read(log)
    lines = [*(f"line {i}" for i in range(12, 30)), "Killed", "20%"]
    assert alive == dead == {"path": str(path), "lines": lines, "why": ""}


def test_only_the_end_of_a_large_log(tmp_path: Path) -> None:
    """Lines without end, and bytes that are no text."""
    path = tmp_path / "rank1.err"
    path.write_bytes(b"\xff" * 1_000_000 + b"\nlast\x07\n")
    with path.open("ab") as stderr, rank(stderr) as (_, log):
        found = read(log)
    assert found["lines"] == ["\ufffd" * 500, "last"]
    assert len(msgspec.json.encode(found)) < 32 * 1024


def test_an_empty_log(tmp_path: Path) -> None:
    """It is read, and there is nothing in it."""
    with (tmp_path / "e").open("wb") as stderr, rank(stderr) as (_, log):
        assert read(log) == {"path": str(tmp_path / "e"), "lines": [], "why": ""}


def test_the_configured_file_comes_first(tmp_path: Path) -> None:
    """stderr goes to a pipe, from which something writes that file; without it, stderr counts."""
    (tmp_path / "j-1.err").write_text("written by another\n")
    with rank(subprocess.PIPE, log_path=f"{tmp_path}/{{job}}-{{rank}}.err") as (process, log):
        assert read(log)["lines"] == ["written by another"]
        process.kill()
        assert read(log)["lines"] == ["written by another"]
        (tmp_path / "j-1.err").unlink()
        assert no_file(log) == f"{tmp_path}/j-1.err: No such file or directory"
    path = tmp_path / "own.err"
    with path.open("wb") as stderr, rank(stderr, says="own", log_path="/no/such") as (_, log):
        assert read(log) == {"path": str(path), "lines": ["own"], "why": ""}


def test_stderr_that_is_no_file(tmp_path: Path) -> None:
    """A pipe, and a device: nothing is opened, so the rank's reader gets every byte."""
    with rank(subprocess.PIPE, says="all of it") as (process, log):
        assert no_file(log).startswith("its stderr goes to pipe:[")
        process.kill()
        assert process.stderr is not None
        assert process.stderr.read() == b"all of it"
    with rank(subprocess.DEVNULL) as (_, log):
        assert no_file(log).startswith("its stderr goes to /dev/null: ")


def test_a_named_pipe_is_not_opened(tmp_path: Path) -> None:
    """Opening it for reading would keep its writer from noticing that its reader is gone."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with path.open("wb", buffering=0) as stderr, rank(stderr) as (_, log):
        assert "no regular file" in no_file(log)
    os.close(reader)


def test_a_file_that_took_its_place(tmp_path: Path) -> None:
    """A link, or another file of that name, is not what the dead rank wrote."""
    path, other = tmp_path / "rank1.err", tmp_path / "other"
    other.write_text("secret")
    with path.open("wb") as stderr, rank(stderr, says="own") as (process, log):
        process.kill()
        process.wait()
        path.rename(tmp_path / "rotated")
        assert "No such file" in no_file(log)
        path.symlink_to(other)
        assert "no regular file" in no_file(log)
        path.unlink()
        path.write_text("of the next attempt")
        assert "replaced by another file" in no_file(log)


@needs_root
def test_a_rank_with_other_mounts(tmp_path: Path) -> None:
    """As in a container, or for an agent that systemd protects: the path may lead to another file
    for the agent, which its inode shows."""
    path = tmp_path / "rank1.err"
    mounts = ("unshare", "--mount")
    with path.open("wb") as stderr, rank(stderr, says="own", within=mounts) as (process, log):
        process.kill()
        process.wait()
        assert read(log)["lines"] == ["own"]
        assert log.seen is not None
        unknown = replace(log.seen, inode=0, has_path=False)
        assert no_file(replace(log, seen=unknown)).startswith("its stderr goes to /")


def test_a_removed_file_of_a_living_rank(tmp_path: Path) -> None:
    """It still writes there."""
    path = tmp_path / "rank1.err"
    with path.open("wb") as stderr, rank(stderr, says="own") as (_, log):
        path.unlink()
        assert read(log)["lines"] == ["own"]


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that every user may enter."""
    with TemporaryDirectory(dir="/tmp") as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path


@needs_root
def test_an_agent_of_root_reads_as_the_user_of_the_rank(open_to_all: Path) -> None:
    """Its own file; and no file that this user cannot read: not one of root that it got opened for
    writing, not one that the configuration leads to, not one in a folder of root."""
    own, secret = open_to_all / "own.err", open_to_all / "root.err"
    own.touch()
    os.chown(own, USER, USER)
    secret.write_text("of root\n")
    secret.chmod(0o600)
    with own.open("ab") as stderr, rank(stderr, says="own", uid=USER) as (process, log):
        assert read(log)["lines"] == ["own"]
        process.kill()
        process.wait()
        assert read(log)["lines"] == ["own"]
    with secret.open("ab") as stderr, rank(stderr, says="more", uid=USER) as (process, log):
        assert "of another user" in no_file(log)
        process.kill()
        process.wait()
        assert "of another user" in no_file(log)
    with rank(subprocess.PIPE, uid=USER, log_path=str(secret)) as (_, log):
        assert no_file(log) == f"{secret}: of another user"
        secret.chmod(0o644)
        assert read(log)["lines"] == ["of root", "more"]
        open_to_all.chmod(0o700)
        assert no_file(log) == f"{secret}: Permission denied"


def test_a_file_system_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader hangs, and not the agent; it is ended."""
    hangs = tmp_path / "hangs.py"
    hangs.write_text("import time; time.sleep(300)")
    monkeypatch.setattr(log_tail, "__file__", str(hangs))
    monkeypatch.setattr(log_module, "WITHIN_S", 0.3)
    with (tmp_path / "e").open("wb") as stderr, rank(stderr) as (_, log):
        began = time.monotonic()
        assert no_file(log) == "its file system has not answered within 0.3 s"
        assert time.monotonic() - began < 5
    monkeypatch.setattr(sys, "executable", "/no/python")
    with (tmp_path / "e").open("wb") as stderr, rank(stderr) as (_, log):
        assert "/no/python" in no_file(log)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a\nb\n\n\n", ["a", "b"]),
        ("\n\n", []),
        ("\x1b]0;title\x07x\x1b[1;31mred\x1b[m\x1b(Bz", ["xredBz"]),
        ("\x1b[", []),
        ("\x1b]0;cut\nTraceback\n\x1bPx\nError", ["", "Traceback", "", "Error"]),
        ("a\tb\x00\x08\u202ec\ud800", ["a       bc"]),
        ("10%\r90%\r\nend\r\n", ["90%", "end"]),
        ("x" * 600, ["x" * 500]),
    ],
)
def test_lines_as_people_see_them(text: str, lines: list[str]) -> None:
    """And once cleaned, they stay: the service cleans what agents have cleaned."""
    assert log_lines(text) == lines
    assert log_lines("\n".join(lines)) == lines


# -- read ------------------------------------------------------------------------------------------
# What the agent reads of the process of a rank, of real processes and of the files of others.


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
