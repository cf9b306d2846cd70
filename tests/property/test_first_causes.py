"""Laws of first causes, over random layouts, random programs and random snapshots."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from frd.engine.hangs.diagnosis import diagnose
from frd.model import Confidence, Kind, RankState, Reason
from tests.world.scene import Mark, Scene, ago, named
from tests.world.seeds import examples


@dataclass(frozen=True)
class Op:
    """One op of a job's global sequence; a P2P op has its sender first."""

    group: str
    members: tuple[int, ...]
    seq: int
    is_p2p: bool = False


@dataclass
class Layout:
    """A job of tensor, pipeline and data parallel ranks, and what it does in what order.

    Every rank runs its share of one global sequence, so the job as such cannot deadlock.
    """

    tp: int
    pp: int
    dp: int
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)

    def __post_init__(self) -> None:
        for d in range(self.dp):
            for p in range(self.pp):
                self.groups[f"tp{d}.{p}"] = tuple(self.rank(t, p, d) for t in range(self.tp))
            for t in range(self.tp):
                self.groups[f"pp{d}.{t}"] = tuple(self.rank(t, p, d) for p in range(self.pp))
        for p in range(self.pp):
            for t in range(self.tp):
                self.groups[f"dp{p}.{t}"] = tuple(self.rank(t, p, d) for d in range(self.dp))
        self.groups["world"] = tuple(range(self.world))

    def rank(self, t: int, p: int, d: int) -> int:
        return (d * self.pp + p) * self.tp + t

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.dp

    def run(self, chance: random.Random, steps: int) -> None:
        """Some steps, each a pass through the pipeline and a reduction over the replicas."""
        seqs: dict[str, int] = defaultdict(int)

        def add(name: str, members: tuple[int, ...], is_p2p: bool = False) -> None:
            if len(members) > 1:
                self.ops.append(Op(name, members, seqs[name], is_p2p))
                seqs[name] += not is_p2p

        for _ in range(steps):
            for d in chance.sample(range(self.dp), self.dp):
                for p in range(self.pp):
                    add(f"tp{d}.{p}", self.groups[f"tp{d}.{p}"])
                    for t in range(self.tp):
                        if p + 1 < self.pp:
                            ends = (self.rank(t, p, d), self.rank(t, p + 1, d))
                            add(f"pp{d}.{t}", ends, is_p2p=True)
            for p in chance.sample(range(self.pp), self.pp):
                for t in range(self.tp):
                    add(f"dp{p}.{t}", self.groups[f"dp{p}.{t}"])
            if chance.random() < 0.3:
                add("world", self.groups["world"])


def hang(layout: Layout, culprit: int, stop_at: int, run_ahead: int) -> tuple[Scene, set[int]]:
    """Run the job until nothing moves; `culprit` stops before its op number `stop_at`.

    A rank enqueues up to `run_ahead` ops beyond the one that its device is at; an op completes
    when all of its members have it at the head. Returns the scene and the ranks that are stuck.
    """
    programs = {r: [op for op in layout.ops if r in op.members] for r in range(layout.world)}
    programs[culprit] = programs[culprit][:stop_at]
    done = dict.fromkeys(programs, 0)
    enqueued: dict[int, list[int]] = {r: [] for r in programs}
    clock = 0
    moved = True
    while moved:
        moved = False
        for rank, program in programs.items():
            while len(enqueued[rank]) < min(len(program), done[rank] + 1 + run_ahead):
                clock += 1
                enqueued[rank].append(clock)
                moved = True
        for rank, program in programs.items():
            if done[rank] == len(enqueued[rank]):
                continue
            op = program[done[rank]]
            at_head = [
                done[m] < len(enqueued[m]) and programs[m][done[m]] is op for m in op.members
            ]
            if all(at_head):
                for member in op.members:
                    done[member] += 1
                moved = True
    scene = Scene(layout.world)
    for name, members in layout.groups.items():
        scene.group(name, members)
    for rank, times in enqueued.items():
        _place(scene, rank, programs[rank], done[rank], times)
    return scene, {rank for rank in programs if done[rank] < len(enqueued[rank])}


