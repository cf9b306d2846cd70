"""Replay of a cell's log: the same findings as from a journal, across owners, from real servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from frd.cli import FINDINGS_PRESENT, run
from frd.cluster.cells import cell_of
from frd.cluster.log import FencedLog
from frd.model import AlignedNs
from frd.service.journal.appending import Appender
from frd.service.journal.reading import read
from frd.service.journal.replay import Replayed, replay
from frd.service.journal.replicated import ReplicatedLog
from frd.service.journal.runs import Budget
from frd.store.journal import JournalLimits
from frd.store.records import Record, RecordKind
from frd.wire.decode import Decoder
from tests.unit.service.journal.test_replay import SETTINGS, incident, recorded, replayed
from tests.world.fake_cluster import FakeLog, FakeStream, Faults
from tests.world.nats_clients import nats_client, options_for
from tests.world.nats_servers import nats_servers
from tests.world.virtual_time import run_virtual

LIMITS: Final = JournalLimits(total_bytes=10**9)


async def put(fenced: FencedLog, owner: str, records: Sequence[Record]) -> None:
    """Write the log of an owner that received this."""
    await fenced.take(owner)
    log = ReplicatedLog(
        Appender(7, fenced, owner),
        settings=SETTINGS,
        now=records[0].at,
        limits=LIMITS,
        budget=Budget(),
        on_fenced=pytest.fail,
    )
    decoder = Decoder()
    for record in records:
        match record.kind:
            case RecordKind.MESSAGE:
                event = decoder.decode(record.payload)
                assert log.message(record.stream, record.at, record.payload, event)
            case RecordKind.TICK:
                log.tick(record.at)
                await asyncio.sleep(0.01)
            case _:
                log.record(record.kind, record.at, record.stream, record.payload)
    await log.stop()
    assert log.stored == log.position


def of_log(servers: FakeStream) -> Replayed:
    async def work() -> list[Record]:
        log = FakeLog(servers, Faults())
        pieces = [p async for p in read(log, servers.first, servers.last, pytest.fail)]
        return [record for piece in pieces for record in piece]

    return replay(run_virtual(work()), pytest.fail)


def test_a_log_gives_the_findings_of_a_journal(tmp_path: Path) -> None:
    """The same stall, in a journal and in a cell's log with a checkpoint in between: the findings
    are equal, with ids and times."""
    records = list(incident(until_s=70))
    servers = FakeStream()
    run_virtual(put(FakeLog(servers, Faults()), "a", records))
    found = of_log(servers)
    assert found.findings == replayed(recorded(tmp_path, records)).findings
    assert len(found.findings) == 1
    assert found.jobs == {"train"}
    del servers.messages[:20]  # the oldest bundles, as the servers delete them
    servers.first = 21
    assert of_log(servers).records < found.records


def test_two_owners_in_one_log() -> None:
    """The second owner takes the log in the middle of the stall; the agent connects there and sends
    again. The finding is the same, and stays open across the takeover."""
    records = list(incident(until_s=12))
    later = [replace(r, at=AlignedNs(r.at + 30 * 10**9)) for r in records[:8]]
    servers = FakeStream()
    run_virtual(put(FakeLog(servers, Faults()), "a", records))
    first = of_log(servers)
    run_virtual(put(FakeLog(servers, Faults()), "b", later))
    both = of_log(servers)
    assert [one.id for one in both.findings] == [one.id for one in first.findings]
    assert both.last_at > first.last_at


@pytest.mark.nats
def test_replay_of_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`frd replay --config` reads a cell's log from a real server: it names the rank, changes
    nothing, and says what to do for a cell that nothing was written to."""
    records = list(incident())

    async def work(name: str) -> None:
        async with nats_client(options_for(servers, name)) as client:
            log = client.log(cell_of("train"))
            await put(log, "a", records)

    with nats_servers(tmp_path, 1) as servers:
        asyncio.run(work("frd"))
        streams = servers.all[0].ask("jsz?streams=1")["streams"]
        config = tmp_path / "frd.toml"
        config.write_text(f'[cluster]\nservers = ["{servers.urls[0]}"]\nreplicas = 1\n')
        args = ["replay", "--config", str(config)]
        assert run([*args, "--job", "train", "--json"]) == FINDINGS_PRESENT
        shown = json.loads(capsys.readouterr().out)
        (found,) = shown["findings"]
        assert [suspect["rank"] for suspect in found["suspects"]] == [2]
        assert shown["warnings"] == []
        assert run([*args, "--cell", str(cell_of("train"))]) == FINDINGS_PRESENT
        capsys.readouterr()
        assert run([*args, "--job", "other"]) == 1
        assert "log: it is empty, or there is none: check cluster.name" in capsys.readouterr().err
        assert servers.all[0].ask("jsz?streams=1")["streams"] == streams
    assert run([*args, "--job", "train"]) == 1
    assert "cluster.servers" in capsys.readouterr().err


def test_replay_needs_to_know_which_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Options that do not fit together, and a configuration without a cluster."""
    config = tmp_path / "frd.toml"
    config.write_text("")
    for args, why in (
        ([], "name a JOURNAL, or --config with --job or --cell"),
        ([str(tmp_path), "--cell", "3"], "--config and --cell are for a log"),
        (["--config", str(config)], "--config: name the --job, or the --cell"),
        (["--config", str(config), "--cell", "64"], "64 is not in the range"),
        (["--config", str(config), "--cell", "3"], "cluster.servers: not set in"),
    ):
        assert run(["replay", *args]) == 2, args
        assert why in capsys.readouterr().err
