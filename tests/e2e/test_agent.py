"""The real agent process between ranks and a collector that records its messages."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from frd.flight.decode import parse
from frd.flight.entry import Dump, Entry
from frd.flight.write import write_pickle
from frd.model import NATIVE, REST, EntryColumns, ExitKind, Flags, RankState, Stage
from frd.wire.clock import ClockHello, Ping
from frd.wire.messages import Goodbye, Part, Request, ResponsePart
from frd_agent.node_time import raw_now
from frd_agent.uplink.node_clock import BURST
from tests.world import replicas, streams
from tests.world.apart import ApartRank
from tests.world.collector import Collector, agent, serving
from tests.world.daemons import (
    agent_command,
    async_until,
    exec_command,
    fetch,
    free_address,
    free_port,
    metric,
    running,
    until,
)
from tests.world.played_rank import PlayedRank
from tests.world.puppets import everywhere, puppets
from tests.world.replicas import Replica

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(100)


@pytest.mark.recorder
@pytest.mark.torch
async def test_a_hanging_job_is_reported(tmp_path: Path) -> None:
    """Rank 1 of a real gloo job is stuck in its data loader, and is killed later: the agent reports
    watermarks, dump, stack and the exit."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2]
    torchrun += ["--master-port", free_port(), ROOT / "examples" / "missing_rank.py"]
    job = exec_command(tmp_path / "run", *torchrun, "--rank", 1, "--step", 20)
    with running(job, env={"FRD_JOB": "j"}):
        async with (
            serving(Collector()) as service,
            agent(tmp_path / "run", service.address) as process,
        ):
            await async_until(lambda: service.is_at(0, 21, 20), "the hang")
            await async_until(lambda: service.is_at(1, 20, 20), "rank 1")
            since = service.watermarks[0, 0][2]
            await async_until(lambda: service.as_of[1] > since + 10**9, "proof of absence")
            reported = [
                (service.ranks[batch.rank].rank, seq, flags)
                for batch in service.rows
                for seq, flags in zip(batch.seq.tolist(), batch.flags.tolist(), strict=True)
            ]
            for rank, last in ((0, 21), (1, 20)):
                joined = [seq for r, seq, flags in reported if r == rank and flags & Flags.JOINED]
                assert joined == list(range(1, last + 1))
            await service.ask(1, stacks=True)
            dump = parse(service.parts[1, Part.DUMP].data, source="answer")
            assert dump.groups["0"].ranks == (0, 1)
            assert dump.entries[-1].collective_seq_id == 20
            assert b"in load_batch" in service.parts[1, Part.STACK].data
            identity = json.loads(service.parts[1, Part.IDENTITY].data)
            assert (identity["job"], identity["rank"]) == ("j", 1)
            os.kill(next(info.pid for info in service.ranks if info.rank == 1), signal.SIGKILL)
            await async_until(lambda: service.state(1) is RankState.EXITED, "the exit", 3)
            assert service.statuses[1].detail.startswith("killed by SIGKILL; ")
            how = service.statuses[1].exit
            assert how is not None
            assert (how.kind, how.signal) == (ExitKind.SIGNAL, signal.SIGKILL)
            await service.ask(1)
            assert "kept from" in service.parts[1, Part.DUMP].source
            process.terminate()
            assert await asyncio.to_thread(process.wait, 10) == 0
            assert service.goodbyes


