"""What people say of a finding: published, stored, and kept by the next process. The engine's
changes keep it, and a silence that ends is a change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from frd.errors import ServiceUnavailable
from frd.model import AlignedNs, Change, Finding, FindingState, Note
from frd.service.findings.people import (
    MAX_NOTES,
    LocalKeys,
    Mark,
    People,
    Refused,
    Scope,
    Silence,
    Silences,
    acknowledge,
    add_note,
    assign,
    undo_acknowledge,
)
from frd.service.journal.payloads import Dismissal
from tests.world.evaluated import Evaluated


class Bench(Evaluated):
    """With people, who may silence."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.silences = Silences(LocalKeys(self.store))
        self.evaluator.people = People(self.silences)

    async def opened(self) -> Finding:
        self.hang()
        await self.evaluator.evaluate()
        return self.published[0].finding

    async def say(self, finding: Finding, *marks: Mark) -> list[Finding]:
        """All at the same time."""
        saying = [asyncio.create_task(self.evaluator.mark(finding, mark)) for mark in marks]
        await asyncio.sleep(0)
        await self.evaluator.evaluate()
        return await asyncio.gather(*saying)

    async def silence(self, of: Scope, name: str, for_s: float, by: str = "alice") -> None:
        until_at = AlignedNs(self.job.now + round(for_s * 1e9))
        await self.silences.put(Silence(of, name, until_at, by), self.job.now)

    async def evaluated_after(self, seconds: float) -> None:
        self.pass_s(seconds)
        await self.evaluator.evaluate()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def note(by: str, text: str = "look at node0") -> Note:
    return Note(by, AlignedNs(1_000), text)


async def test_two_people_at_once(bench: Bench) -> None:
    """The first who acknowledges stays, and the other one learns who it is; both of their notes
    stay."""
    finding = await bench.opened()
    at = bench.job.now
    said = await bench.say(finding, acknowledge("alice", at), add_note(note("alice")))
    with pytest.raises(Refused, match=rf"finding: {finding.id}: acknowledged already: by alice"):
        await bench.evaluator.mark(said[0], acknowledge("bob", at))
    notes = [add_note(note(by, f"of {by}")) for by in ("bob", "carol")]
    said = await bench.say(finding, acknowledge("alice", AlignedNs(at + 9)), *notes)
    expected = replace(
        finding,
        acknowledged_by="alice",
        acknowledged_at=at,
        notes=(note("alice"), note("bob", "of bob"), note("carol", "of carol")),
    )
    assert said[-1] == replace(expected, collective=said[-1].collective, summary=said[-1].summary)
    (taken_back,) = await bench.say(finding, undo_acknowledge)
    assert (taken_back.acknowledged_by, taken_back.acknowledged_at) == ("", None)


async def test_notes_have_a_limit(bench: Bench) -> None:
    finding = await bench.opened()
    await bench.say(finding, *[add_note(note("a", str(n))) for n in range(MAX_NOTES)])
    with pytest.raises(Refused, match=f"{MAX_NOTES} notes already"):
        await bench.evaluator.mark(finding, add_note(note("a")))


async def test_marks_outlast_a_restart_and_the_changes_of_the_engine(tmp_path: Path) -> None:
    """A finding is assigned and silenced. Its closing by the engine has both; so has the finding
    that the next process goes on with."""
    first = Bench(tmp_path)
    with contextlib.closing(first):
        finding = await first.opened()
        await first.silence(Scope.FINDING, finding.id, 3600)
        (said,) = await first.say(finding, assign("bob"))
        assert first.published[-1].change is Change.UPDATED
        assert first.store.get(finding.id) == said == first.published[-1].finding
        assert (said.assigned_to, said.silenced_by) == ("bob", "alice")
        assert said.is_silenced(first.job.now)
    again = Bench(tmp_path)
    with contextlib.closing(again):
        again.job.now = first.job.now
        await again.silences.read()
        again.evaluator.take_up(again.store.open_findings(), ())
        await again.evaluator.evaluate()
        (restored,) = again.evaluator.state.open_findings()
        assert (restored.assigned_to, restored.silenced_by) == ("bob", "alice")
        assert again.published == []
        asking = asyncio.create_task(again.evaluator.dismiss(Dismissal(finding.id, "x", "bob")))
        await asyncio.sleep(0)
        await again.evaluated_after(1)
        closed = await asking
        assert closed is not None
        assert closed == again.store.get(finding.id)
        assert (closed.close_reason, closed.assigned_to) == ("closed by bob: x", "bob")


