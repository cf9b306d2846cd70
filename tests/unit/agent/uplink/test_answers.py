"""What the agent answers for a rank that is gone, and of the wait of a rank."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from frd.flight.entry import Dump
from frd.flight.pickles.unpickle import load_plain
from frd.flight.write import write_pickle
from frd.model import Certainty, NodeNs, WaitKind, WaitsFor
from frd.wire.messages import Part, Request, ResponsePart
from frd.wire.waits import WaitReport, decode_ras, decode_report
from frd_agent.counters import Counters
from frd_agent.inspection.inspector import Inspector
from frd_agent.nccl_ras.client import RasClient
from frd_agent.node_time import raw_now
from frd_agent.ranks.dump_files import DumpFiles
from frd_agent.ranks.rank import Rank
from frd_agent.ranks.roster import Roster
from frd_agent.recorder.recorders import KeptDump
from frd_agent.recorder.transitions import RecorderTracker
from frd_agent.uplink.answers import _find, answer, answer_ras, answer_waits
from tests.world.clocks import S
from tests.world.entries import dump, nccl
from tests.world.ras_server import RasServer, moved, serving_ras
from tests.world.run_dir import TOKEN, identity, shared
from tests.world.suspects import suspect


def of_ops(*created_ns: int) -> Dump:
    group = ("0", "default_pg")
    return dump(
        [
            nccl(i, i + 1, "scheduled", process_group=group, time_created_ns=at)
            for i, at in enumerate(created_ns)
        ]
    )


SLEEPS = "import time; print('ready', flush=True); time.sleep(300)"


def rank_of(pid: int, run_dir: Path) -> tuple[Roster, Rank]:
    """The process has published that it is a rank."""
    known = identity(pid=pid, socket=None, shm=None, started_at_ns=time.time_ns())
    (run_dir / f"{TOKEN}.json").write_text(json.dumps(known))
    roster = Roster(run_dir, shared())
    (rank,) = roster.update(raw_now())
    return roster, rank


@pytest.mark.parametrize("ahead_s", [-600, 0, 600])
@pytest.mark.parametrize("is_later", [False, True])
async def test_the_dump_with_the_latest_op_is_the_last(
    tmp_path: Path, is_later: bool, ahead_s: int
) -> None:
    """The rank wrote a file, and the agent had asked it for a dump: the one with the later op is
    the last dump, whatever the clock of the file server says."""
    now_ns = time.time_ns()
    roster, rank = rank_of(2**22 + 1, tmp_path)
    roster.end(rank, raw_now())
    first_ns, second_ns = now_ns - 20 * S, now_ns - 10 * S
    ops = [of_ops(first_ns), of_ops(first_ns, second_ns)]
    kept, written = ops if is_later else reversed(ops)
    groups = {"0": ("default_pg", (0, 1))}
    data = json.dumps(load_plain(write_pickle(kept, groups), source="x")).encode()
    asked_ns = NodeNs(now_ns - (15 if is_later else 5) * S)
    rank.recorders._kept[RecorderTracker()] = KeptDump("nccl", asked_ns, data)
    path = tmp_path / "rank_1"
    path.write_bytes(write_pickle(written, groups))
    written_ns = now_ns - (5 if is_later else 15) * S
    os.utime(path, ns=(now_ns, written_ns + ahead_s * S))
    files = DumpFiles([tmp_path])
    files.changed()
    found = await _find(rank, [files.read(path)], 1.0)
    files.rest()
    roster.close()
    assert len(found.dump.entries) == 2
    assert found.source.startswith("file rank_1" if is_later else "nccl, kept from")
    assert second_ns <= found.taken_at_ns <= time.time_ns()


async def test_the_wait_of_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer comes immediately and knows nothing; a few samples later it does."""
    monkeypatch.setattr("frd_agent.inspection.inspector.EVERY_S", 0.1)
    sent: list[ResponsePart] = []

    async def send(part: ResponsePart) -> None:
        sent.append(part)

    request, inspector = Request(4, (1,), False, False, 5.0, waits=True), Inspector(Counters())
    with suspect(SLEEPS) as process:
        roster, rank = rank_of(process.pid, tmp_path)

        async def ask() -> WaitReport:
            await answer_waits(rank, request, send, inspector, roster)
            part = sent.pop()
            assert (part.request_id, part.part, part.last) == (4, Part.WAITS, True)
            return decode_report(part.data)

        assert (await ask()).waits_for == WaitsFor(WaitKind.UNKNOWN, Certainty.UNKNOWN)
        began_ns = raw_now()
        while not (found := await ask()).waits_for.says:
            await asyncio.sleep(0.1)
        assert (found.waits_for.kind, found.waits_for.pid) == (WaitKind.SLEEP, process.pid)
        assert 0 < found.since_ns <= began_ns + 5 * S
    roster.end(rank, raw_now())
    await answer_waits(rank, request, send, inspector, roster)
    assert (sent[0].error, sent[0].data) == ("the process is gone", b"")
    inspector.stop()
    roster.close()


