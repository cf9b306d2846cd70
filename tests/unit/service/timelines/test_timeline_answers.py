"""What an answer about a finding is made of: what was stored, and what is known now."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from frd.errors import StoreError
from frd.model import AlignedNs, Flags, Kind
from frd.service.timelines.timeline import Late, Timeline
from tests.world import observe
from tests.world.timelines import Keeper, S, bar, timeline


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    """A hang of four ranks whose finding has been open for 2.5 s."""
    made = Keeper(tmp_path)
    yield made
    made.store.close()


def test_an_open_finding_is_shown_as_of_now(keeper: Keeper) -> None:
    """Nothing is stored yet; later, what was stored and what is known now are together. What ranks
    enqueue a minute after the opening is of no interest."""
    (finding,) = keeper.findings
    live = keeper.timelines.of(finding, keeper.attempt, keeper.job.now, None)
    assert [one.rank for one in live.gaps] == [2]
    keeper.look()
    keeper.job.now = AlignedNs(finding.opened_at + S)
    keeper.job.group("tp", (0, 1)).join("tp", [0], 0)
    keeper.job.now = AlignedNs(finding.opened_at + 60 * S)
    keeper.job.group("pp", (0, 1)).join("pp", [0], 0)
    live = keeper.timelines.of(finding, keeper.attempt, keeper.job.now, None)
    assert sorted(live.groups.values()) == ["dp", "tp"]
    assert keeper.timelines.of(finding, keeper.attempt, keeper.job.now, (0, 2)).lanes == tuple(
        one for one in live.lanes if one.rank in (0, 2)
    )


def test_a_closed_finding_is_shown_as_it_was(keeper: Keeper) -> None:
    """The job goes on, ends, or another one has its name: the picture is what was stored."""
    (finding,) = keeper.findings
    keeper.look()
    done = keeper.close(finding)
    keeper.look()
    keeper.job.join("dp", [2], 1).complete("dp", range(4), 1).all_reduce("dp", 2)
    kept = keeper.timelines.of(done, None, keeper.job.now, None)
    assert {one.seq for one in kept.bars} == {0, 1}
    assert [one.rank for one in kept.lanes] == [2, 0, 1, 3]
    assert [one.rank for one in keeper.timelines.of(done, None, 0, (1, 99)).lanes] == [1]


def test_a_finding_of_which_nothing_is_known(keeper: Keeper) -> None:
    """It was closed before this release: an empty timeline."""
    (finding,) = keeper.findings
    done = keeper.close(finding)
    assert keeper.timelines.of(done, None, 5, None) == Timeline(at=5)
    assert not keeper.timelines.keeps(done.id)
    keeper.look()
    assert keeper.timelines.keeps(done.id)


def test_a_restart_of_the_service_keeps_what_was_stored(keeper: Keeper) -> None:
    """The new engine knows no ops yet: what was stored stays, and grows when agents report."""
    (finding,) = keeper.findings
    keeper.look()
    kept = keeper.timelines.of(finding, keeper.attempt, keeper.job.now, None)
    keeper.job.restart_service()
    assert keeper.timelines.of(finding, None, keeper.job.now, None).bars == kept.bars
    keeper.look(6)
    keeper.job.reconnect(range(4))
    keeper.look(6)
    again = keeper.timelines.of(finding, keeper.attempt, keeper.job.now, None)
    assert {*kept.bars} <= {*again.bars}
    assert again.gaps == kept.gaps


def test_ranks_that_are_not_stored(keeper: Keeper) -> None:
    """A straggler has been open for an hour; of a large job some ranks are stored. Another one that
    is asked for is shown as of now."""
    finding = dataclasses.replace(keeper.findings[0], kind=Kind.STRAGGLER)
    stored = timeline(0, bar(0, 1, 1, 2))
    keeper.store.save(finding.id, finding.opened_at, stored.encode())
    later = finding.opened_at + 3600 * S
    found = keeper.timelines.of(finding, keeper.attempt, later, (3,))
    assert [one.rank for one in found.lanes] == [3]
    assert {one.rank for one in found.bars} == {3}


@pytest.mark.parametrize("kind", [Kind.STALL, Kind.STRAGGLER, Kind.MEMORY_SPIKE])
def test_a_timeline_does_not_grow_without_end(keeper: Keeper, kind: Kind) -> None:
    """A finding is open for an hour while its job goes on: its curves go on, but ops that have
    nothing to do with its begin do not heap up."""
    keeper.findings = [dataclasses.replace(keeper.findings[0], kind=kind)]
    (finding,) = keeper.findings
    job = keeper.job
    job.join("dp", [2], 1).complete("dp", range(4), 1)
    sizes = []
    for look in range(60):
        for rank in range(4):
            seqs = range(2 + 50 * look, 52 + 50 * look)
            observe.entries(
                job.attempt, rank, job.handles["dp"], seqs, Flags.JOINED | Flags.COMPLETED,
                created=job.now, now=job.now,
            )  # fmt: skip
        keeper.look(60)
        sizes.append(len(keeper.timelines.of(finding, None, 0, None).bars))
    assert sizes[-1] == sizes[len(sizes) // 2]


@pytest.mark.parametrize("body", [b"", b"nonsense", zlib.compress(b"[]")])
def test_a_stored_timeline_that_is_damaged(
    keeper: Keeper, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted, and the log names the file and the finding; the next one replaces it."""
    (finding,) = keeper.findings
    keeper.store.save(finding.id, finding.opened_at, body)
    assert keeper.timelines.of(finding, None, 0, None) == Timeline(at=0)
    assert keeper.timelines.store_errors == 1
    assert f"timelines: {keeper.store.path}: {finding.id}: " in caplog.text
    keeper.look()
    assert Timeline.decode(keeper.store.get(finding.id) or b"").lanes


def test_lateness_stays_with_its_finding(keeper: Keeper) -> None:
    """A stored curve is shown with whatever lanes are asked for."""
    (finding,) = keeper.findings
    stored = timeline(0, bar(0, 1, 1, 2), lateness=(Late(2, "dp", 3, 5, 7),))
    keeper.store.save(finding.id, finding.opened_at, stored.encode())
    assert keeper.timelines.of(finding, None, 0, (0,)).lateness == (Late(2, "dp", 3, 5, 7),)


def test_a_store_that_cannot_be_read(keeper: Keeper) -> None:
    """An error that names the file, which HTTP answers with 503."""
    keeper.store.close()
    (finding,) = keeper.findings
    with pytest.raises(StoreError, match=f"^timelines: {keeper.store.path}: "):
        keeper.timelines.of(finding, None, 0, None)
