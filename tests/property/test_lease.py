"""Laws of the lease, with the code that runs in the service and a registry that fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from frd.cluster import ownership
from frd.cluster.cells import CELLS, preferred
from frd.cluster.heartbeats import INTERVAL_S, SURE_S
from frd.cluster.ownership import LATE, QUIET, SILENT, Claim, Heartbeat, Ownership
from frd.cluster.registry import Entry
from frd.errors import ClusterError
from tests.world.lease_services import Cluster, Service, settled
from tests.world.seeds import seeds
from tests.world.virtual_time import VirtualLoop, in_virtual_time


async def trouble(cluster: Cluster, dice: random.Random, names: Sequence[str]) -> None:
    """A fault of one of these replicas."""
    await asyncio.sleep(dice.uniform(0, 6))
    name, fault = dice.choice(names), dice.random()
    if name not in cluster.services:
        await cluster.begin(name)
    elif fault < 0.3 and len(cluster.services) > 1:
        cluster.crash(name)
    elif fault < 0.5:
        cluster.crash(name)
        await cluster.begin(name)
    elif fault < 0.6 and len(cluster.services) > 1:
        await cluster.services.pop(name).leave()
    elif fault < 0.8:
        cluster.pause(name, dice.uniform(1, 10))
    else:
        cluster.cut_off(name, dice.uniform(1, 10))


@pytest.mark.parametrize("seed", range(seeds(200, 20)))
@in_virtual_time
async def test_no_replica_is_sure_of_a_cell_that_another_one_has_claimed(seed: int) -> None:
    """Replicas crash, start again, leave, pause and are cut off while NATS is slow, has no leader
    at times, loses answers, and carries writes out seconds after they were given up, as a server
    that was stopped does: `settled` looks at each step of time. Some seconds after the last fault
    every cell has one owner, and all are sure."""
    dice = random.Random(seed)
    async with settled("a", "b", "c", seed=seed) as cluster:
        for _ in range(12):
            for service in cluster.services.values():
                faults = service.faults
                faults.delay_s = dice.choice((0.02, 0.3, 1.0))
                faults.lost_answers = faults.lost_requests = dice.choice((0.0, 0.1))
                faults.late_writes = dice.choice((0.0, 0.2))
            if dice.random() < 0.2:
                cluster.no_leader(dice.uniform(4, 9))
            await trouble(cluster, dice, "abcd")
        for service in cluster.services.values():
            service.faults.lost_answers = service.faults.lost_requests = 0.0
            service.faults.late_writes, service.faults.delay_s = 0.0, 0.02
            service.faults.no_leader_until = 0.0
        await asyncio.sleep(10)  # a pause
        await cluster.settle(12.0)
        await asyncio.sleep(1)
        assert all(service.lease.is_sure for service in cluster.services.values())


@in_virtual_time
async def test_a_replica_is_sure_while_its_heartbeats_are_confirmed() -> None:
    """A replica is sure, without a break, until `SURE_S` after its last heartbeat; NATS answers
    again: it is sure again within a second, and nothing has moved. It is not sure after its end."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    async with settled("a", "b", "c") as cluster:
        service = cluster.services["a"]
        broken: list[float] = []
        loop.after_each_step.append(
            lambda: None if service.lease.is_sure else broken.append(loop.time())
        )
        await asyncio.sleep(20)
        assert not broken
        before = {name: set(s.cells) for name, s in cluster.services.items()}
        for away in (1.0, 2.0, 3.1, 7.7, 60.0):
            broken.clear()
            began = loop.time()
            cluster.no_leader(away)
            await asyncio.sleep(away + 5)
            if away <= SURE_S - INTERVAL_S:
                assert not broken
            else:
                assert SURE_S - INTERVAL_S - 0.1 <= broken[0] - began <= SURE_S
                assert broken[-1] - began <= away + 1
        assert {name: set(s.cells) for name, s in cluster.services.items()} == before
        await cluster.services.pop("a").leave()
        assert not service.lease.is_sure


@in_virtual_time
async def test_a_replica_that_continues_is_not_sure_before_it_has_read_its_claims() -> None:
    """An owner is stopped for 8 s, and others take its cells: when it continues, it is not sure
    until it has dropped all of them, which takes less than half a second. After a pause of 2.6 s it
    is not sure either, until it knows that nothing has moved."""
    async with settled("a", "b", "c") as cluster:
        for pause in (8.0, 2.6):
            await cluster.settle(20.0)
            service, heartbeat = cluster.services["a"], cluster.keys.entries["r.a"]
            while cluster.keys.entries["r.a"] == heartbeat:
                await asyncio.sleep(0.01)
            had = set(service.cells)
            cluster.pause("a", pause)
            await asyncio.sleep(pause)
            assert had
            assert service.cells == had
            assert not service.lease.is_sure
            await asyncio.sleep(0.5)
            assert service.lease.is_sure
            assert service.cells == (set() if pause == 8.0 else had)
            await asyncio.sleep(200)