async def test_the_end_of_a_silence_is_a_change(bench: Bench) -> None:
    """A job is silenced before anything opens. When the time is over, the finding is published
    again, once, without it."""
    await bench.silence(Scope.JOB, "job", 30)
    finding = await bench.opened()
    assert finding.silenced_by == "alice, for job job"
    await bench.evaluated_after(23)
    is_silenced = [event.finding.silenced_until_at is not None for event in bench.published]
    assert all(is_silenced)
    for _ in range(3):
        await bench.evaluated_after(2)
    after = bench.published[len(is_silenced) :]
    assert [(one.change, one.finding.silenced_until_at) for one in after] == [
        (Change.UPDATED, None)
    ]


async def test_a_silence_that_ends_while_the_service_is_down(tmp_path: Path) -> None:
    """The next process publishes the finding without it."""
    first = Bench(tmp_path)
    with contextlib.closing(first):
        await first.silence(Scope.JOB, "job", 10)
        await first.opened()
    again = Bench(tmp_path)
    with contextlib.closing(again):
        again.job.now = AlignedNs(first.job.now + 60_000_000_000)
        await again.silences.read()
        again.evaluator.take_up(again.store.open_findings(), ())
        await again.evaluator.evaluate()
        (event,) = again.published
        assert (event.change, event.finding.silenced_until_at) == (Change.UPDATED, None)


async def test_a_note_on_a_closed_finding(bench: Bench) -> None:
    """It is stored and is no news. Of two at the same time, both stay, also if the store has not
    the first one yet."""
    finding = await bench.opened()
    bench.job.join("dp", [2], 1).complete("dp", range(4), 1)
    for _ in range(10):
        await bench.evaluated_after(1)
    closed = bench.store.get(finding.id)
    assert closed is not None
    assert closed.state is FindingState.CLOSED
    published = len(bench.published)
    bench.job.engine._closed.clear()
    await bench.say(closed, add_note(note("alice")), add_note(note("bob")))
    assert bench.store.get(finding.id) == replace(closed, notes=(note("alice"), note("bob")))
    await bench.say(closed, assign("bob"))
    stored = bench.store.get(finding.id)
    assert stored is not None
    assert (len(stored.notes), stored.assigned_to) == (2, "bob")
    assert len(bench.published) == published


async def test_a_note_on_a_finding_whose_trouble_ends(bench: Bench) -> None:
    """It was closed by hand, and is over in the same evaluation that stores the note."""
    finding = await bench.opened()
    asking = asyncio.create_task(bench.evaluator.dismiss(Dismissal(finding.id, "x")))
    await asyncio.sleep(0)
    await bench.evaluated_after(1)
    closed = await asking
    assert closed is not None
    bench.job.join("dp", [2], 1).complete("dp", range(4), 1)
    notes = 0
    while (stored := bench.store.get(finding.id)) is not None and stored.goes_on:
        bench.pass_s(1)
        await bench.say(closed, add_note(note("alice")))
        notes += 1
    assert stored is not None
    assert len(stored.notes) == notes


async def test_a_store_that_fails(bench: Bench) -> None:
    """The note is published, and who wrote it learns that a restart may lose it."""
    finding = await bench.opened()
    bench.store.close()
    with pytest.raises(ServiceUnavailable, match=rf"finding: {finding.id}: not stored yet"):
        await bench.say(finding, add_note(note("alice")))
    assert bench.published[-1].finding.notes == (note("alice"),)


async def test_a_node_in_repair_hides_no_other(bench: Bench) -> None:
    """A silence of a node is for findings whose suspects are all on silenced nodes, until the first
    of these silences ends; the latest of those that concern a finding counts."""
    finding = await bench.opened()
    (suspect,) = finding.suspects
    two = replace(finding, suspects=(suspect, replace(suspect, rank=9, node="other")))
    of = bench.silences.of
    now = bench.job.now
    await bench.silence(Scope.NODE, suspect.node, 100)
    until_at = AlignedNs(now + 100_000_000_000)
    assert of(finding, now) == (until_at, f"alice, for node {suspect.node}")
    assert of(two, now) == (None, "")
    assert of(replace(finding, suspects=()), now) == (None, "")
    await bench.silence(Scope.NODE, "other", 50, "bob")
    assert of(two, now) == (AlignedNs(now + 50_000_000_000), "bob, for node other")
    await bench.silence(Scope.FINDING, two.id, 70, "carol")
    assert of(two, now)[1] == "carol"
    assert of(finding, now) == (until_at, f"alice, for node {suspect.node}")
    assert of(finding, until_at) == (None, "")
