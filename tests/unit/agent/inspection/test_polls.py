"""Real processes that poll, or look as if they did; and for whose lock."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import pytest

from frd.model import Certainty, NodeRawNs, WaitKind
from frd_agent.inspection.reading.threads import Call, ThreadSample
from frd_agent.inspection.syscalls import Class, Syscall
from frd_agent.inspection.targets import Target
from frd_agent.inspection.tracking import Tracker
from frd_agent.proc import TICKS_PER_S
from tests.world.suspects import Inspection, suspect

HOLDS = """
    import sys, time
    from filelock import FileLock
    locks = [FileLock(path) for path in sys.argv[1:]]
    for lock in locks:
        lock.acquire()
    print("ready", flush=True)
    time.sleep(300)
"""
WAITS = """
    import sys
    from filelock import FileLock
    print("ready", flush=True)
    FileLock(sys.argv[1]).acquire()
"""
LOOKS = """
    import os, select, sys, time
    print("ready", flush=True)
    while not os.path.exists(sys.argv[1]):
        {}
"""
OTHERWISE = """
    import fcntl, sys, time
    files = [open(path, "a+") for path in sys.argv[1:]]
    fcntl.flock(files[0], fcntl.LOCK_SH)
    fcntl.lockf(files[1], fcntl.LOCK_EX)
    print("ready", flush=True)
    time.sleep(300)