@in_virtual_time
async def test_a_former_owner_returns_while_others_claim() -> None:
    """An owner was cut off, and reaches the registry again after another replica has decided to
    claim its cells, and before those claims are stored: either it has lost a cell when it is sure
    again, or the other one does not take it."""
    for early in range(20):
        async with settled("a", "b", seed=early) as cluster:
            owner, other = cluster.services["a"], cluster.services["b"]
            had = set(owner.cells)
            cluster.cut_off("a", 60.0)
            other.faults.delay_s = 1.0
            while other.lease._ownership.living != ["b"]:
                await asyncio.sleep(0.02)
            await asyncio.sleep(early * 0.05)
            owner.faults.no_leader_until = 0.0
            await asyncio.sleep(8.0)
            assert owner.lease.is_sure
            assert not owner.cells & other.cells
            assert owner.cells | set(owner.losses) >= had


@pytest.mark.parametrize("seed", range(seeds(40)))
@in_virtual_time
async def test_a_living_owner_is_never_robbed(seed: int) -> None:
    """Others crash, start again, leave, join and are cut off, while one replica reaches the
    registry all the time: it loses no cell that it has not drained."""
    dice = random.Random(seed)
    async with settled("a", "b", "c", seed=seed) as cluster:
        for _ in range(10):
            await trouble(cluster, dice, "bcd")
        assert cluster.services["a"].losses == []


@in_virtual_time
async def test_a_crashed_owner_is_replaced_in_time() -> None:
    """Three replicas begin together: each owns the cells for which it is preferred. One crashes:
    4.5 seconds later all see that the preferred ones of the others own its cells; they have lost
    none."""
    async with settled("a", "b", "c") as cluster:
        assert cluster.is_balanced()
        cluster.crash("b")
        assert await cluster.settle(4.5) > 2.5
        assert cluster.is_balanced()
        assert not any(service.losses for service in cluster.services.values())


@in_virtual_time
async def test_no_leader_moves_nothing() -> None:
    """The registry has no leader for a minute: every replica keeps its cells and reports that it
    is not connected; none is ever taken for dead, and after that nothing has moved."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    async with settled("a", "b", "c") as cluster:
        living: set[int] = set()
        loop.after_each_step.append(
            lambda: living.update(len(s.lease.view.replicas) for s in cluster.services.values())
        )
        before = {name: set(s.cells) for name, s in cluster.services.items()}
        for name, seconds in zip("abc", (60.0, 60.4, 60.8), strict=True):
            cluster.cut_off(name, seconds)  # one learns before the other that there is a leader
        await asyncio.sleep(30)
        assert not any(s.lease.view.connected for s in cluster.services.values())
        await asyncio.sleep(34)
        assert cluster.problem() is None
        assert living == {3}
        assert {name: set(s.cells) for name, s in cluster.services.items()} == before


@in_virtual_time
async def test_a_cut_off_owner_keeps_its_cells_until_it_learns_more() -> None:
    """A replica cannot reach the registry, and the others take its cells: it keeps them until it
    reaches the registry again, and loses them with its first heartbeat then."""
    async with settled("a", "b", "c") as cluster:
        cluster.cut_off("a", 20.0)
        cut = cluster.services.pop("a")
        had = set(cut.cells)
        await asyncio.sleep(19)
        assert cut.cells == had
        assert cluster.owned() == set(range(CELLS))
        await asyncio.sleep(1.5)
        assert not cut.cells
        assert set(cut.losses) == had
        cluster.services["a"] = cut


@in_virtual_time
async def test_a_replica_that_ends_slowly_claims_nothing() -> None:
    """A replica begins to end, and keeps its cells for some seconds; meanwhile another one dies: a
    third replica takes its cells, and the first ones that are released without waiting longer."""
    loop = asyncio.get_running_loop()
    async with settled("a", "b", "c") as cluster:
        ending = cluster.services.pop("a")
        await ending.lease.leave()
        dead = cluster.crash("b").cells
        await asyncio.sleep(4.5)
        assert dead <= cluster.services["c"].cells
        assert not ending.cells & dead
        cell = min(ending.cells)
        began = loop.time()
        ending.cells.discard(cell)
        await ending.lease.release(cell)
        while cell not in cluster.services["c"].cells:
            await asyncio.sleep(0.05)
        assert loop.time() - began < 1.1
        await ending.leave()
        await cluster.settle(2.0)


@in_virtual_time
async def test_a_service_that_does_not_evaluate_loses_its_cells() -> None:
    """The event loop of an owner hangs: its heartbeats stop after five seconds, others take over,
    and when it evaluates again it learns that."""
    async with settled("a", "b", "c") as cluster:
        hung = cluster.services.pop("a")
        hung.busy = True
        await asyncio.sleep(5.0 + 4.5)
        assert cluster.owned() == set(range(CELLS))
        hung.busy = False
        await asyncio.sleep(1.0)
        assert not hung.cells
        cluster.services["a"] = hung


@in_virtual_time
async def test_a_second_process_of_one_name_replaces_the_first() -> None:
    """A replica is started while an older process of its name still runs: the older one loses all
    its cells, and the cluster settles without it."""
    async with settled("a", "b") as cluster:
        older = cluster.services.pop("a")
        await cluster.begin("a")
        await cluster.settle(6.0)
        assert not older.cells
        await asyncio.sleep(20)
        await cluster.settle(3.0)  # a cell may be on its way back
        assert not older.cells
        cluster.services["older"] = older


@in_virtual_time
async def test_another_process_takes_the_name_again_and_again() -> None:
    """Whenever a replica is about to write its first heartbeat, another process of its name has
    written one: the replica does not start, and says which setting to change."""
    cluster = Cluster()
    service = Service(cluster.keys, "a", 0)
    registry, get = service.lease._registry, service.lease._registry.get

    async def overtaken(key: str) -> Entry | None:
        entry = await get(key)
        await registry.put(key, b"%d" % cluster.keys.last, entry.revision if entry else 0)
        return entry

    registry.get = overtaken  # type: ignore[method-assign]
    with pytest.raises(ClusterError, match=r"cluster\.member: a: another process uses"):
        await service.lease.start(service)


@in_virtual_time
async def test_a_replaced_process_ends_without_a_trace() -> None:
    """A process learns that a newer one has its name, and ends before that one's next heartbeat:
    the newer one's stays as it is."""
    async with settled("a", "b") as cluster:
        older = cluster.services.pop("a")
        await asyncio.sleep(0.25)  # to beat between the older one's heartbeats
        await cluster.begin("a")
        while older.cells:
            await asyncio.sleep(0.01)
        heartbeat = cluster.keys.entries["r.a"]
        await older.leave()
        assert cluster.keys.entries["r.a"] == heartbeat


