"""The last lines of a rank's stderr, of real processes: also after their death, and never what the
rank's user may not read."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import msgspec
import pytest

from frd.forms import log_lines
from frd_agent.addresses import log_tail
from frd_agent.addresses import read as log_module
from frd_agent.addresses.read import Addresses, Log
from frd_agent.ranks.tap_files import TapIdentity
from tests.world.run_dir import identity, process_of

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
