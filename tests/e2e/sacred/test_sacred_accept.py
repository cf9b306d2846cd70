"""A machine without file handles: the agent leaves the rank alone, and says why."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from frd.wire.messages import Part
from tests.world.c_library import shared_library
from tests.world.collector import Collector, serving
from tests.world.daemons import agent_command, async_until, first_line, running
from tests.world.sacred import command, environment

SOURCE = Path(__file__).parents[2] / "shortage" / "accept.c"
pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


@pytest.mark.recorder
async def test_a_rank_is_not_asked_while_handles_are_short(tmp_path: Path, run_dir: Path) -> None:
    """accept fails in the rank, which would end it: a dump is answered from what is known, the
    status of the rank has the reason, and the rank trains on. Afterwards it is asked again."""
    library = shared_library(SOURCE, tmp_path / "accept.so")
    short = tmp_path / "file-nr"
    preloaded = {"LD_PRELOAD": library, "SHORT": str(short)}
    env = environment(run_dir) | preloaded | {"FRD_JOB": "j", "TORCH_FR_BUFFER_SIZE": "2000"}
    service = Collector()
    watch = agent_command(run_dir, "--service", service.address)
    with (
        running(command("stand"), env=env, stdin=subprocess.PIPE) as rank,
        running(watch, env=os.environ | preloaded),
    ):
        async with serving(service):
            assert first_line(rank) == "ready\n"
            await async_until(lambda: 0 in service.as_of, "the rank")
            await service.ask(0)
            assert service.parts[0, Part.DUMP].error == ""
            short.write_text("999990\t0\t1000000\n")
            await service.ask(0)
            assert service.parts[0, Part.DUMP].source.startswith("fr_trace_json, kept from ")
            why = "its recorder is not read: the node is short of file handles: 10 of 1000000"
            await async_until(lambda: why in service.statuses[0].detail, "the reason")
            assert rank.stdin is not None
            rank.stdin.write("\n")
            rank.stdin.flush()
            assert first_line(rank) == "step\n"
            short.unlink()
            await async_until(lambda: service.statuses[0].detail == "", "that it is read again")
            rank.stdin.close()
            assert rank.wait(timeout=60) == 0
