"""Agents that are asked to stop: what they report, how long they stay, and what becomes of the job.

The ranks have no torch, but each is a separate process, which agents watch as any rank.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from frd.model import ExitKind, RankState
from tests.world import streams
from tests.world.collector import Collector, agent, serving
from tests.world.daemons import agent_command, async_until, running, throughout

pytestmark = pytest.mark.timeout(100)
SCRIPT = Path(__file__).parents[1] / "scripted_rank.py"


def ranks_of(run_dir: Path) -> list[str | Path]:
    """One scripted rank."""
    return [sys.executable, SCRIPT, "--run-dir", run_dir, "--ranks", "1", "--rate", "1"]


@asynccontextmanager
async def watched(
    tmp_path: Path, *flags: object
) -> AsyncIterator[tuple[Collector, subprocess.Popen[str], subprocess.Popen[str]]]:
    """A collector, an agent that is connected to it, and the rank that the agent reports."""
    run_dir = tmp_path / "run"
    with running(ranks_of(run_dir)) as rank:
        async with (
            serving(Collector()) as service,
            agent(run_dir, service.address, *flags) as process,
        ):
            await async_until(lambda: service.state(0) is RankState.LIVE, "the rank")
            yield service, process, rank


async def ended(process: subprocess.Popen[str]) -> int:
    return await asyncio.to_thread(process.wait, 20)


async def test_an_agent_outlives_its_ranks(tmp_path: Path) -> None:
    """Agent and rank get SIGTERM together, and the rank takes a while: the agent reports that it
    leaves, then how the rank ended, and says goodbye."""
    async with watched(tmp_path, "--outlive-ranks") as (service, process, rank):
        process.terminate()
        await async_until(lambda: 1 in service.leaving, "the word", 2)
        known = service.as_of[0]
        await async_until(lambda: service.as_of[0] > known, "more of the rank")
        assert process.poll() is None
        assert "the agent stops" not in service.goodbyes
        rank.terminate()
        assert await ended(process) == 0
        assert "the agent stops" in service.goodbyes
        assert service.state(0) is RankState.EXITED
        how = service.statuses[0].exit
        assert how is not None
        assert (how.kind, how.signal) == (ExitKind.SIGNAL, signal.SIGTERM)


@pytest.mark.parametrize("flags", [(), ("--outlive-ranks", "1.5"), ("--outlive-ranks",)])
async def test_a_rank_that_does_not_end(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """The agent ends: immediately without the option, after its limit, or at a second signal."""
    async with watched(tmp_path, *flags) as (service, process, rank):
        began_s = time.monotonic()
        process.terminate()
        await async_until(lambda: 1 in service.leaving, "the word", 2)
        if flags == ("--outlive-ranks",):
            process.terminate()  # as Slurm at a time limit: the same request
            await asyncio.sleep(0.8)
            assert process.poll() is None
            process.terminate()
        assert await ended(process) == 0
        took_s = time.monotonic() - began_s
        assert (took_s >= 1.5) or len(flags) != 2
        assert "the agent stops" in service.goodbyes
        assert service.state(0) is RankState.LIVE
        assert rank.poll() is None


async def test_an_agent_that_is_killed_soon_has_said_that_it_leaves(tmp_path: Path) -> None:
    """A sidecar may have two seconds: SIGTERM, then SIGKILL."""
    async with watched(tmp_path, "--outlive-ranks") as (service, process, _):
        process.send_signal(signal.SIGINT)
        await async_until(lambda: 1 in service.leaving, "the word", 1.5)
        process.kill()
        assert await ended(process) == -signal.SIGKILL
        assert "the agent stops" not in service.goodbyes


async def test_a_job_whose_agents_went_is_lost_until_they_return(tmp_path: Path) -> None:
    """The only agent is stopped while its rank lives: first its rank is unwatched, then the job is
    lost, and frd is not blind. Another agent of the same run directory finds the job running. If
    that one is killed, frd is blind."""
    config = tmp_path / "frd.toml"
    config.write_text("[policy]\nlost_after_s = 3\n")
    run_dir = tmp_path / "run"
    with (
        streams.serving(tmp_path / "data", "--config", config) as service,
        running(ranks_of(run_dir)),
    ):

        def state() -> str:
            jobs = service.get("/api/v1/jobs")["jobs"]
            return str(jobs[0]["state"]) if jobs else ""

        def not_lost() -> None:
            assert state() == "unwatched"

        def blind() -> list[str]:
            found: list[str] = service.get("/api/v1/findings?job=scripted")["watching"]["blind"]
            return found

        command = agent_command(run_dir, "--service", service.grpc)
        with running(command) as process:
            await async_until(lambda: state() == "running", "the job")
            process.terminate()
            assert await ended(process) == 0
        await async_until(lambda: state() == "unwatched", "the end of its stream", 3)
        assert "stopped" in blind()[0]
        assert service.metric('frd_agents_expected{job="scripted"}') == 0  # no FrdBlind
        await async_until(lambda: state() == "lost", "the loss")
        assert blind() == []
        assert service.metric('frd_agents_expected{job="scripted"}') == 0
        with running(command) as process:
            await async_until(lambda: state() == "running", "the job again")
            process.kill()
            await ended(process)
        await async_until(lambda: state() == "unwatched", "the end of its stream", 3)
        await asyncio.to_thread(throughout, 5.0, not_lost)
        assert "said no goodbye" in blind()[0]
        assert service.metric('frd_agents_expected{job="scripted"}') == 1
        assert service.metric('frd_agents_reporting{job="scripted"}') == 0