@pytest.mark.recorder
@pytest.mark.torch
async def test_where_ranks_are_at_rest(tmp_path: Path) -> None:
    """Four ranks wait for commands, and reduce; then one is in a collective, two receive from the
    last, one of them by `work.wait()`, and that reads a pipe. The agent reports what each waits in,
    in which line, and that it rests. Nothing is asked."""
    os.mkfifo(tmp_path / "data")
    run_dir = tmp_path / "run"
    with puppets(4, run_dir, FRD_JOB="j") as ranks:
        async with serving(Collector()) as service, agent(run_dir, service.address):

            def stage(rank: int) -> Stage | None:
                return service.statuses[rank].stage if rank in service.statuses else None

            def shows(rank: int, op: str, function: str) -> bool:
                found = stage(rank)
                where = f" in {function}"
                is_in = found and found.op == op and found.where.endswith(where)
                return bool(is_in and found and (found.rests or not op))

            await asyncio.to_thread(everywhere, ranks, "init")
            await async_until(lambda: all(shows(n, REST, "<module>") for n in range(4)), "commands")
            for rank in ranks:
                rank.send("reduce 2000")
            await async_until(lambda: not any(stage(n) for n in range(4)), "the job moves")
            for rank in ranks:
                await asyncio.to_thread(rank.answer)
            began_ns = raw_now()
            fault = "reduce", "receive 3", "wait 3", f"read {tmp_path / 'data'}"
            for rank, does in zip(ranks, fault, strict=True):
                rank.send(does)
            await async_until(lambda: shows(1, "recv", "receive"), "the receiving rank")
            await async_until(lambda: shows(2, NATIVE, "wait"), "the rank that waits for work")
            await async_until(lambda: shows(3, REST, "read"), "the reading rank")
            await async_until(lambda: shows(0, "", "reduce"), "the rank in a collective")
            assert raw_now() - began_ns < 6e9
            assert all(one and one.since_ns - began_ns < 3e9 for one in map(stage, (1, 2, 3)))
            assert not service.parts


async def test_a_restarted_service_hears_of_what_is_open(tmp_path: Path) -> None:
    """A service acknowledged all rows and is gone: the next one gets those of open collectives."""
    rank = PlayedRank(tmp_path)
    for _ in range(5):
        rank.enter()
        rank.leave()
    rank.enter()
    rank.publish()
    first = Collector()
    async with agent(tmp_path, first.address):
        async with serving(first):
            await async_until(lambda: first.is_at(0, 6, 5), "the watermarks")
        async with serving(Collector(first.address)) as second:
            await async_until(lambda: second.is_at(0, 6, 5), "the watermarks")
            await async_until(lambda: second.state(0) is RankState.LIVE, "the status")
            (replay,) = second.rows
            assert (replay.first_revision, replay.seq.tolist()) == (0, [6])
            assert second.hellos[0].session == first.hellos[0].session
    rank.close()


async def test_a_restarted_agent_is_another_session(tmp_path: Path) -> None:
    """The agent is killed: its successor counts from 1 again, in another session."""
    rank = PlayedRank(tmp_path)
    rank.enter()
    rank.leave()
    rank.publish()
    async with serving(Collector()) as service:
        for count in (1, 2):
            async with agent(tmp_path, service.address):
                await async_until(lambda n=count: len(service.rows) == n, "the rows")  # type: ignore[misc]
        assert [batch.first_revision for batch in service.rows] == [1, 1]
        assert len({hello.session for hello in service.hellos}) == 2
    rank.close()


async def test_pings_go_on_during_the_stream(tmp_path: Path) -> None:
    """A clock stream ends, and another gets an invalid answer: new ones follow, and rows go on."""
    async with serving(Collector()) as service, agent(tmp_path, service.address):
        await async_until(lambda: len(service.pings) > 2 and len(service.pings[2]) > BURST, "pings")
        (hello_of_rows,) = service.hellos
        for hello, *pings in service.pings:
            assert hello == ClockHello(hello_of_rows.boot_id, hello_of_rows.session)
            numbered = [ping for ping in pings if isinstance(ping, Ping)]
            assert [ping.number for ping in numbered] == list(range(1, len(pings) + 1))
            assert all(len(ping.readings.raw_ns) for ping in numbered)
        assert any(isinstance(ping, Ping) and ping.pong for ping in service.pings[2])