@in_virtual_time
async def test_cells_are_drained_to_a_new_replica() -> None:
    """A replica joins a quiet cluster: the owners drain the cells that it should own, each one in
    ten seconds, and no cell is lost on the way."""
    async with settled("a", "b") as cluster:
        await cluster.begin("c")
        share = sum(preferred(cell, "abc") == "c" for cell in range(CELLS))
        await asyncio.sleep(60)
        assert 4 <= len(cluster.services["c"].cells) <= 12 < share
        await asyncio.sleep(300)
        await cluster.settle(3.0)
        assert cluster.is_balanced()
        assert not any(service.losses for service in cluster.services.values())


@in_virtual_time
async def test_a_replica_that_is_gone_for_good_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of five replicas one dies and one leaves: a day later their keys are deleted, and the cluster
    goes on. The dead one was only frozen, and wakes when a new process has its name: it is the
    new one that stays."""
    monkeypatch.setattr(ownership, "FORGOTTEN", 60)
    async with settled("a", "b", "c", "d", "e") as cluster:
        frozen = cluster.crash("a")
        await cluster.services.pop("e").leave()
        await asyncio.sleep(25)
        assert {"r.a", "r.e"} <= set(cluster.keys.entries)
        await asyncio.sleep(10)
        keys = [key for key in cluster.keys.entries if key.startswith("r.")]
        assert keys == ["r.b", "r.c", "r.d"]
        await cluster.begin("a")
        await cluster.settle(6.0)
        frozen.lease._running = frozen.lease._runner.submit(frozen.lease._run())
        frozen.lease.ticked()
        await asyncio.sleep(5)
        assert not frozen.cells
        await cluster.settle(3.0)
        assert not cluster.services["a"].losses
        cluster.services["frozen"] = frozen


@in_virtual_time
async def test_giving_up_many_cells_is_no_sign_of_death() -> None:
    """An owner gives up all its cells at the same moment, and writes many heartbeats for that: it
    does not take the others for dead."""
    async with settled("a", "b", "c") as cluster:
        service = cluster.services["a"]
        service.faults.delay_s = 0.05
        for cell in sorted(service.cells):
            service.cells.discard(cell)
            service.lease.give_up(cell)
            await asyncio.sleep(0.02)
        await cluster.settle(4.0)
        assert not any(service.losses for service in cluster.services.values())
        assert not service.cells, "it leaves them to others for a while"


# -- decisions of ownership: who lives, what may be claimed, what is drained and forgotten ---------


def test_one_reading_without_a_replica_is_no_sign_of_death() -> None:
    """A reading of the registry lacks a living owner: it stays one; six such readings are as good
    as six silent heartbeats."""
    own = Ownership("a")
    for revision in range(2 * SILENT):
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
    """The takeover of the first cell that should move is not complete: the next one is drained,
    unless the replica that waits for its share has missed two heartbeats."""
    of_b = [cell for cell in range(CELLS) if preferred(cell, ["a", "b"]) == "b"]
    assert drained(set(range(CELLS))) == (of_b[0], "b")
    assert drained(set(range(CELLS)) - {of_b[0]}) == (of_b[1], "b")
    assert drained(set()) is None
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
