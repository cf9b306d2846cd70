"""SIGTERM: daemons finish what they have begun, and then end, even with open requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from subprocess import Popen

import pytest

from frd.model import AlignedNs, AttemptKey, FindingState
from frd.store.dumps import DumpStore
from frd.store.findings import FindingStore
from frd.store.journal import read
from frd.store.records import RecordKind
from frd.wire.messages import Part
from tests.world import streams
from tests.world.collector import Collector, agent, serving
from tests.world.daemons import agent_command, async_until, end, freeze, running, until
from tests.world.played_rank import PlayedRank
from tests.world.streams import Peer, Service, peer

WITHIN_S = 10
DUMP_BYTES = 64 * 1024 * 1024
"""More than sockets take without a reader."""
pytestmark = pytest.mark.timeout(90)


def stored_dump(data_dir: Path) -> str:
    store = DumpStore(data_dir / "dumps", max_count=8, max_bytes=2 * DUMP_BYTES)
    dump = store.create(AttemptKey("old", 0), AlignedNs(time.time_ns()))
    dump.add(0, Part.DUMP, bytes(DUMP_BYTES), last=True)
    return dump.finish({})


async def stall(peers: list[Peer]) -> None:
    """Rank 2 of the first two peers' job never joins collective 7; the other jobs do not move."""
    since = time.time_ns() - 2_000_000_000
    while True:
        for at, one in enumerate(peers):
            await one.send(one.watermarks((6 if at == 1 else 7, 7) if at < 2 else (6, 6), since))
        await asyncio.sleep(0.2)


def test_a_service_ends_under_load(tmp_path: Path) -> None:
    """64 agents stream, a finding is open and a client reads a dump slowly: SIGTERM ends the
    service with exit code 0, and all data is stored."""
    dump_id = stored_dump(tmp_path)

    async def scene(service: Service) -> None:
        async with AsyncExitStack() as stack:
            peers = [
                await stack.enter_async_context(
                    peer(service, node % 2, f"s{node}", f"job-{node // 2}")
                )
                for node in range(64)
            ]
            await asyncio.gather(*(peer.introduce() for peer in peers))
            speaking = asyncio.create_task(stall(peers))
            host, _, port = service.http.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET /api/v1/dumps/{dump_id} HTTP/1.1\r\nHost: frd\r\n\r\n".encode())
            assert (await reader.readline()).split()[1] == b"200"
            open_now = "/api/v1/findings?state=open"
            await asyncio.to_thread(until, lambda: service.get(open_now)["findings"])
            await asyncio.to_thread(service.terminate)
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)
            writer.close()

    with streams.serving(tmp_path, "--stall-after", "1") as service:
        asyncio.run(scene(service))
    store = FindingStore(tmp_path / "findings.sqlite3")
    (finding,) = store.open_findings()
    store.close()
    assert finding.state is FindingState.OPEN
    assert [suspect.rank for suspect in finding.suspects] == [2]
    missing: list[str] = []
    kinds = [record.kind for record in read(tmp_path / "journal", missing.append)]
    assert not missing
    assert kinds.count(RecordKind.OPENED) == 64


async def test_an_agent_sends_the_rest_first(tmp_path: Path) -> None:
    """SIGTERM comes with the first rows: the service gets all rows, then the goodbye."""
    rank = PlayedRank(tmp_path)
    for _ in range(50):
        rank.enter()
        rank.leave()
    rank.publish()
    async with (
        serving(Collector()) as collector,
        agent(tmp_path, collector.address) as process,
    ):
        await async_until(lambda: bool(collector.rows), "the first rows")
        process.terminate()
        assert await asyncio.to_thread(process.wait, WITHIN_S) == 0
        assert collector.goodbyes
        seqs = {int(seq) for batch in collector.rows for seq in batch.seq}
        assert len(seqs) == 50
    rank.close()


@pytest.mark.parametrize("lose", [freeze, end], ids=["mute", "absent"])
def test_an_agent_does_not_wait_for_ever(
    tmp_path: Path, lose: Callable[[Popen[str]], None]
) -> None:
    """The service stopped reading, or is gone: SIGTERM ends the agent with exit code 0."""
    run_dir = tmp_path / "run"
    rank = PlayedRank(run_dir)
    rank.publish()
    with (
        streams.serving(tmp_path / "data", "--stall-after", "1") as service,
        running(agent_command(run_dir, "--service", service.grpc)) as agent_process,
    ):
        until(lambda: service.get("/api/v1/jobs")["jobs"])
        lose(service.process)
        rank.enter()
        rank.publish()
        agent_process.terminate()
        assert agent_process.wait(WITHIN_S) == 0
    rank.close()