async def test_a_frozen_rank_is_silent_and_comes_back(tmp_path: Path) -> None:
    """SIGSTOP and SIGCONT: silent with the state of the process, then alive again. SIGKILL: an
    agent that starts later cannot know the signal, and says why."""
    script = [sys.executable, str(ROOT / "tests" / "scripted_rank.py")]
    with running([*script, "--run-dir", tmp_path, "--ranks", "1", "--rate", "20"]) as ranks:
        async with serving(Collector()) as service:

            async def becomes(state: RankState, within_s: float) -> str:
                await async_until(lambda: service.state(0) is state, state, within_s)
                return service.statuses[0].detail

            async with agent(tmp_path, service.address):
                await becomes(RankState.LIVE, 30)
                ranks.send_signal(signal.SIGSTOP)
                stopped = await becomes(RankState.SILENT, 8)
                assert stopped == f"process {ranks.pid} is stopped (state T)"
                ranks.send_signal(signal.SIGCONT)
                await becomes(RankState.LIVE, 8)
                ranks.kill()
                killed = await becomes(RankState.EXITED, 3)
                assert killed.startswith("killed by SIGKILL; ")
            ranks.wait()
            service.statuses.clear()
            async with agent(tmp_path, service.address):
                known = "no exit record, and its exit status is not known"
                ended = await becomes(RankState.EXITED, 30)
                assert ended == f"{known}; it ended before this agent saw it"


async def test_rows_that_are_refused_for_ever_are_dropped(tmp_path: Path) -> None:
    """A service refuses the same rows twice: they are dropped and counted, and the rest goes on."""
    rank = PlayedRank(tmp_path)
    rank.enter()
    rank.leave()
    rank.publish()
    service, metrics = Collector(refuse=2), free_address()
    async with serving(service), agent(tmp_path, service.address, "--metrics", metrics):
        await async_until(lambda: service.is_at(0, 1, 1), "the watermarks")
        assert service.rows == []
        shown = await asyncio.to_thread(fetch, metrics)
        assert service.hellos[0].metrics == "", "only this machine reaches it"
        assert 'frd_agent_dropped_rows_total{reason="refused"} 1.0' in shown
        assert "frd_agent_connected 1.0" in shown
        assert "process_resident_memory_bytes" in shown
        await async_until(
            lambda: bool(service.statuses) and service.statuses[0].gap_entries == 1,
            "a status that counts the dropped row",
        )
    rank.close()


async def test_where_other_machines_can_scrape_an_agent(tmp_path: Path) -> None:
    """It says so with its node's name if it listens on all addresses; the second agent, for which
    the port is taken, says nothing."""
    _, _, port = free_address().rpartition(":")
    ranks = [PlayedRank(tmp_path / name) for name in ("a", "b")]
    service, flags = Collector(), ("--metrics", f"0.0.0.0:{port}")
    async with serving(service), agent(tmp_path / "a", service.address, *flags):
        ranks[0].publish()
        await async_until(lambda: len(service.hellos) == 1, "the first agent")
        async with agent(tmp_path / "b", service.address, *flags):
            ranks[1].publish()
            await async_until(lambda: len(service.hellos) == 2, "the second agent")
    said = [hello.metrics for hello in service.hellos]
    assert said == [f"{service.hellos[0].node}:{port}", ""]
    for rank in ranks:
        rank.close()


class Hostile:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("true",)


async def test_dump_files_speak_for_ranks_without_a_tap(tmp_path: Path) -> None:
    """torch writes a dump of rank 5 at a timeout, next to a hostile file: the dump is read, the
    hostile file is refused and counted."""
    dumps = tmp_path / "elsewhere"
    dumps.mkdir()
    entry = Entry(
        record_id=0,
        process_group=("0", "default_pg"),
        profiling_name="nccl:all_reduce",
        collective_seq_id=1,
        pg_id=0,
        time_created_ns=1_700_000_000_000_000_000,
    )
    dump = Dump(version="2.10", entries=(entry,))
    (dumps / "trace_5").write_bytes(write_pickle(dump, {"0": ("default_pg", (4, 5))}))
    (dumps / "trace_6").write_bytes(pickle.dumps(Hostile()))
    service, metrics = Collector(), free_address()
    flags = ("--metrics", metrics, "--dump-dir", dumps)
    async with serving(service), agent(tmp_path, service.address, *flags):
        await async_until(lambda: service.is_at(5, 1, 0), "the file")
        await service.ask(5)
        assert service.parts[5, Part.DUMP].source == "file trace_5"
        shown = await asyncio.to_thread(fetch, metrics)
        assert 'frd_agent_refused_files_total{kind="dump"} 1.0' in shown