async def test_the_log_of_a_rank_that_left_no_dump(tmp_path: Path) -> None:
    """What it wrote last is in its identity, with its address."""
    sent: list[ResponsePart] = []

    async def send(part: ResponsePart) -> None:
        sent.append(part)

    path = tmp_path / "rank1.err"
    code = "import sys; print('out of paper', file=sys.stderr, flush=True)\n" + SLEEPS
    with (
        path.open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-c", code, "--token", "x"], stdout=subprocess.PIPE, stderr=stderr
        ) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        roster, rank = rank_of(process.pid, tmp_path)
        process.kill()
    roster.end(rank, raw_now())
    request = Request(4, (1,), True, False, 5.0)
    await answer(rank, request, send, ())
    why = json.loads(sent[-1].data)["log"]["why"]
    assert why == "it was no suspect at that time"
    await answer(rank, request, send, (), others=())
    about = {part.part: part for part in sent}
    assert about[Part.DUMP].error.endswith("gone, and it left no dump")
    said = json.loads(about[Part.IDENTITY].data)
    assert said["log"] == {"path": str(path), "lines": ["out of paper"], "why": ""}
    assert said["address"]["log"] == str(path)
    assert said["address"]["command"].endswith("--token REDACTED")
    roster.close()


async def test_what_nccl_says_of_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is that of the rank's environment; the answer comes in pieces if it is large.
    Without RAS, or with `ras = false`, the answer is an error."""
    sent: list[ResponsePart] = []

    async def send(part: ResponsePart) -> None:
        sent.append(part)

    request, ras = Request(4, (1,), False, False, 5.0, ras=True), RasClient(Counter())
    with serving_ras(RasServer(b"")) as server:
        monkeypatch.setenv("NCCL_RAS_ADDR", server.address)
        with suspect(SLEEPS) as process:
            pids = {671: 1, 674: process.pid, 677: 3, 678: 4}
            server.answers = [moved("lagging", pids)]
            roster, rank = rank_of(process.pid, tmp_path)
            monkeypatch.setattr("frd_agent.uplink.answers.PART_BYTES", 100)
            await answer_ras(rank, request, send, ras)
            assert [part.last for part in sent] == [False] * (len(sent) - 1) + [True]
            assert {(part.part, part.source, part.error) for part in sent} == {
                (Part.RAS, "ras", "")
            }
            report = decode_ras(b"".join(part.data for part in sent))
            assert [one.size for one in report.communicators] == [2, 4, 2]
            await answer_ras(rank, request, send, None)
            assert "ras = false" in sent[-1].error
    await answer_ras(rank, request, send, ras)
    assert sent[-1].error.startswith("NCCL RAS: ")
    assert (sent[-1].data, sent[-1].last) == (b"", True)
    roster.close()
