"""Ranks and agents in different pid namespaces: a number there is another process here."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from frd_agent import proc, tap
from frd_agent.ranks.rank_process import RankProcess
from frd_agent.ranks.tap_files import TapIdentity
from tests.world.run_dir import TOKEN, identity

APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
RANK = """
import json, os, socket, sys
from frd_agent import tap
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen(8)
print(json.dumps(tap.identity_of({}, "0123456789ab", None)), flush=True)
sys.stdin.read()
"""
AGENT = """
import asyncio, json, os, sys
import msgspec
from frd_agent.ranks.rank_process import RankProcess
from frd_agent.ranks.stacks.reader import StackReader
from frd_agent.ranks.tap_files import TapIdentity
found = []
for identity, socket in json.loads(sys.argv[1]):
    process = RankProcess(msgspec.convert(identity, TapIdentity), socket)
    stack = asyncio.run(StackReader(process, None).read())
    found.append([process.pid, process.is_hidden, process.look(suspicious=True).value, stack.text])
print(json.dumps(found))
"""


def _can_part() -> bool:
    with open(os.devnull, "w") as nothing:
        try:
            return not subprocess.call([*APART, "true"], stdout=nothing, stderr=nothing)
        except OSError:
            return False


pytestmark = pytest.mark.skipif(not _can_part(), reason="no pid namespace can be made")


@contextmanager
def rank(path: Path, *prefix: str) -> Iterator[dict[str, Any]]:
    """A process that listens, and what its tap would publish of it."""
    command = [*prefix, sys.executable, "-c", RANK, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdin
        said = json.loads(process.stdout.readline())
        yield identity() | {name: said[name] for name in ("pid", "start_ticks", "pid_namespace")}
        process.stdin.close()


def converted(said: dict[str, Any]) -> TapIdentity:
    return msgspec.convert(said, TapIdentity)


def start_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_the_number_is_another_one_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent of the whole node, as with hostPID: the socket's peer, or NSpid, is the process. It
    is of the user whose file names it."""
    path = tmp_path / f"{TOKEN}.sock"
    monkeypatch.setattr(proc, "_LATELY_S", 0.0)  # this rank is younger than any other
    with rank(path, *APART) as said:
        assert said["pid"] < 10
        assert said["pid_namespace"] != tap.pid_namespace()
        for address in (str(path), None):
            pinned = RankProcess(converted(said), address).pinned
            assert pinned is not None
            assert pinned.pid != said["pid"]
            assert start_of(pinned.pid) == said["start_ticks"]
            pinned.close()
            for uid in (os.geteuid(), os.geteuid() + 1):
                found = RankProcess(converted(said), address, owner=uid)
                assert (found.pinned is not None) == (uid == os.geteuid())
                found.close()


def test_out_of_sight_it_is_no_process(tmp_path: Path) -> None:
    """A sidecar without a shared namespace: a living process of the agent's has the rank's number,
    and gives neither stack nor end; the socket says whether the rank lives."""
    path = tmp_path / f"{TOKEN}.sock"
    with rank(path) as said:
        number_of_the_agent = said | {"pid": 1}
        gone = tmp_path / "ba9876543210.sock"
        with socket.socket(socket.AF_UNIX) as refusing:
            refusing.bind(str(gone))
        ranks = [
            (number_of_the_agent, str(path)),
            (number_of_the_agent | {"socket": None}, None),
            (number_of_the_agent, str(gone)),
        ]
        command = [*APART, sys.executable, "-c", AGENT, json.dumps(ranks)]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    listening, without_socket, refused = json.loads(out)
    assert listening[:3] == without_socket[:3] == [None, True, "running"]
    assert refused[:3] == [None, False, "gone"]
    for *_, stack in (listening, without_socket):
        assert "another pid namespace: set shareProcessNamespace" in stack
        assert "File" not in stack
        assert "Thread" not in stack


def test_a_number_that_is_used_again(tmp_path: Path) -> None:
    """In one namespace the start decides, of a socket's peer and of a number alone; a tap that
    cannot read its start names none, and its process has a thread of the tap."""
    path = tmp_path / f"{TOKEN}.sock"
    with rank(path) as said:
        assert said["pid_namespace"] == tap.pid_namespace()
        for address in (str(path), None):
            found = RankProcess(converted(said), address)
            assert found.pinned is not None
            assert found.pinned.pid == said["pid"]
            later = RankProcess(converted(said | {"start_ticks": 1}), address)
            assert (later.pinned, later.is_hidden, later.was_alive) == (None, False, False)
            found.close()
        earlier = said | {"start_ticks": 0, "pid_namespace": 0, "started_at_ns": 2**62}
        by_socket = RankProcess(converted(earlier), str(path)).pinned
        assert by_socket is not None
        assert by_socket.pid == said["pid"]
        assert RankProcess(converted(earlier), None).pinned is None
