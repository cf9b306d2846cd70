"""Laws of ownership: living owners keep their cells, and every cell finds an owner."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from frd.cluster import ownership
from frd.cluster.cells import CELLS, preferred
from frd.cluster.ownership import LATE, LATER, QUIET, SILENT, Claim, Heartbeat, Ownership
from tests.world.seeds import seeds


@dataclass
class Registry:
    revision: int = 0
    heartbeats: dict[str, Heartbeat] = field(default_factory=dict)
    claims: dict[int, Claim] = field(default_factory=dict)

    def next(self) -> int:
        self.revision += 1
        return self.revision


@dataclass
class Process:
    """A replica's process, as `frd.cluster.heartbeats` uses its `Ownership`."""

    registry: Registry
    name: str
    generation: int
    ownership: Ownership
    paused_until: int = 0
    robbed: list[tuple[int, int]] = field(default_factory=list)
    """Step and cell of each loss."""
    unanswered: float = 0.1
    """Probability that the registry does not answer a claim."""

    def beat(self, step: int, rng: random.Random) -> None:
        registry, own = self.registry, self.ownership
        registry.heartbeats[self.name] = Heartbeat(
            self.generation, registry.next(), dict(own.mine), own.leaving
        )
        decision = own.beat(dict(registry.heartbeats), own.mine)
        self.robbed += ((step, cell) for cell in decision.lost)
        for cell in decision.claim:
            if rng.random() < self.unanswered:
                continue
            if own.may_claim(cell, claim := registry.claims.get(cell)):
                revision = registry.next()
                assert claim is None or claim.revision < revision
                registry.claims[cell] = Claim(self.name, self.generation, revision)
                own.claimed(cell, revision)
        if decision.drain is not None:
            cell, successor = decision.drain
            assert successor in own.living
            registry.claims[cell] = Claim("", 0, registry.next())
            own.dropped(cell)


class Cluster:
    def __init__(self, seed: int, names: list[str]) -> None:
        self.rng = random.Random(seed)
        self.registry = Registry()
        self.step = 0
        self.processes: dict[str, Process] = {}
        for name in names:
            self.begin(name)

    def begin(self, name: str) -> None:
        known = self.registry.heartbeats.get(name)
        generation = (known.generation if known else 0) + 1
        process = Process(self.registry, name, generation, Ownership(name))
        self.registry.heartbeats[name] = Heartbeat(generation, self.registry.next())
        self.processes[name] = process

    def run(self, steps: int) -> None:
        """In each step every replica that runs beats once, in any order."""
        for _ in range(steps):
            self.step += 1
            order = [p for p in self.processes.values() if p.paused_until <= self.step]
            self.rng.shuffle(order)
            for process in order:
                process.beat(self.step, self.rng)

    def assert_settled(self, within: int = 0) -> None:
        """Every cell has one owner, and all running replicas agree which, after at most so many
        steps. Later, cells may be on their way to their preferred owners again."""
        for _ in range(within):
            try:
                return self.assert_settled()
            except AssertionError:
                self.run(1)
        owners = {cell: name for name, p in self.processes.items() for cell in p.ownership.mine}
        count = sum(len(p.ownership.mine) for p in self.processes.values())
        assert count == CELLS == len(owners), f"{count} owners of {len(owners)} cells"
        for process in self.processes.values():
            assert process.ownership.owners() == owners


LONGEST = SILENT + LATER + 4
"""Heartbeats from the last fault until every cell is owned; a lost answer costs one."""


@pytest.mark.parametrize("seed", range(seeds(40)))
def test_every_cell_finds_an_owner_after_any_faults(seed: int) -> None:
    """Replicas die, pause, leave, return and join at any moments; after the last fault every
    cell soon has one owner."""
    cluster = Cluster(seed, ["a", "b", "c"])
    rng = cluster.rng
    for _ in range(12):
        cluster.run(rng.randrange(1, 12))
        name = rng.choice(["a", "b", "c", "d"])
        process = cluster.processes.get(name)
        fault = rng.random()
        if process is None:
            cluster.begin(name)
        elif fault < 0.3 and len(cluster.processes) > 1:
            del cluster.processes[name]
        elif fault < 0.6:
            process.paused_until = cluster.step + rng.randrange(1, 3 * SILENT)
        elif fault < 0.8:
            cluster.begin(name)  # its process crashed and starts again
        elif len(cluster.processes) > 1:
            process.ownership.leaving = True
            process.ownership.mine.clear()
            process.beat(cluster.step, rng)
            del cluster.processes[name]
    for process in cluster.processes.values():
        process.paused_until = 0
    cluster.assert_settled(within=LONGEST + 4)