"""
S = 1_000_000_000
POLLING = "its main thread has been polling (asleep in {}(), awake again and again)"


def test_a_lock_of_the_package_filelock(tmp_path: Path) -> None:
    """It never blocks, and has the file open for moments. Rank 3 is the only other rank that has
    locked a file, so it is likely that file; a lock for reading, which others may have too, does
    not count, nor does one of a database."""
    path = tmp_path / "squad.lock"
    with (
        suspect(HOLDS, path) as other,
        suspect(OTHERWISE, tmp_path / "index", tmp_path / "database") as reader,
        suspect(WAITS, path) as rank,
    ):
        inspection = Inspection(rank.pid, {rank.pid: 0, other.pid: 3, reader.pid: 4})
        found = inspection.until(lambda found: found.rest != "")
        assert inspection.report.is_poll
    assert (found.kind, found.certainty) == (WaitKind.SLEEP, Certainty.LIKELY)
    assert (found.what, found.topic) == (str(path), "a lock")
    assert found.holder is not None
    assert (found.holder.pid, found.holder.rank) == (other.pid, 3)
    assert found.says == (
        f"{POLLING.format('clock_nanosleep')}, likely for a lock of {path} ({found.fs} on "
        f"{found.mount}), held by process python (pid {other.pid}, rank 3)"
    )
    assert found.rest == "the holder has been asleep (clock_nanosleep)"


@pytest.mark.parametrize(
    ("first", "second"), [(3, 5), (None, None)], ids=["two ranks hold locks", "another job's ranks"]
)
def test_a_holder_that_is_not_known(tmp_path: Path, first: int | None, second: int | None) -> None:
    """Two ranks have locked a file each, or ranks of another job have: no holder is named."""
    path = tmp_path / "squad.lock"
    with (
        suspect(HOLDS, path) as one,
        suspect(HOLDS, tmp_path / "other.lock") as two,
        suspect(WAITS, path) as rank,
    ):
        inspection = Inspection(rank.pid, {rank.pid: 0, one.pid: first, two.pid: second})
        found = inspection.until(lambda _: inspection.report.is_poll)
    assert (found.holder, found.certainty) == (None, Certainty.SEEN)
    assert found.topic == "what it polls for"


def test_two_files_of_one_rank(tmp_path: Path) -> None:
    """Which of both files a rank polls for is not known, but whose locks they are."""
    paths = tmp_path / "a.lock", tmp_path / "b.lock"
    with suspect(HOLDS, *paths) as other, suspect(WAITS, paths[1]) as rank:
        inspection = Inspection(rank.pid, {rank.pid: 0, other.pid: 3})
        found = inspection.until(lambda found: found.holder is not None)
    assert (found.what, found.certainty) == ("", Certainty.LIKELY)
    assert "likely for a lock of one of 2 files, held by process" in found.says


@pytest.mark.parametrize(
    ("sleeps", "call"),
    [
        ("time.sleep(0.02)", "clock_nanosleep"),
        ("select.select([], [], [], 0.02)", "pselect"),
        ("select.poll().poll(20)", "poll"),
        ("epoll = select.epoll(); epoll.poll(0.02); epoll.close()", "epoll_wait"),
    ],
)
def test_a_rank_that_looks_for_a_file(tmp_path: Path, sleeps: str, call: str) -> None:
    """Other ranks have no lock; what it looks for is not to be seen."""
    with suspect(LOOKS.format(sleeps), tmp_path / "done") as rank:
        inspection = Inspection(rank.pid)
        found = inspection.until(lambda _: inspection.report.is_poll)
    assert (found.kind, found.certainty) == (WaitKind.SLEEP, Certainty.SEEN)
    assert (found.holder, found.what) == (None, "")
    assert call in found.says


NANOSLEEP = Target(Syscall("clock_nanosleep", Class.SLEEP))
OPEN = Target(Syscall("openat", Class.OPEN), path="/data/squad.lock")
READ = Target(Syscall("read", Class.READ), path="/data/shard-3")

Seen: TypeAlias = tuple[Target | None, int, float]
"""What a thread is in, how often it has run, and its processor time so far."""


def polls(*samples: Seen, state: str = "S") -> list[tuple[bool, int]]:
    """Whether the main thread of process 7 polls, and for how many seconds, by samples of one a
    second. `state`: of the last one, if it is in a call."""
    tracker, found = Tracker(), []
    for at, (target, runs, cpu_s) in enumerate(samples):
        shown = "R" if target is None else state if at == len(samples) - 1 else "S"
        ticks = int(cpu_s * TICKS_PER_S)
        sample = ThreadSample(7, shown, ticks, Call(230) if target else None, runs=runs)
        wait = tracker.see(7, sample, NodeRawNs(at * S), lambda: (target, "python"))  # noqa: B023
        found.append((wait.polls, (at * S - wait.since_ns) // S))
    return found


def test_one_long_sleep() -> None:
    """It does not wake, or once, for a signal: it is asleep, and polls for nothing."""
    assert not any(is_poll for is_poll, _ in polls(*[(NANOSLEEP, 4, 0)] * 9))
    once = [(NANOSLEEP, 4 + (at > 4), 0) for at in range(9)]
    assert not any(is_poll for is_poll, _ in polls(*once))


def test_two_signals_prove_no_poll_for_ever() -> None:
    """A sleep without end, out of which two signals wake the rank: it is soon asleep again."""
    twice = polls(*[(NANOSLEEP, 4 + (at > 3) + (at > 6), 0) for at in range(60)])
    assert not any(is_poll for is_poll, _ in twice[15:])
    assert twice[-1] == (False, 59)


def test_short_sleeps_between_work() -> None:
    """A thread that uses a fifth of a core works; with a hundredth of one it only looks."""
    works, looks = ([(NANOSLEEP, 20 * at, share * at) for at in range(9)] for share in (0.2, 0.01))
    assert not any(is_poll for is_poll, _ in polls(*works))
    assert [is_poll for is_poll, _ in polls(*looks)] == [False] * 2 + [True] * 7


@pytest.mark.parametrize(("away", "most"), [(None, 2), (OPEN, 1)], ids=["running", "in a call"])
def test_a_poll_that_is_sampled_while_it_is_awake(away: Target | None, most: int) -> None:
    """Two samples show it running, or one in a call: it is the same poll. One more ends it."""
    samples: list[Seen] = [(NANOSLEEP, 20 * at, 0.01 * at) for at in range(12)]
    end = 4 + most
    samples[4:end] = [(away, *one[1:]) for one in samples[4:end]]
    assert polls(*samples)[2:] == [(True, at) for at in range(2, 12)]
    samples[end] = (away, *samples[end][1:])
    assert polls(*samples)[end - 1 : end + 2] == [(True, end - 1), (False, 0), (False, 0)]


def test_a_read_that_blocks_between_short_sleeps() -> None:
    """A loader that tries again after each error: it reads, and polls for nothing."""
    samples: list[Seen] = [(NANOSLEEP, 20 * at, 0.01 * at) for at in range(4)]
    for at in range(4, 16, 3):
        samples += [(READ, 20 * at, 0.01 * at)] * 2 + [(NANOSLEEP, 20 * at + 40, 0.01 * at)]
    assert not any(is_poll for is_poll, _ in polls(*samples)[5:])


def test_a_signal_that_stops_a_rank_ends_its_poll() -> None:
    """A stopped thread is not awake."""
    samples: list[Seen] = [(NANOSLEEP, 20 * at, 0.01 * at) for at in range(5)]
    assert polls(*samples, state="T")[-2:] == [(True, 3), (False, 0)]
