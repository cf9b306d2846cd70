"""Real hangs of jobs with NCCL, each with its truth."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from frd.cli.client import Client
from frd.cli.commands.demo.stage import Stage
from frd.errors import ServiceUnavailable
from frd_agent.recorder.worker_server import First, HandlerFailed, Handlers
from frd_agent.tap import IGNORE_CAPTURES
from tests.gpu.watch import (
    STALL_AFTER_S,
    described,
    first_finding,
    logs,
    reasons,
    scenario,
    took_s,
    wait_for_ends,
    wait_for_progress,
)
from tests.world.daemons import findings, opened_s, until, watched
from tests.world.verdicts import high_at_most

pytestmark = [pytest.mark.torch, pytest.mark.timeout(200)]


@dataclass(frozen=True)
class Case:
    """A job and its truth."""

    name: str
    ranks: int
    arguments: str
    kind: str
    suspects: Mapping[int, str]
    """Reason by rank."""
    summary: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    script: str = "hangs.py"

    @property
    def truth(self) -> str:
        named = [f"{rank}: {reason}" for rank, reason in self.suspects.items()]
        return ", ".join(named) or "not visible"


TIMING = {"TORCH_NCCL_ENABLE_TIMING": "1"}
STUCK = "load_batch"
CASES = [
    Case("CPU", 3, "cpu 2", "stall", {2: "cpu_stuck"}, STUCK),
    Case("CPU, 8 ranks", 8, "cpu 5", "stall", {5: "cpu_stuck"}, STUCK),
    Case("CPU, timing", 3, "cpu 0", "stall", {0: "cpu_stuck"}, STUCK, TIMING),
    Case("order of two groups", 3, "order 1", "order", {1: "order", 2: "order"}),
    Case("four groups", 4, "communicators 3", "stall", {3: "cpu_stuck"}, STUCK),
    Case("FSDP2", 3, "sharded 3 1", "stall", {1: "cpu_stuck"}, STUCK, script="ordinary.py"),
]
ONLY_NCCL = [
    Case("size", 3, "mismatch 1", "mismatch", {1: "mismatch"}),
    Case("kernel, timing", 3, "kernel 1", "stall", {1: "device_stuck"}, "device", TIMING),
    Case("kernel, no timing", 3, "kernel 1", "stall", {}, "single rank"),
    Case("send without receive", 3, "receive 1", "order", {0: "order", 1: "order"}),
    Case("batch of sends", 3, "batch 1", "stall", {1: "cpu_stuck"}, STUCK),
    Case("pipeline", 3, "pipelined 3 2", "stall", {2: "cpu_stuck"}, STUCK, script="ordinary.py"),
]


@pytest.mark.parametrize(
    "case",
    [*CASES, *(pytest.param(case, marks=pytest.mark.nccl) for case in ONLY_NCCL)],
    ids=lambda case: case.name,
)
def test_the_first_cause_is_named(
    case: Case, monkeypatch: pytest.MonkeyPatch, row: Callable[..., None]
) -> None:
    """One finding, with exactly the ranks that are at fault."""
    for name, value in case.environ.items():
        monkeypatch.setenv(name, value)
    job = scenario(case.name, case.script)
    with watched(job, case.ranks, STALL_AFTER_S, case.arguments.split()) as (stage, client):
        found = first_finding(stage, client)
        with contextlib.suppress(AssertionError):  # a rank that joins late may change it
            found = until(lambda: as_expected(client, found, case), "the truth", 10.0)
        row(case.name, case.truth, described(found), took_s(stage, found))
        shown = f"{found['summary']}\n{logs(stage)}"
        assert found["kind"] == case.kind, shown
        assert reasons(found) == case.suspects, shown
        assert case.summary in found["summary"], shown
        if not case.suspects:
            opinions = until(lambda: second_opinion(client, found), lambda: logs(stage))
            assert any("launched the same number of each" in text for text in opinions), opinions
        assert {one["id"] for one in findings(client)} == {found["id"]}


def as_expected(client: Client, found: Mapping[str, Any], case: Case) -> dict[str, Any] | None:
    now: dict[str, Any] = client.get(f"/api/v1/findings/{found['id']}")
    return now if reasons(now) == case.suspects else None


def second_opinion(client: Client, found: Mapping[str, Any]) -> list[str]:
    """What NCCL's RAS said of the group; it is asked if no rank can be named."""
    now: list[str] = client.get(f"/api/v1/findings/{found['id']}").get("second_opinion", [])
    return now


@pytest.mark.parametrize(
    ("sent", "kind", "reason"),
    [(signal.SIGKILL, "rank_lost", "exited"), (signal.SIGSTOP, "stall", "unreachable")],
    ids=["SIGKILL", "SIGSTOP"],
)
def test_a_signal_to_one_rank(
    sent: signal.Signals, kind: str, reason: str, row: Callable[..., None]
) -> None:
    """A rank is killed, or stopped, while the others train: it is named, the others are not."""
    job = scenario(sent.name, "ordinary.py")
    with watched(job, 3, STALL_AFTER_S, ["mixed", "600"]) as (stage, client):
        wait_for_progress(stage, client)
        at = time.time()
        stage.ranks[2].send_signal(sent)
        found = first_finding(stage, client, kind)
        row(sent.name, f"2: {reason}", described(found), opened_s(found) - at)
        assert reasons(found) == {2: reason}, found["summary"]
        assert all(set(reasons(one)) == {2} for one in findings(client))


@pytest.mark.nccl
@pytest.mark.parametrize(
    "healthy_s", [15, pytest.param(300, marks=[pytest.mark.long, pytest.mark.timeout(500)])]
)
def test_a_step_that_is_a_replayed_graph(healthy_s: int, row: Callable[..., None]) -> None:
    """The whole step, its all_reduce included, is a CUDA graph, so that no recorder shows it. While
    the job trains there is nothing to find. Then rank 1 does not get its batch, the others wait for
    their devices, and it is named."""
    job = scenario("replayed", "ordinary.py")
    with watched(job, 3, STALL_AFTER_S, ["replayed", f"{healthy_s}", "1"]) as (stage, client):

        def hangs() -> bool:
            trains = "hangs at" not in stage.log("rank1")
            assert not trains or findings(client) == []
            return not trains

        until(hangs, lambda: logs(stage), healthy_s + 120.0)
        found = first_finding(stage, client)
        took = took_s(stage, found)
        row(f"a replayed graph, {healthy_s} s", "1: cpu_stuck", described(found), took)
        shown = f"{found['summary']}\n{logs(stage)}"
        assert (found["kind"], reasons(found)) == ("stall", {1: "cpu_stuck"}), shown
        assert found["suspects"][0]["confidence"] in ("medium", "high"), shown
        assert STUCK in found["summary"], shown
        assert took <= STALL_AFTER_S + 10
        high_at_most(stage, client, 1)


# -- ordinary --------------------------------------------------------------------------------------
# Jobs in which nothing is wrong, watched closely: no finding, and no harm, even if the recorder
# is dumped all the time.


SECONDS = 15


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