@pytest.mark.parametrize("seed", range(seeds(40)))
def test_a_living_owner_is_never_robbed(seed: int) -> None:
    """Others die, pause, start again and join, while one replica beats with every step: it loses
    no cell that it has not drained itself."""
    cluster = Cluster(seed, ["a", "b", "c"])
    rng = cluster.rng
    cluster.run(LONGEST)
    for _ in range(15):
        name = rng.choice(["b", "c", "d"])
        if name not in cluster.processes or rng.random() < 0.3:
            cluster.begin(name)
        elif rng.random() < 0.5:
            del cluster.processes[name]
        else:
            cluster.processes[name].paused_until = cluster.step + rng.randrange(1, 20)
        cluster.run(rng.randrange(1, 10))
    assert cluster.processes["a"].robbed == []


@pytest.mark.parametrize("seed", range(seeds(20)))
def test_a_paused_owner_learns_its_losses_with_its_first_heartbeat(seed: int) -> None:
    """A replica is stopped until others have taken its cells; its first heartbeat reports every
    loss, so that it owns nothing twice."""
    cluster = Cluster(seed, ["a", "b", "c"])
    cluster.run(LONGEST)
    stopped = cluster.processes["a"]
    had = set(stopped.ownership.mine)
    stopped.paused_until = cluster.step + LONGEST + 3
    cluster.run(LONGEST + 2)
    assert had == set(stopped.ownership.mine), "a stopped process does nothing"
    cluster.run(1)
    assert {cell for step, cell in stopped.robbed if step == cluster.step} == had
    cluster.assert_settled()


def test_cells_of_a_dead_owner_are_taken_after_six_silent_heartbeats() -> None:
    """One of three replicas dies: nothing moves before the sixth heartbeat, then the preferred
    replicas take its cells."""
    cluster = Cluster(1, ["a", "b", "c"])
    cluster.run(LONGEST)
    dead = cluster.processes.pop("a").ownership.mine.keys()
    others = cluster.processes.values()
    for process in others:
        process.unanswered = 0.0
    before = {p.name: set(p.ownership.mine) for p in others}
    cluster.run(SILENT - 1)
    assert {p.name: set(p.ownership.mine) for p in others} == before
    cluster.run(2)
    for process in others:
        gained = set(process.ownership.mine) - before[process.name]
        assert gained == {cell for cell in dead if preferred(cell, ["b", "c"]) == process.name}


def test_a_new_cluster_is_balanced() -> None:
    """Three replicas begin together: each claims the cells for which it is preferred."""
    cluster = Cluster(1, ["a", "b", "c"])
    cluster.run(LONGEST)
    for process in cluster.processes.values():
        others = set(process.ownership.mine) - {
            cell for cell in range(CELLS) if preferred(cell, ["a", "b", "c"]) == process.name
        }
        assert not others


def test_a_replica_that_leaves_is_replaced_without_waiting() -> None:
    """A replica says in its last heartbeat that it leaves: with the next heartbeats the others
    take its cells."""
    cluster = Cluster(3, ["a", "b", "c"])
    cluster.run(LONGEST)
    leaving = cluster.processes.pop("b")
    leaving.ownership.leaving = True
    leaving.ownership.mine.clear()
    leaving.beat(cluster.step, cluster.rng)
    cluster.run(3)
    cluster.assert_settled()


