"""CUDA graphs are captured while the recorder is dumped all the time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from frd.cli.commands.demo.stage import Stage
from frd.errors import ServiceUnavailable
from frd_agent.recorder.worker_server import First, HandlerFailed, Handlers
from frd_agent.tap import IGNORE_CAPTURES
from tests.gpu.watch import logs, scenario
from tests.world.daemons import until

pytestmark = [pytest.mark.torch, pytest.mark.nccl, pytest.mark.timeout(150)]
SECONDS = 8


@pytest.mark.parametrize("asks", ["not at all", "as frd does", "directly"])
def test_a_dump_breaks_no_capture(asks: str, row: Callable[..., None]) -> None:
    """The job ends well if the recorder is not dumped, and if it is dumped as the agent does it.
    Dumped directly, the capture may fail, which is why the agent does it otherwise."""
    with Stage(scenario("captures", "ordinary.py"), 2, 10.0, ["graphs", str(SECONDS)]) as stage:
        stage.start_job()
        until(lambda: len(list(stage.run_dir.glob("*.sock"))) == 2, lambda: logs(stage))
        sockets = [Handlers(path) for path in stage.run_dir.glob("*.sock")]
        dumps: list[bool] = []
        """Of each dump that came: its thread had been exempted from captures."""

        def ended() -> bool:
            if asks != "not at all":
                for handlers in sockets:
                    asyncio.run(dump(handlers, dumps, with_care=asks == "as frd does"))
            codes = [rank.poll() for rank in stage.ranks]
            return None not in codes or any(codes)

        until(ended, lambda: logs(stage), 100.0)
        codes = [rank.poll() for rank in stage.ranks]
        row(f"CUDA graphs, recorder dumped: {asks}", "nothing", f"exit codes {codes}")
        if asks == "as frd does":
            assert len(dumps) > 20
            assert all(dumps)
        if asks != "directly":
            assert codes == [0, 0] or until(
                lambda: [rank.poll() for rank in stage.ranks] == [0, 0], lambda: logs(stage)
            )


async def dump(handlers: Handlers, dumps: list[bool], *, with_care: bool) -> None:
    first = First(IGNORE_CAPTURES) if with_care else None
    with contextlib.suppress(HandlerFailed, ServiceUnavailable):  # the rank has ended, or is busy
        await handlers.ask("dump_nccl_trace_json", first=first)
        dumps.append(first is not None and first.answered)
