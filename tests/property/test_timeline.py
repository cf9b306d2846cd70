"""Laws of lanes and flows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from frd.offline.analysis.analyze import analyze
from frd.offline.output.timeline import INSTANT, flows
from frd.perfetto.writer import NO_LANE, OPEN, lanes
from tests.world.traces import Folder, Row

times = st.integers(0, 60)
intervals = st.lists(
    st.tuples(times, st.one_of(times, st.just(OPEN), st.just(INSTANT))), max_size=40
)


@given(intervals, st.integers(1, 4))
def test_nothing_in_one_lane_touches(drawn: list[tuple[int, int]], most: int) -> None:
    """Slices of one lane are apart, instants have none, and there are no more than allowed."""
    pairs = sorted(
        (first, last if last in (OPEN, INSTANT) else max(first, last)) for first, last in drawn
    )
    begin = np.array([first for first, _ in pairs], np.int64)
    end = np.array([last for _, last in pairs], np.int64)
    lane = lanes(begin, end, most)
    assert lane.max(initial=NO_LANE) < most
    assert (lane[end == INSTANT] == NO_LANE).all()
    for which in range(most):
        mine = np.flatnonzero(lane == which)
        assert (begin[mine][1:] > end[mine][:-1]).all()
    if most >= len(pairs):
        assert (lane[end != INSTANT] != NO_LANE).all()


def test_peers_share_a_number_and_p2p_has_none() -> None:
    """A collective has one number on all ranks, once a rank, though their rings start elsewhere."""
    rows = [
        Row("nccl:all_reduce", 5, at=1),
        Row("nccl:all_reduce", 5, at=2, group="1"),
        Row("nccl:_broadcast_oop", 6, at=3),
        Row("nccl:ALLGATHER_coalesced", 6, at=4),
        Row("nccl:send 0->1", 6, at=5, p2p=True),
    ]
    folder = Folder().group("0", [0, 1]).group("1", [0, 1])
    folder.rank(0, *rows).rank(1, *rows[1:])
    collectives = analyze(folder.trace()).collectives
    one, two = (flows(collectives.of_entries(rank)).tolist() for rank in (0, 1))
    assert one[1:] == two
    assert len({*one[:3]}) == 3
    assert min(one[:3]) > 0
    assert one[3:] == [0, 0]
    assert collectives.find(collectives[1].group.group_id, collectives[1].seq) == 1
    assert collectives.find("unknown", 5) == -1