def test_a_new_replica_gets_its_cells_one_by_one() -> None:
    """A replica joins a quiet cluster: the others drain the cells that it should own, one in ten
    seconds, and then nothing moves any more."""
    cluster = Cluster(1, ["a", "b"])
    cluster.run(LONGEST)
    cluster.begin("c")
    before = 0
    moves: list[int] = []
    for _ in range(CELLS * (QUIET + 4)):
        cluster.run(1)
        now = len(cluster.processes["c"].ownership.mine)
        assert now >= before
        if now > before:
            moves.append(cluster.step)
            assert now - before <= 2, "one from each owner"
        before = now
    names = list(cluster.processes)
    assert before == sum(preferred(cell, names) == "c" for cell in range(CELLS))
    assert (moves[-1] - moves[0]) / len(moves) > QUIET / 2, "one in ten seconds from each owner"
    cluster.assert_settled()
    assert not any(p.robbed for p in cluster.processes.values())


def test_one_reading_without_a_replica_is_no_sign_of_death() -> None:
    """A reading of the registry lacks a living owner: it stays one; six such readings are as good
    as six silent heartbeats."""
    own = Ownership("a")
    for revision in range(LONGEST):
        decision = own.beat({"b": Heartbeat(1, 1 + revision, {5: 1})}, ())
    for _ in range(SILENT - 1):
        assert own.owners()[5] == "b"
        decision = own.beat({}, ())
    assert 5 not in decision.claim
    own.beat({}, ())
    assert own.living == ["a"]
    assert 5 not in own.owners()


def test_only_the_first_of_the_living_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicas died long ago: the first of the living ones deletes their keys one by one, at
    the revisions that it has seen."""
    monkeypatch.setattr(ownership, "FORGOTTEN", 10)
    first, second = Ownership("b"), Ownership("c")
    gone = {"a": Heartbeat(1, 7), "d": Heartbeat(1, 8, leaving=True)}
    for revision in range(11):
        of_first = first.beat(gone | {"c": Heartbeat(1, 100 + revision)}, ())
        of_second = second.beat(gone | {"b": Heartbeat(1, 200 + revision)}, ())
    assert of_second.forget is None
    assert of_first.forget == ("a", 7)
    del gone["a"]
    assert first.beat(gone | {"c": Heartbeat(1, 300)}, ()).forget == ("d", 8)
    assert first.beat({"c": Heartbeat(1, 301)}, ()).forget is None


def drained(ready: set[int], *, silent: int = 0) -> tuple[int, str] | None:
    """What a quiet owner of all cells hands over, while another replica waits for its share, after
    so many own heartbeats without a new one of that replica."""
    own = Ownership("a")
    for cell in range(CELLS):
        own.claimed(cell, 1)
    for revision in range(QUIET):
        own.beat({"b": Heartbeat(1, 1 + revision)}, ())
    for _ in range(silent):
        own.beat({"b": Heartbeat(1, QUIET)}, ())
    return own.beat({"b": Heartbeat(1, QUIET if silent else QUIET + 1)}, ready).drain


def test_a_takeover_that_is_stuck_does_not_hold_others_back() -> None:
    """The takeover of the first cell that should move is not complete: the next one is drained."""
    of_b = [cell for cell in range(CELLS) if preferred(cell, ["a", "b"]) == "b"]
    assert drained(set(range(CELLS))) == (of_b[0], "b")
    assert drained(set(range(CELLS)) - {of_b[0]}) == (of_b[1], "b")
    assert drained(set()) is None


def test_nothing_is_drained_to_a_replica_that_may_be_dead() -> None:
    """The replica that waits for its share has missed two heartbeats: it gets nothing."""
    assert drained(set(range(CELLS)), silent=LATE) is None


def test_a_fresh_claim_is_respected_until_its_owner_has_had_time_to_report_it() -> None:
    """A living replica has claimed a cell and does not report it yet: others leave it alone, and
    take it when it stays unreported."""
    own = Ownership("a")
    beats = {"b": Heartbeat(1, 1)}
    own.beat(beats, ())
    claim = Claim("b", 1, 17)
    assert not own.may_claim(5, claim)
    for revision in range(SILENT):
        assert not own.may_claim(5, claim)
        own.beat({"b": Heartbeat(1, 2 + revision)}, ())
    assert own.may_claim(5, claim)
    assert not own.may_claim(5, claim._replace(revision=18)), "another claim"
    assert own.may_claim(5, claim._replace(generation=0)), "of a process that has ended"
    assert own.may_claim(5, claim._replace(owner="c")), "of a replica that is gone"