# -- job streams -----------------------------------------------------------------------------------
# The real agent process with ranks of two jobs: one service for both, and a replica for each.


JOBS = ("one", "two")


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[dict[str, PlayedRank]]:
    """A rank of each job in one run directory, with a collective that is done and an open one."""
    with ExitStack() as stack:
        made: dict[str, PlayedRank] = {}
        for job in JOBS:
            rank = made[job] = ApartRank(tmp_path / "run", job=job)
            stack.enter_context(closing(rank))
            rank.enter()
            rank.leave()
            rank.enter()
            rank.publish()
        yield made


def test_one_service_for_both_jobs(tmp_path: Path, ranks: dict[str, PlayedRank]) -> None:
    """Both streams come to one service: it sees one agent, synchronizes its clock for both jobs,
    and refuses none of its pings."""
    metrics = free_address()
    with streams.serving(tmp_path / "data") as service:
        flags = ("--service", service.grpc, "--metrics", metrics)
        with running(agent_command(tmp_path / "run", *flags)):

            def is_watched(job: str) -> bool:
                if job not in [known["job"] for known in service.get("/api/v1/jobs")["jobs"]]:
                    return False
                (node,) = service.get(f"/api/v1/jobs/{job}")["nodes"]
                return bool(node["connected"]) and node["clock_state"] == "synchronized"

            for job in ranks:
                until(lambda job=job: is_watched(job), f"{job} is not watched")  # type: ignore[misc]
            until(lambda: metric(metrics, "frd_agent_streams_total") >= len(JOBS), "no streams")
            assert metric(metrics, "frd_agent_connected") == 1
            pongs = metric(metrics, "frd_agent_clock_pongs_total")
            until(lambda: metric(metrics, "frd_agent_clock_pongs_total") > pongs + 8, "no pings")
            assert service.metric('frd_clock_refused_total{reason="backwards"}') == 0
            assert service.get("/api/v1/findings")["watching"]["agents"] == 1


async def test_a_replica_for_each_job(tmp_path: Path, ranks: dict[str, PlayedRank]) -> None:
    """Either replica redirects the job of the other: each gets its own job's rows, a request is
    answered on the stream where it came, and SIGTERM says goodbye to both."""
    first, second = Replica(), Replica()
    first.owners, second.owners = {"two": second.address}, {"one": first.address}
    owners = {"one": first, "two": second}
    async with replicas.serving(first, second):
        service = f"{first.address},{second.address}"
        async with agent(tmp_path / "run", service) as process:
            for job, owner in owners.items():
                await async_until(lambda owner=owner: owner.open, f"the stream of {job}")  # type: ignore[misc]
                await async_until(
                    lambda job=job, owner=owner: any(  # type: ignore[misc]
                        isinstance(event, EntryColumns) for event in owner.of_job(job)
                    ),
                    f"the rows of {job}",
                )
                await owner.send(Request(7, (0,), True, False, 8.0))
                await async_until(
                    lambda job=job, owner=owner: any(  # type: ignore[misc]
                        isinstance(event, ResponsePart) and event.request_id == 7
                        for event in owner.of_job(job)
                    ),
                    f"the answer of {job}",
                )
            process.terminate()
            assert await asyncio.to_thread(process.wait, 10) == 0
        for job, owner in owners.items():
            assert isinstance(owner.of_job(job)[-1], Goodbye)
            assert JOBS[1 - JOBS.index(job)] not in owner.welcomed
