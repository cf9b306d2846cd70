"""The ops of a batch of sends and receives are one call: their order means nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from frd.flight.progress import p2p_runs, posted_before
from frd.offline.analysis.analyze import Analysis, analyze
from tests.world.seeds import examples
from tests.world.traces import Folder, Row

WORLD = 4
PAIRS = [(src, dst) for src in range(WORLD) for dst in range(WORLD) if src != dst]


def row(name: str, batch: int, size: int = 4, at: float = 4_000) -> Row:
    shape = ((size,),)
    return Row(
        f"nccl:{name}", 1, at=at, state="scheduled", ins=shape, outs=shape, p2p=True, p2p_seq=batch
    )


@st.composite
def batches(draw: st.DrawFn) -> list[list[Row]]:
    """The two batches that each rank has in flight: sends and receives of some pairs, some of which
    lack their other end, or have another size there."""
    ranks: list[list[Row]] = [[] for _ in range(WORLD)]
    for number in (1, 2):
        for src, dst in draw(st.lists(st.sampled_from(PAIRS), max_size=6)):
            ends = draw(st.sampled_from([(4, 4)] * 3 + [(4, 0), (0, 4), (4, 8)]))
            for rank, name, size in (
                (src, "send {}->{}", ends[0]),
                (dst, "recv {1}<-{0}", ends[1]),
            ):
                if size:
                    ranks[rank].append(row(name.format(src, dst), number, size, number * 1_000))
    return ranks


def claims(analysis: Analysis) -> Any:
    return [
        (
            *(finding.kind, finding.reason, finding.summary, finding.victims, finding.unknown),
            [(s.rank, s.reason, s.confidence, s.evidence) for s in finding.suspects],
        )
        for finding in analysis.findings
    ]


def verdict(ranks: list[list[Row]]) -> Any:
    folder = Folder().group("0", range(WORLD))
    for rank, rows in enumerate(ranks):
        done = Row("nccl:all_reduce", 1, at=1, completed_at=2)
        folder.rank(rank, done, *(replace(one, record_id=None) for one in rows))
    return claims(analyze(folder.trace()))


@examples(300)
@given(batches(), st.randoms(use_true_random=False))
def test_the_order_of_the_ops_of_a_batch_does_not_matter(
    ranks: list[list[Row]], chance: random.Random
) -> None:
    """Each rank lists the ops of each batch in another order; those of one channel stay in turn."""
    shuffled = []
    for rows in ranks:
        of = {number: [one for one in rows if one.p2p_seq == number] for number in (1, 2)}
        for some in of.values():
            sizes = {name: [r for r in some if r.name == name] for name in {r.name for r in some}}
            chance.shuffle(some)
            some[:] = [sizes[one.name].pop(0) for one in some]
        shuffled.append([*of[1], *of[2]])
    assert verdict(ranks) == verdict(shuffled)


@examples(200)
@given(st.lists(st.tuples(*[st.integers(0, 1)] * 3, st.integers(1, 9), *[st.integers(0, 2)] * 2)))
def test_runs_keep_all_ops_in_order(ops: list[tuple[int, ...]]) -> None:
    """Runs hold each op once, channels in order of posting and numbers, batches with one time."""
    channels = np.array([op[0] * 4 + op[1] * 2 + op[2] for op in ops], np.int64)
    numbers = posted_before(channels).tolist()
    runs = p2p_runs([(*op, at) for op, at in zip(ops, numbers, strict=True)]).T.tolist()
    for channel in {op[:3] for op in ops}:
        mine = [run for run in runs if tuple(run[:3]) == channel]
        posted = [run[6] for run in mine for _ in range(run[3])]
        assert posted == [op[5] for op in ops if op[:3] == channel]
        assert [run[7] for run in mine] == [
            sum(run[3] for run in mine[:at]) for at in range(len(mine))
        ]
    times: dict[tuple[int, int], set[int]] = {}
    for run in runs:
        if run[5]:
            times.setdefault((run[0], run[5]), set()).add(run[4])
    assert all(len(of) == 1 for of in times.values())