def _place(scene: Scene, rank: int, program: list[Op], done: int, times: list[int]) -> None:
    flying: dict[tuple[str, int, bool], list[int]] = defaultdict(list)
    for at, (op, time) in enumerate(zip(program, times, strict=False)):
        if op.is_p2p:
            if at >= done:
                is_send = op.members[0] == rank
                peer = op.members[1] if is_send else op.members[0]
                flying[op.group, peer, is_send].append(time)
            continue
        mark = scene.marks[op.group, rank]
        mark.enqueued = op.seq
        if at < done:
            mark.completed = op.seq
        else:
            mark.since = mark.since or ago(60 - time / 1000)
    for (name, peer, is_send), posted in flying.items():
        age = 60 - posted[0] / 1000
        scene.flying(rank, name, peer, send=is_send, age=age, count=len(posted))


FAULTS = {
    Reason.CPU_STUCK: {},
    Reason.EXITED: {"state": RankState.EXITED, "state_age": 50.0, "as_of_age": 50.0},
    Reason.UNREACHABLE: {"state": RankState.SILENT, "state_age": 50.0, "as_of_age": 50.0},
}


@st.composite
def hangs(draw: st.DrawFn) -> tuple[Scene, set[int], int, Reason]:
    layout = Layout(draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 3)))
    layout.run(random.Random(draw(st.integers(0, 2**32))), draw(st.integers(1, 3)))
    culprit = draw(st.integers(0, layout.world - 1))
    length = sum(culprit in op.members for op in layout.ops)
    stop_at = draw(st.integers(0, length))
    scene, stuck = hang(layout, culprit, stop_at, run_ahead=draw(st.integers(0, 6)))
    reason = draw(st.sampled_from(sorted(FAULTS)))
    scene.rank(culprit, **FAULTS[reason])
    return scene, stuck - {culprit}, culprit, reason


@given(hangs())
@examples(150)
def test_one_missing_rank_is_found_exactly(case: tuple[Scene, set[int], int, Reason]) -> None:
    """Wherever one rank of a parallel job stops, it alone is named; all that wait are victims."""
    scene, stuck, culprit, reason = case
    diagnoses = scene.find()
    if not stuck:
        assert diagnoses == []
        return
    for diagnosis in diagnoses:
        assert diagnosis.kind is Kind.STALL
        assert named(diagnosis) == {culprit: reason}
        assert diagnosis.unknown == ()
    assert set().union(*(diagnosis.victims for diagnosis in diagnoses)) == stuck
    assert len(diagnoses) == 1


@given(hangs(), st.randoms(use_true_random=False))
@examples(60)
def test_the_order_of_groups_and_rows_does_not_matter(
    case: tuple[Scene, set[int], int, Reason], chance: random.Random
) -> None:
    """Shuffled groups, channels and stall rows give the same suspects, victims and evidence."""
    scene = case[0]
    before = [(v.suspects, v.victims, v.since, v.collective.op) for v in scene.find()]
    names = list(scene.groups)
    chance.shuffle(names)
    scene.groups = {name: scene.groups[name] for name in names}
    chance.shuffle(scene.channels)
    stalls = scene.stalls()
    order = np.array(chance.sample(range(len(stalls)), len(stalls)), np.int64)
    shuffled = replace(
        stalls,
        group=stalls.group[order],
        rank=stalls.rank[order],
        seq=stalls.seq[order],
        since=stalls.since[order],
    )
    after = diagnose(scene.snapshot(), shuffled)
    assert [(v.suspects, v.victims, v.since, v.collective.op) for v in after] == before


