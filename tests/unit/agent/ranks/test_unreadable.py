"""Ranks of another user: the agent names both users and the value to set."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from frd_agent import tap
from frd_agent.ranks.rank import Rank
from frd_agent.ranks.roster import Roster
from frd_agent.ranks.tap_files import TapFile, TapIdentity
from tests.world.run_dir import TOKEN, forked, identity, shared, volume

RANKS, AGENT = 2000, 1000
T = TypeVar("T")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two users")


def as_user(uid: int, do: Callable[[], T]) -> T:
    """The JSON value that `do` gives in a forked process of this user, as the kernel permits."""

    def become() -> T:
        os.setegid(uid)
        os.seteuid(uid)
        return do()

    found: T = forked(become)
    return found


@pytest.fixture
def pod() -> Iterator[Path]:
    """The volume of a pod, in which every user may write; below it the run directory."""
    folder = Path(f"/tmp/frd-pod-{os.getpid()}-{time.monotonic_ns()}")
    with volume(folder, 0o777):
        yield folder


@pytest.fixture
def sticky(pod: Path) -> Path:
    """A run directory in which every user may write, and remove only own files."""
    run_dir = pod / "run"
    run_dir.mkdir()
    run_dir.chmod(0o1777)
    return run_dir


def publish(run_dir: Path, token: str = TOKEN) -> None:
    """As a tap does."""
    files = tap.Files(str(run_dir), token)
    files.write_identity(json.dumps(identity(token=token, shm=f"{token}.shm", socket=None)))
    (run_dir / f"{token}.sock").touch()


def seen(run_dir: Path, uid: int = AGENT) -> list[str]:
    """By an agent of that user; it knows no rank."""

    def look() -> list[str]:
        roster = Roster(run_dir, shared())
        assert roster.update(shared().time.now()) == []
        return list(roster.unreadable.texts)

    return as_user(uid, look)


CANNOT_READ = "the agent of uid 1000 may not read what ranks of uid 2000 publish"
ADVICE = "run the agent as uid 2000 (in the chart agent.sidecar.runAsUser, or that of daemonset)"


def test_files_of_another_user(sticky: Path) -> None:
    """In a directory in which both may write. Ranks that have ended publish no more, whether they
    removed their socket or were killed. A process that waits for its first process group is a rank
    as well."""
    as_user(RANKS, lambda: publish(sticky))
    as_user(RANKS, lambda: publish(sticky, "ba9876543210"))
    assert seen(sticky) == [f"{sticky}: {CANNOT_READ}: {ADVICE}"]
    (sticky / f"{TOKEN}.sock").unlink()
    assert seen(sticky) == [f"{sticky}: {CANNOT_READ}: {ADVICE}"]
    os.utime(sticky / "ba9876543210.shm", (1, 1))
    assert seen(sticky) == []
    as_user(RANKS, lambda: tap.write_whole(str(sticky), TOKEN, ".stage", "{}"))
    assert seen(sticky) == [f"{sticky}: {CANNOT_READ}: {ADVICE}"]


def test_a_directory_that_cannot_be_entered(sticky: Path) -> None:
    """Its files can be listed, and nothing is known of them: each is a problem, and no error."""

    def problems() -> list[str]:
        run_dir = sticky / "mine"
        run_dir.mkdir()
        (run_dir / f"{TOKEN}.json").write_text(json.dumps(identity()))
        before = TapFile.scan(run_dir)
        run_dir.chmod(0o600)
        found = [file.problem for file in TapFile.scan(run_dir, before)]
        run_dir.chmod(0o700)
        return found

    (problem,) = as_user(AGENT, problems)
    assert problem == f"{sticky}/mine/{TOKEN}.json: Permission denied: ignored"


def test_a_directory_of_another_user(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank has made it, for itself alone; without a directory there is nothing to read. An
    agent of root that the kernel refuses in the same way may also get the capability."""
    run_dir = pod / "run"
    assert seen(run_dir) == []
    as_user(RANKS, lambda: tap.make_run_dir(str(run_dir)))
    as_user(RANKS, lambda: publish(run_dir))
    assert seen(run_dir) == [f"{run_dir}: {CANNOT_READ}: {ADVICE}"]
    monkeypatch.setattr("frd_agent.ranks.token_files.os.geteuid", lambda: 0)
    said = CANNOT_READ.replace("uid 1000", "uid 0")
    assert seen(run_dir) == [f"{run_dir}: {said}: {ADVICE}, or give it CAP_DAC_OVERRIDE"]


def test_a_rank_that_may_not_write(pod: Path) -> None:
    """Its tap says so to its user, and leaves word in its parent: for this directory, as
    itself, and for as long as it tries."""
    run_dir = pod / "run"
    run_dir.mkdir(mode=0o700)
    os.chown(run_dir, AGENT, AGENT)
    environ = {"FRD_RUN_DIR": str(run_dir), "FRD_JOB": "team/llm\x1b[1m"}

    def refused_by_kernel() -> str:
        with pytest.raises(PermissionError) as caught:
            tap.Files(str(run_dir), TOKEN)
        return str(tap._refusal(environ, caught.value))

    assert as_user(RANKS, refused_by_kernel) == (
        f"{run_dir}: belongs to uid 1000, and uid 2000 of this rank may not write there: {ADVICE}"
    )
    (refused,) = pod.glob("refused.*")
    assert refused.name == "refused.2000"
    (text,) = seen(run_dir)
    assert text == (
        f"{run_dir}: ranks of uid 2000 (job team/llm\\x1b[1m) may not write there, so the agent "
        f"of uid {AGENT} knows nothing of them: {ADVICE}"
    )
    other = pod / "other"
    other.mkdir(mode=0o700)
    os.chown(other, AGENT, AGENT)
    assert seen(other) == [], "it is not about this directory"
    os.chown(refused, 3000, 3000)
    assert seen(run_dir) == [], "anybody can write a file with that name"
    os.chown(refused, RANKS, RANKS)
    os.utime(refused, (1, 1))
    assert seen(run_dir) == [], "the rank has ended"


def test_files_that_may_not_be_removed(sticky: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sticky directory the files of an ended rank of another user stay: they are read
    once."""
    path = sticky / f"{TOKEN}.json"

    def looks(times: int) -> int:
        """How often an agent that updates that often opens the rank."""
        with monkeypatch.context() as patch:
            opened = []
            look = Roster._open

            def counted(self: Roster, file: TapFile, identity: TapIdentity) -> Rank | None:
                opened.append(file)
                return look(self, file, identity)

            patch.setattr(Roster, "_open", counted)
            roster = Roster(sticky, shared())
            for _ in range(times):
                assert roster.update(shared().time.now()) == []
        return len(opened)

    path.write_text(json.dumps(identity(socket=None)))
    path.chmod(0o644)
    os.chown(path, RANKS, RANKS)
    os.utime(path, (1, 1))
    assert as_user(AGENT, lambda: looks(3)) == 1
    assert path.exists()
    assert looks(1) == 1
    assert not path.exists(), "root may remove it"
