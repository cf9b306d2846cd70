"""Jobs in which nothing is wrong, watched closely: no finding, and no harm, even if the recorder is
dumped all the time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from frd.cli.commands.demo.stage import Stage
from frd.errors import ServiceUnavailable
from frd_agent.recorder.worker_server import First, HandlerFailed, Handlers
from frd_agent.tap import IGNORE_CAPTURES
from tests.gpu.watch import logs, scenario, wait_for_ends
from tests.world.daemons import findings, until, watched

SECONDS = 15
pytestmark = [pytest.mark.torch, pytest.mark.timeout(200)]


@pytest.mark.parametrize(
    ("kind", "ranks", "timing"),
    [
        pytest.param("mixed", 3, False, marks=pytest.mark.nccl),
        pytest.param("mixed", 3, True, marks=pytest.mark.nccl),
        pytest.param("graphs", 2, False, marks=pytest.mark.nccl),
        ("sharded", 3, False),
        pytest.param("pipelined", 3, False, marks=pytest.mark.nccl),
    ],
)
def test_no_finding(
    kind: str,
    ranks: int,
    timing: bool,
    monkeypatch: pytest.MonkeyPatch,
    row: Callable[..., None],
) -> None:
    """Batches of sends, coalesced and uneven collectives, CUDA graphs, FSDP2 and a pipeline: the
    job ends well, and frd has nothing to say, although its stall threshold is two seconds."""
    if timing:
        monkeypatch.setenv("TORCH_NCCL_ENABLE_TIMING", "1")
    with watched(scenario(kind, "ordinary.py"), ranks, 2.0, [kind, str(SECONDS)]) as (
        stage,
        client,
    ):
        assert wait_for_ends(stage, SECONDS + 120) == [0] * stage.world, logs(stage)
        assert [one["summary"] for one in findings(client)] == []
        row(f"{kind}{', timing' if timing else ''}", "nothing", "none")


@pytest.mark.nccl
@pytest.mark.parametrize("asks", ["not at all", "as frd does", "directly"])
def test_a_dump_breaks_no_capture(asks: str, row: Callable[..., None]) -> None:
    """The job ends well if the recorder is not dumped, and if it is dumped as the agent does it.
    Dumped directly, the capture may fail, which is why the agent does it otherwise."""
    with Stage(scenario("captures", "ordinary.py"), 2, 10.0, ["graphs", "8"]) as stage:
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
