"""The real agent process between ranks and a collector that records its messages."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from frd.cli.commands.demo.scripted_rank import ScriptedRank
from frd.flight.decode import parse
from frd.flight.entry import Dump, Entry
from frd.flight.write import write_pickle
from frd.model import (
    ExitKind,
    Flags,
    RankState,
)
from frd.wire.clock import ClockHello, Ping
from frd.wire.messages import Part
from frd_agent.uplink.node_clock import BURST
from tests.world.collector import Collector, agent, play, serving, until
from tests.world.daemons import fetch, free_port, run_program

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(100)


@pytest.mark.torch
def test_a_hanging_job_is_reported(tmp_path: Path) -> None:
    """Rank 1 of a real gloo job is stuck in its data loader: marks, dump, stack, then its death."""
    port, run_dir = free_port(), tmp_path / "run"
    job = subprocess.Popen(
        [sys.executable, "-m", "frd_agent", "exec", "--run-dir", str(run_dir), "--job", "j", "--"]
        + [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        + ["--master-port", str(free_port())]
        + [str(ROOT / "examples" / "missing_rank.py"), "--rank", "1", "--step", "20"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    async def scene() -> None:
        async with serving(Collector("one"), port) as service, agent(run_dir, port) as process:
            await until(
                lambda: service.marks.get((0, 0), (0, 0, 0))[:2] == (21, 20), "the hang", 60
            )
            await until(lambda: service.marks.get((1, 0), (0, 0, 0))[:2] == (20, 20), "rank 1")
            since = service.marks[0, 0][2]
            await until(lambda: service.as_of[1] > since + 10**9, "proof of absence")
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
            await until(lambda: service.state(1) is RankState.EXITED, "the death", 3)
            assert service.statuses[1].detail.startswith("killed by SIGKILL; ")
            how = service.statuses[1].exit
            assert how is not None
            assert (how.kind, how.signal) == (ExitKind.SIGNAL, signal.SIGKILL)
            await service.ask(1)
            assert "kept from" in service.parts[1, Part.DUMP].source
            process.terminate()
            assert await asyncio.to_thread(process.wait, 10) == 0
            assert service.goodbye

    try:
        play(scene)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


async def test_a_restarted_service_hears_of_what_is_open(tmp_path: Path) -> None:
    """Everything was acknowledged by a service that is gone: the next one gets what is open."""
    port = free_port()
    rank = ScriptedRank(tmp_path)
    for _ in range(5):
        rank.enter()
        rank.leave()
    rank.enter()
    rank.publish()
    async with agent(tmp_path, port):
        async with serving(Collector("one"), port) as first:
            await until(lambda: first.marks.get((0, 0), (0, 0, 0))[:2] == (6, 5), "the marks")
        async with serving(Collector("two"), port) as second:
            await until(lambda: (0, 0) in second.marks, "the marks")
            await until(lambda: second.state(0) is RankState.LIVE, "the status")
            (replay,) = second.rows
            assert (replay.first_revision, replay.seq.tolist()) == (0, [6])
            assert second.marks[0, 0][:2] == (6, 5)
            assert second.hellos[0].session == first.hellos[0].session
    rank.close()


async def test_a_restarted_agent_is_another_session(tmp_path: Path) -> None:
    """The agent is killed: its successor counts from 1 again, and says so by its session."""
    port = free_port()
    rank = ScriptedRank(tmp_path)
    rank.enter()
    rank.leave()
    rank.publish()
    async with serving(Collector("one"), port) as service:
        async with agent(tmp_path, port):
            await until(lambda: len(service.rows) == 1, "the rows")
        async with agent(tmp_path, port):
            await until(lambda: len(service.rows) == 2, "the rows again")
        assert [batch.first_revision for batch in service.rows] == [1, 1]
        assert len({hello.session for hello in service.hellos}) == 2
    rank.close()


async def test_pings_go_on_during_the_stream(tmp_path: Path) -> None:
    """A clock stream ends, one is answered with nonsense: others follow, and the rows go on."""
    port = free_port()
    async with serving(Collector("one"), port) as service, agent(tmp_path, port):
        await until(lambda: len(service.pings) > 2 and len(service.pings[2]) > BURST, "pings")
        assert len(service.hellos) == 1
        for hello, *pings in service.pings:
            said = service.hellos[0]
            assert hello == ClockHello(said.boot_id, said.session)
            numbered = [ping for ping in pings if isinstance(ping, Ping)]
            assert [ping.number for ping in numbered] == list(range(1, len(pings) + 1))
            assert all(len(ping.readings.raw_ns) for ping in numbered)
        assert any(isinstance(ping, Ping) and ping.pong for ping in service.pings[2])


def test_a_frozen_rank_is_silent_and_comes_back(tmp_path: Path) -> None:
    """SIGSTOP and SIGCONT: silent with the state of the process, then alive again. SIGKILL: an
    agent that comes later cannot know of the signal, and says why."""
    port = free_port()
    ranks = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "scripted_rank.py")]
        + ["--run-dir", str(tmp_path), "--ranks", "1", "--rate", "20"]
    )

    async def scene() -> None:
        async with serving(Collector("one"), port) as service:
            async with agent(tmp_path, port):
                await until(lambda: service.state(0) is RankState.LIVE, "the rank")
                ranks.send_signal(signal.SIGSTOP)
                await until(lambda: service.state(0) is RankState.SILENT, "silence", 8)
                assert service.statuses[0].detail == f"process {ranks.pid} is stopped (state T)"
                ranks.send_signal(signal.SIGCONT)
                await until(lambda: service.state(0) is RankState.LIVE, "life", 8)
                ranks.kill()
                await until(lambda: service.state(0) is RankState.EXITED, "death", 3)
                assert service.statuses[0].detail.startswith("killed by SIGKILL; ")
            ranks.wait()
            service.statuses.clear()
            async with agent(tmp_path, port):
                await until(lambda: service.state(0) is RankState.EXITED, "death, again")
                known = "no exit record, and its exit status is not known"
                assert service.statuses[0].detail == f"{known}; it ended before this agent saw it"

    try:
        play(scene)
    finally:
        ranks.kill()
        ranks.wait()


async def test_rows_that_are_refused_for_ever_are_dropped(tmp_path: Path) -> None:
    """A service refuses the same rows twice: they are dropped and counted, and the rest goes on."""
    port, metrics = free_port(), f"127.0.0.1:{free_port()}"
    rank = ScriptedRank(tmp_path)
    rank.enter()
    rank.leave()
    rank.publish()
    service = Collector("one", refuse=2)
    flags = ("--metrics", metrics)
    async with serving(service, port), agent(tmp_path, port, *flags):
        await until(lambda: (0, 0) in service.marks, "the marks")
        assert service.rows == []
        assert service.marks[0, 0][:2] == (1, 1)
        said = await asyncio.to_thread(fetch, metrics)
        assert 'frd_agent_dropped_rows_total{reason="refused"} 1.0' in said
        assert "frd_agent_connected 1.0" in said
        assert "process_resident_memory_bytes" in said
        await until(
            lambda: bool(service.statuses) and service.statuses[0].gap_entries == 1,
            "a status that counts what was dropped",
        )
    rank.close()


class Hostile:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("true",)


async def test_dump_files_speak_for_ranks_without_a_tap(tmp_path: Path) -> None:
    """torch writes a dump of rank 5 at a timeout; a hostile file next to it is refused, counted."""
    port, metrics = free_port(), f"127.0.0.1:{free_port()}"
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
    flags = ("--metrics", metrics, "--dump-dir", str(dumps))
    async with serving(Collector("one"), port) as service, agent(tmp_path, port, *flags):
        await until(lambda: (5, 0) in service.marks, "the file")
        assert service.marks[5, 0][:2] == (1, 0)
        await service.ask(5)
        assert service.parts[5, Part.DUMP].source == "file trace_5"
        said = await asyncio.to_thread(fetch, metrics)
        assert 'frd_agent_refused_files_total{kind="dump"} 1.0' in said


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--service", "nowhere"], 2, "service: 'nowhere'"),
        (["--config", "/nowhere.toml"], 2, "config: /nowhere.toml"),
    ],
)
def test_a_start_that_cannot_be_is_one_line(flags: list[str], code: int, said: str) -> None:
    """A bad address, a missing file: one line that names it, and no traceback."""
    done = run_program([sys.executable, "-m", "frd_agent", "run", *flags])
    assert done.returncode == code
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("frd: error: ")
    assert said in last
    assert "Traceback" not in done.stderr
