"""How ranks end: agent and parent process must agree."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import SCENARIOS
from frd.errors import FrdError
from tests.world import daemons
from tests.world.daemons import exec_command, running, watched

WAYS = Path(__file__).with_name("ways_to_end.py")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(150)]
until = partial(daemons.until, ignoring=FrdError)


def line_of(text: str) -> int:
    return WAYS.read_text().partition(text)[0].count("\n") + 1


RAISES = f"ways_to_end.py:{line_of('json.loads(text)')} load_batch"
"""The program's own innermost frame; those of json are below it."""
LOADS = f"ways_to_end.py:{line_of('bad sample')} __getitem__"
"""In the process of a worker."""
STANDS_AT = f"ways_to_end.py:{line_of('signal.SIGINT)')} interrupted"
NO_OOM = "the kernel's out-of-memory killer killed no process in its cgroup"
EXPECTED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("finished", "", {"kind": "clean", "status": 0}),
    ("exited", "exited with status 1", {"kind": "status", "status": 1}),
    ("finished", "", {"kind": "clean", "status": 0}),
    (
        "exited",
        "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 "
        f"(char 1) ({RAISES})",
        {"kind": "exception", "status": 1, "where": RAISES},
    ),
    ("exited", "exited with status 3", {"kind": "status", "status": 3}),
    ("exited", "killed by SIGTERM", {"kind": "signal", "signal": 15}),
    (
        "exited",
        "exited with status 143 (128 + SIGTERM)",
        {"kind": "status", "status": 143, "signal": 15},
    ),
    ("exited", f"KeyboardInterrupt ({STANDS_AT})", {"kind": "interrupt", "signal": 2}),
    ("exited", f"killed by SIGKILL; {NO_OOM}", {"kind": "signal", "signal": 9}),
    ("exited", "killed by SIGABRT", {"kind": "signal", "signal": 6}),
    (
        "finished",
        "exited with status 0 after it had printed RuntimeError: survived",
        {"kind": "clean", "status": 0, "exception": "RuntimeError: survived"},
    ),
    (
        "exited",
        f"ValueError: bad sample 0, in DataLoader worker process 0 ({LOADS})",
        {"kind": "exception", "status": 1, "where": LOADS},
    ),
)
"""State, text and fields of the API for each way, by rank."""


@pytest.mark.long
def test_every_way_to_end_is_reported(tmp_path: Path) -> None:
    """Ranks end one after another: by themselves, by sys.exit, an exception, os._exit, and signals
    with and without a handler. The agent reports the status that the kernel gives their parent, the
    exception and its line, and their order, although the parent collects each one immediately (if
    the kernel is new enough)."""
    world = len(EXPECTED)
    with watched(SCENARIOS["healthy"], world, 60.0, job=False) as (stage, client):
        command = exec_command(stage.run_dir, sys.executable, WAYS, tmp_path)
        environment = {"FRD_JOB": "ways", "OMP_NUM_THREADS": "1"}
        with running(command, env=environment, without=("FRD_",)) as job:
            until(lambda: len(ranks(client)) == world, "all ranks", 60)
            truth = {}
            for rank in range(world):
                (tmp_path / str(rank)).touch()
                number, status = daemons.first_line(job).split()
                truth[int(number)] = int(status)
            until(lambda: all(r["exit"] for r in ranks(client).values()), "all ends", 20)
        seen = ranks(client)
        for rank, (state, text, fields) in enumerate(EXPECTED):
            how = seen[rank]["exit"]
            assert (seen[rank]["state"], seen[rank]["detail"]) == (state, text)
            assert {key: how[key] for key in fields} == fields, how
            assert wait_status(how) == truth[rank] & ~0x80, how
        assert [how["rank"] for how in sorted(seen.values(), key=at)] == list(range(world))
        log = stage.log("agent")
        assert "rank 8 of ways attempt 0: killed by SIGKILL; " in log
        assert "rank 1 of ways attempt 0: exited with status 1\n" in log


def ranks(client: Client) -> dict[int, Mapping[str, Any]]:
    return {rank["rank"]: rank for rank in client.get("/api/v1/jobs/ways")["ranks"]}


def at(rank: Mapping[str, Any]) -> str:
    text: str = rank["exit"]["at"]
    return text


def wait_status(how: Mapping[str, Any]) -> int:
    """The exit of the API, in the kernel's encoding."""
    status: int | None = how["status"]
    return int(how["signal"]) if status is None else status << 8
