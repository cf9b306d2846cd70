"""A program that leaves itself little of a limit trains on: torch's worker server, which would end
it, is not started, and the reason is published."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from frd_agent import tap
from tests.world.daemons import until
from tests.world.sacred import outcomes

pytestmark = [pytest.mark.torch, pytest.mark.timeout(90)]
CGROUPS = Path("/sys/fs/cgroup/pids")
SERVER = 1 + tap.pool_size()
POINTS = [
    *[("threads", distance) for distance in (0, 1, 7, SERVER + 63)],
    *[("cgroup", 8), ("quarter", -2)],
    *[("address_space", mib) for mib in (12, 70)],
    ("data", 40),
    ("files", 2),
]
GRID = [
    *[(kind, distance) for kind in ("threads", "cgroup") for distance in range(21)],
    *[(kind, mib) for kind in ("address_space", "data") for mib in range(4, 204, 4)],
    *[(kind, 8_200) for kind in ("address_space", "data")],
    *[("files", distance) for distance in range(2, 20, 3)],
]
ENOUGH = [
    *[("threads", SERVER + 64), ("address_space", 8_500)],
    *[
        pytest.param(kind, distance, marks=pytest.mark.soak)
        for kind, distance in (
            *[("cgroup", SERVER + 64), ("quarter", 2)],
            *[("data", 8_500), ("files", 80)],
        )
    ],
]
"""64 threads or descriptors, a quarter of the limit, or 8 GiB remain."""


@contextlib.contextmanager
def cgroup(kind: str) -> Iterator[list[str]]:
    """Arguments for the program: a new cgroup, if it needs one."""
    if kind != "cgroup":
        yield []
        return
    folder = CGROUPS / f"frd-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup of processes can be made: {error}")
    try:
        yield [str(folder)]
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text(), "the end of its processes")
        folder.rmdir()


def socket_error(run_dir: Path) -> str | None:
    (identity,) = [json.loads(path.read_text()) for path in run_dir.glob("*.json")]
    assert identity["exit"]["kind"] == "clean"
    said: str | None = identity["socket_error"]
    return said


def train_near(run_dir: Path, kind: str, distance: int) -> str | None:
    """Asserts that the tap makes no difference; returns why there was no worker server."""
    with cgroup(kind) as more:
        without, with_tap = outcomes(run_dir, "limit", kind, distance, *more)
    assert (without.code, without.stdout) == (0, "trained\n"), without
    assert with_tap == without
    return socket_error(run_dir)


@pytest.mark.parametrize(("kind", "distance"), POINTS)
def test_little_is_left(run_dir: Path, kind: str, distance: int) -> None:
    """The server would need nine threads and 72 MB of address space, and the program the rest."""
    why = train_near(run_dir, kind, distance)
    assert why is not None
    assert why.startswith("torch's worker server is not started: ")
    assert "in use, and" in why


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "distance"), GRID)
def test_every_distance(run_dir: Path, kind: str, distance: int) -> None:
    """From none to almost enough."""
    assert train_near(run_dir, kind, distance) is not None


@pytest.mark.parametrize(("kind", "distance"), ENOUGH)
def test_enough_is_left(run_dir: Path, kind: str, distance: int) -> None:
    """The server is started, and the program trains on."""
    assert train_near(run_dir, kind, distance) == "the program has ended"