@given(hangs(), st.randoms(use_true_random=False))
@examples(60)
def test_the_numbers_of_ranks_do_not_matter(
    case: tuple[Scene, set[int], int, Reason], chance: random.Random
) -> None:
    """The same hang with ranks numbered otherwise names the same rank by its other number."""
    scene, stuck, culprit, reason = case
    number = chance.sample(range(scene.world), scene.world)
    other = Scene(scene.world)
    for name, members in scene.groups.items():
        other.group(name, (number[rank] for rank in members))
    other.marks = {(name, number[rank]): mark for (name, rank), mark in scene.marks.items()}
    other.channels = [
        (number[rank], name, number[peer], *of_op) for rank, name, peer, *of_op in scene.channels
    ]
    other.standings = {number[rank]: of for rank, of in scene.standings.items()}
    for diagnosis in other.find():
        assert named(diagnosis) == {number[culprit]: reason}
    victims = set().union(*(diagnosis.victims for diagnosis in other.find()))
    assert victims == {number[rank] for rank in stuck}


@st.composite
def wild_scenes(draw: st.DrawFn) -> Scene:
    """Any snapshot, consistent or not."""
    world = draw(st.integers(1, 6))
    scene = Scene(world)
    for at in range(draw(st.integers(0, 4))):
        name = f"g{at}"
        ops = {f"s{seq}": draw(st.sampled_from(["all_reduce", "broadcast"])) for seq in range(4)}
        scene.group(name, draw(st.sets(st.integers(0, world - 1), min_size=1)), **ops)
        for rank in scene.groups[name]:
            enqueued = draw(st.integers(-1, 3))
            completed = draw(st.integers(-1, enqueued))
            started = draw(st.integers(-1, enqueued))
            since = ago(draw(st.floats(0.1, 30))) if enqueued > completed else 0
            scene.marks[name, rank] = Mark(enqueued, started, completed, since)
        for rank in scene.groups[name]:
            if draw(st.integers(0, 4)) == 0:
                peer = draw(st.sampled_from([-1, *scene.groups[name]]))
                scene.flying(rank, name, peer, send=draw(st.booleans()) and peer >= 0)
    for rank in range(world):
        scene.rank(
            rank,
            state=draw(st.sampled_from(list(RankState))),
            as_of_age=draw(st.sampled_from([0.1, 3.0, 20.0])),
            connected=draw(st.integers(0, 5)) > 0,
            gap=draw(st.integers(0, 5)) == 0,
            declared=draw(st.integers(0, 7)) > 0,
        )
    return scene


def is_in_no_wait(scene: Scene, rank: int) -> bool:
    """The rank is in no op, and has joined all collectives that any of its peers has joined."""
    for name, members in scene.groups.items():
        if rank not in members:
            continue
        mine = scene.marks[name, rank]
        if mine.enqueued > mine.completed:
            return False
        if any(scene.marks[name, other].enqueued > mine.enqueued for other in members):
            return False
    return not any(rank in (one, peer) for one, _, peer, *_ in scene.channels)


@given(wild_scenes())
@examples(300)
def test_a_rank_that_no_rank_waits_for_is_never_named(scene: Scene) -> None:
    """In any snapshot, a rank that delays no other rank is no suspect; no rank is named twice."""
    diagnoses = scene.find()
    suspects = [suspect.rank for diagnosis in diagnoses for suspect in diagnosis.suspects]
    assert len(suspects) == len(set(suspects))
    assert not any(is_in_no_wait(scene, rank) for rank in suspects)
    for diagnosis in diagnoses:
        assert not set(named(diagnosis)) & {*diagnosis.victims, *diagnosis.unknown}


@given(wild_scenes())
@examples(300)
def test_a_rank_without_fresh_telemetry_is_never_stuck(scene: Scene) -> None:
    """Missing, late or torn telemetry makes a rank unreachable or unknown, never `cpu_stuck`."""
    for diagnosis in scene.find():
        for suspect in diagnosis.suspects:
            standing = scene.standings[suspect.rank]
            heard = standing.declared and standing.connected and standing.as_of_age < 5
            if suspect.reason is Reason.CPU_STUCK:
                assert heard
                assert not standing.gap
                assert standing.state is RankState.LIVE


# -- laws of circles of waits: which rank of a circle is named with high confidence ----------------


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
