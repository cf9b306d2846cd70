"""What the agent answers for a rank that is gone."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from frd.flight.entry import Dump
from frd.flight.write import write_pickle
from frd.model import NodeNs
from frd_agent.node_time import raw_now
from frd_agent.ranks.dump_files import DumpFiles
from frd_agent.ranks.roster import Roster
from frd_agent.recorder.recorders import KeptDump
from frd_agent.recorder.transitions import RecorderTracker
from frd_agent.uplink.answers import _find
from tests.world.clocks import S
from tests.world.entries import dump, nccl
from tests.world.run_dir import TOKEN, identity, shared


def of_ops(*created_ns: int) -> Dump:
    group = ("0", "default_pg")
    return dump(
        [
            nccl(i, i + 1, "scheduled", process_group=group, time_created_ns=at)
            for i, at in enumerate(created_ns)
        ]
    )


@pytest.mark.parametrize("ahead_s", [-600, 0, 600])
@pytest.mark.parametrize("is_later", [False, True])
async def test_the_dump_with_the_latest_op_is_the_last(
    tmp_path: Path, is_later: bool, ahead_s: int
) -> None:
    """The rank wrote a file, and the agent had asked it for a dump: the one with the later op is
    the last dump, whatever the clock of the file server says."""
    common, now_ns = shared(), time.time_ns()
    known = identity(pid=2**22 + 1, socket=None, shm=None)
    (tmp_path / f"{TOKEN}.json").write_text(json.dumps(known))
    roster = Roster(tmp_path, common)
    (rank,) = roster.update(common.time.now())
    roster.end(rank, raw_now())
    first_ns, second_ns = now_ns - 20 * S, now_ns - 10 * S
    ops = [of_ops(first_ns), of_ops(first_ns, second_ns)]
    kept, written = ops if is_later else reversed(ops)
    groups = {"0": ("default_pg", (0, 1))}
    data = write_pickle(kept, groups)
    asked_ns = NodeNs(now_ns - (15 if is_later else 5) * S)
    rank.recorders._kept[RecorderTracker()] = KeptDump("nccl", asked_ns, data)
    path = tmp_path / "rank_1"
    path.write_bytes(write_pickle(written, groups))
    written_ns = now_ns - (5 if is_later else 15) * S
    os.utime(path, ns=(now_ns, written_ns + ahead_s * S))
    files = DumpFiles([tmp_path])
    files.changed()
    found = await _find(rank, [files.read(path)], 1.0)
    roster.close()
    assert len(found.dump.entries) == 2
    assert found.source.startswith("file rank_1" if is_later else "nccl, kept from")
    assert second_ns <= found.taken_at_ns <= time.time_ns()
