"""Laws of circles of waits: which rank of a circle is named with high confidence."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from frd.model import Confidence, Reason
from tests.world.scene import Scene
from tests.world.seeds import examples

Edges = dict[int, set[int]]


@st.composite
def waits(draw: st.DrawFn) -> tuple[Scene, list[int]]:
    """Each rank of a job waits in the first collective of one of its groups: the scene, and in
    which group each rank is."""
    world = draw(st.integers(2, 6))
    chosen = draw(st.lists(st.integers(0, world - 1), min_size=world, max_size=world))
    scene = Scene(world)
    for number in sorted(set(chosen)):
        inside = {rank for rank, at in enumerate(chosen) if at == number}
        others = draw(st.sets(st.integers(0, world - 1)))
        others = others if others - inside else {*range(world)}
        scene.group(f"g{number}", inside | others)
    for rank, number in enumerate(chosen):
        scene.waits(f"g{number}", 1, [rank], age=12 + rank / 10)
    return scene, chosen


@given(waits())
@examples(400)
def test_who_is_certain_in_a_circle(case: tuple[Scene, list[int]]) -> None:
    """Of ranks that wait for each other, those in another op than most are certain; if there is no
    majority, a rank without which no circle is left, if there is exactly one."""
    scene, chosen = case
    edges: Edges = {
        rank: {one for one in scene.groups[f"g{at}"] if chosen[one] != at}
        for rank, at in enumerate(chosen)
    }
    expected: dict[int, bool] = {}
    for circle in _circles(edges):
        (most, count), *_ = Counter(chosen[rank] for rank in circle).most_common(1)
        odd = {rank for rank in circle if chosen[rank] != most}
        if 2 * count <= len(circle):
            odd = {rank for rank in circle if not _has_circle(edges, circle - {rank})}
            odd = odd if len(odd) == 1 else set()
        expected |= {rank: rank in odd for rank in circle}
    diagnoses = scene.find()
    suspects = [suspect for one in diagnoses for suspect in one.suspects]
    assert all(suspect.reason is Reason.ORDER for suspect in suspects)
    assert {s.rank: s.confidence is Confidence.HIGH for s in suspects} == expected
    for suspect in suspects:
        if ", where rank" in suspect.evidence:  # what it left out, and which ranks wait there
            assert suspect.confidence is Confidence.HIGH
            assert any(
                f"rank {suspect.rank} {suspect.evidence}" == d.disagreement for d in diagnoses
            )


def _reach(edges: Edges, rank: int) -> set[int]:
    seen: set[int] = set()
    todo = [rank]
    while todo:
        for other in edges[todo.pop()] - seen:
            seen.add(other)
            todo.append(other)
    return seen


def _has_circle(edges: Edges, ranks: set[int]) -> bool:
    left = {rank: edges[rank] & ranks for rank in ranks}
    return any(rank in _reach(left, rank) for rank in ranks)


def _circles(edges: Edges) -> list[set[int]]:
    """Ranks of which each waits for all others."""
    found = []
    for rank in edges:
        ranks = {other for other in _reach(edges, rank) if rank in _reach(edges, other)}
        if ranks and rank == min(ranks):
            found.append(ranks)
    return found
