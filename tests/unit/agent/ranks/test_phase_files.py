"""Phases that taps publish, as an agent reads and sends them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from frd.clocks.wall_clock import WallClock
from frd.model import NodeNs, NodeRawNs, PhaseSpan, RankPhases
from frd.wire.codec import Decoder, encode_agent
from frd.wire.messages import MAX_MESSAGE_BYTES, AgentEvent, Hello, Statuses, Watermarks
from frd_agent.counters import Counters
from frd_agent.memory.samples import Samples
from frd_agent.node_time import raw_now
from frd_agent.ranks.roster import Roster
from frd_agent.ranks.tap_files import PhaseReader
from frd_agent.uplink.dispatch import Dispatch
from tests.unit.agent.ranks.test_roster import GONE, publish
from tests.world.run_dir import TOKEN, shared

NOW = NodeNs(1_700_000_000_000_000_000)
S = 1_000_000_000


def entry(path: object = ("eval",), since_ns: object = NOW, until_ns: object = 0) -> dict[str, Any]:
    return {"path": path, "since_ns": since_ns, "until_ns": until_ns}


def write(run_dir: Path, *phases: object, **changes: object) -> Path:
    path = run_dir / f"{TOKEN}.phases"
    text = json.dumps({"schema": 1, "token": TOKEN, "phases": phases} | changes)
    temporary = run_dir / "new"
    temporary.write_text(text)
    return temporary.replace(path)


class Steps:
    """The raw clock runs on while the wall clock is stepped."""

    def __init__(self) -> None:
        self.wall = WallClock()
        self.wall.read(NodeRawNs(50 * S), NOW, 0)

    def __call__(self, wall_ns: NodeNs) -> NodeRawNs:
        return self.wall.one_to_raw(wall_ns)


def reader(run_dir: Path, steps: Steps | None = None) -> PhaseReader:
    return PhaseReader(run_dir / f"{TOKEN}.phases", steps or Steps(), Counters())


def test_a_phase_keeps_its_time_over_a_step_of_the_clock(tmp_path: Path) -> None:
    """The wall clock jumps an hour ahead while an epoch lasts: only the later phase is stamped by
    the clock after the step."""
    steps = Steps()
    phases = reader(tmp_path, steps)
    phases.read()
    assert phases.spans is None
    write(tmp_path, entry(["epoch"]))
    phases.read()
    assert phases.spans == (PhaseSpan(("epoch",), NodeRawNs(50 * S)),)
    steps.wall.read(NodeRawNs(60 * S), NodeNs(NOW + 3610 * S), 0)
    write(tmp_path, entry(["epoch"], until_ns=NOW + 3609 * S), entry(["next"], NOW + 3609 * S))
    phases.read()
    assert phases.spans == (
        PhaseSpan(("epoch",), NodeRawNs(50 * S), NodeRawNs(59 * S)),
        PhaseSpan(("next",), NodeRawNs(59 * S)),
    )


@pytest.mark.parametrize(
    "phases",
    [
        [entry([])],
        [entry("eval")],
        [entry(["x" * 257])],
        [entry(["x"] * 17)],
        [entry([3])],
        [entry(since_ns=0)],
        [entry(since_ns=-1)],
        [entry(since_ns=2**70)],
        [entry(since_ns="now")],
        [entry(until_ns=NOW - 1)],
        [entry()] * 33,
        ["eval"],
    ],
)
def test_a_hostile_file_is_counted_and_changes_nothing(tmp_path: Path, phases: list[Any]) -> None:
    """The phases that were known stay; the refusal is counted once, however often it is read."""
    known = reader(tmp_path)
    write(tmp_path, entry())
    known.read()
    before = known.spans
    write(tmp_path, *phases)
    for _ in range(3):
        known.read()
    write(tmp_path, entry(["of a later release"]), schema=2)
    known.read()
    assert known.spans == before
    assert known._refused._stats.refused_files["phases"] == 2
    write(tmp_path, entry(["after"]))
    known.read()
    assert known.spans is not None
    assert known.spans[0].path == ("after",)


def test_a_rank_sends_its_phases_once_a_round(tmp_path: Path) -> None:
    """Whenever they change, with the next round of watermarks; a new stream gets them again, and
    nothing is left of a rank that is forgotten."""
    publish(tmp_path, os.getpid())
    common = shared()
    roster = Roster(tmp_path, common)
    (rank,) = roster.update(raw_now())
    samples = Samples(1_000_000, common.dictionary.series_number)
    dispatch = Dispatch(
        common.dictionary, common.reports(0).outbox, common.reports(0).current, samples, lambda: ()
    )
    dispatch.open(knows_nothing=True)

    def sent(*, due: bool) -> list[AgentEvent]:
        rank.poll(time.monotonic(), raw_now())
        events: list[AgentEvent] = []
        while news := dispatch.next(NodeRawNs(0), hurry=due):
            events += news
        return events

    def phases(events: list[AgentEvent]) -> list[list[tuple[str, ...]]]:
        found = [one for event in events if isinstance(event, Statuses) for one in event.phases]
        return [[span.path for span in one.spans] for one in found]

    assert phases(sent(due=True)) == []
    for number in range(50):
        write(tmp_path, entry([f"step {number}"]))
        assert sent(due=False) == []
    events = sent(due=True)
    assert phases(events) == [[("step 49",)]]
    assert phases(sent(due=True)) == []
    dispatch.open(knows_nothing=True)
    again = sent(due=True)
    assert phases(again) == [[("step 49",)]]
    kinds = list(map(type, again))
    assert kinds.index(Statuses) < kinds.index(Watermarks), "no phase before its time is missing"
    decoder = Decoder()
    raw_ns = raw_now()
    decoder.decode(encode_agent(Hello(2, "1", "n1", "b", "s", NOW, raw_ns)))
    for event in again:
        if not isinstance(event, Watermarks):  # which the stream stamps
            decoder.decode(encode_agent(event))
    common.reports(0).current.forget(rank.number)
    dispatch.open(knows_nothing=True)
    assert common.reports(0).current.next_statuses() is None
    roster.close()


def test_the_phases_of_many_ranks_fit_into_messages(tmp_path: Path) -> None:
    """Two hundred ranks publish the longest names that the agent takes: no message is too large,
    and each rank is sent."""
    common = shared()
    known = reader(tmp_path)
    write(tmp_path, *[entry(["x" * 256] * 16, since_ns=NOW + number) for number in range(32)])
    known.read()
    assert known.spans is not None
    for number in range(200):
        common.reports(0).current.set_phases(RankPhases(number, known.spans))
    sent: list[int] = []
    while (message := common.reports(0).current.next_phases()) is not None:
        assert len(encode_agent(message)) < MAX_MESSAGE_BYTES
        sent += [one.rank for one in message.phases]
    assert sent == list(range(200))


def test_the_last_phases_of_a_rank_that_ended(tmp_path: Path) -> None:
    """The tap wrote that the phase ended just before its process did: the agent reads that, and
    removes the file with the others of the rank."""
    publish(tmp_path, GONE)
    common = shared()
    roster = Roster(tmp_path, common)
    (rank,) = roster.update(raw_now())
    at_ns = time.time_ns()
    phases = write(tmp_path, entry(since_ns=at_ns - S, until_ns=at_ns))
    roster.end(rank, raw_now())
    sent = common.reports(0).current.next_phases()
    assert sent is not None
    ((found,),) = [one.spans for one in sent.phases]
    assert sent.phases[0] == RankPhases(rank.number, (found,))
    assert 0 < found.since_ns < found.until_ns
    roster._remove_files(rank)
    assert not phases.exists()
    roster.close()
