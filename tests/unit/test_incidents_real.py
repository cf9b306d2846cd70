"""Two real incidents of 16-rank NCCL jobs, with the faults injected on ranks 9 and 14."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from frd.engine.hangs.diagnosis import find
from frd.engine.state.snapshot import ChannelSnapshot, GroupSnapshot, Snapshot, StallTable
from frd.flight import Dump, load_dump, parse_profiling_name
from frd.model import UNKNOWN_SEQ, AlignedNs, AttemptKey, GroupInfo, RankState, Reason

TRACES = Path(__file__).parents[3] / "shared" / "traces"
WORLD = 16

pytestmark = pytest.mark.skipif(
    not TRACES.is_dir(), reason="the real traces (../shared/traces) are not here"
)


def dumps(name: str) -> dict[int, Dump]:
    return {rank: load_dump(TRACES / name / f"_dump_{rank}") for rank in range(WORLD)}


def last_seqs(dump: Dump) -> dict[str, int]:
    """The last enqueued seq of each group of a rank, for groups with collectives only.

    These dumps hold what was in flight; for a group without any, `pg_status` is all there is. Its
    keys are numbers of the process, given in the order in which groups were created, and so are
    the names, which are numbers of the job.
    """
    names = sorted(dump.groups, key=int)
    status = {
        name: dump.status[at].enqueued for name, at in zip(names, sorted(dump.status), strict=True)
    }
    for entry in dump.entries:
        status[entry.group_name] = entry.collective_seq_id
    return status


def picture_of(ranks: dict[int, Dump]) -> tuple[Snapshot, StallTable]:
    now = AlignedNs(max(e.time_created_ns for d in ranks.values() for e in d.entries) + 60 * 10**9)
    infos: dict[GroupInfo, None] = {}
    for dump in ranks.values():
        infos |= dict.fromkeys(dump.groups.values())
    groups, stalled, channels = [], [], []
    for at, info in enumerate(infos):
        rows = []
        for rank in info.ranks:
            mine = [e for e in ranks[rank].entries if e.group_name == info.name]
            flying = sorted({e.collective_seq_id for e in mine if not e.is_p2p})
            last = last_seqs(ranks[rank])[info.name]
            since = min((e.time_created_ns for e in mine if not e.is_p2p), default=0)
            rows.append((last, UNKNOWN_SEQ, flying[0] - 1 if flying else last, since))
            if flying:
                stalled.append((at, rank, flying[0], since))
            ends = defaultdict(list)
            for entry in mine:
                if entry.is_p2p:
                    name = parse_profiling_name(entry.profiling_name)
                    assert name.src is not None
                    assert name.dst is not None
                    ends[info.ranks[name.src], info.ranks[name.dst]].append(entry.time_created_ns)
            for (src, dst), times in ends.items():
                peer = dst if src == rank else src
                channels.append((rank, at, peer, src == rank, len(times), min(times)))
                stalled.append((at, rank, UNKNOWN_SEQ, min(times)))
        members = np.array(info.ranks, np.int32)
        enqueued, started, completed, since_head = np.array(rows, np.int64).T
        ops = op_lookup(ranks, info)
        groups.append(GroupSnapshot(info, members, enqueued, started, completed, since_head, ops))
    table = np.array(channels, np.int64).T
    rank, group, peer, is_send, in_flight, since_column = table
    snapshot = Snapshot(
        key=AttemptKey("megatron", 0),
        now=now,
        world_size=WORLD,
        rank=np.arange(WORLD, dtype=np.int32),
        as_of=np.full(WORLD, now, np.int64),
        state=[RankState.LIVE] * WORLD,
        state_since=np.zeros(WORLD, np.int64),
        detail=[""] * WORLD,
        connected=np.ones(WORLD, np.bool_),
        gap=np.zeros(WORLD, np.bool_),
        info={},
        groups=groups,
        channels=ChannelSnapshot(
            rank.astype(np.int32),
            group.astype(np.int32),
            peer.astype(np.int32),
            is_send.astype(np.uint8),
            in_flight,
            since_column,
        ),
    )
    late = np.array(stalled, np.int64).T
    return snapshot, StallTable(
        late[0].astype(np.int32), late[1].astype(np.int32), late[2], late[3]
    )


def op_lookup(ranks: dict[int, Dump], info: GroupInfo) -> Callable[[int], str]:
    ops = {
        entry.collective_seq_id: parse_profiling_name(entry.profiling_name).op
        for rank in info.ranks
        for entry in ranks[rank].entries
        if entry.group_name == info.name and not entry.is_p2p
    }
    return lambda seq: ops.get(seq, "")


@pytest.mark.parametrize(
    ("incident", "reason"),
    [
        pytest.param("gpu_error_2nd", Reason.IN_COLLECTIVE_ALONE, id="gpu_error"),
        pytest.param("lock_gil_1st", Reason.CPU_STUCK, id="lock_gil"),
    ],
)
def test_exactly_the_injected_ranks_are_named(incident: str, reason: Reason) -> None:
    """Of 16 ranks in 13 layers of groups, 9 and 14 are at fault; all others are victims."""
    snapshot, stalled = picture_of(dumps(incident))
    (verdict,) = find(snapshot, stalled)
    assert {blame.rank: blame.reason for blame in verdict.suspects} == {9: reason, 14: reason}
    assert set(verdict.victims) == set(range(WORLD)) - {9, 14}
    assert verdict.unknown == ()
