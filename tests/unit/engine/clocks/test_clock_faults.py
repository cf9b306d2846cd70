"""What collectives show of clocks, and when a finding says so."""

from __future__ import annotations

import numpy as np
import pytest

from frd.engine.policy import Policy
from frd.forms import finding_from_json, finding_json
from frd.model import AlignedNs, Change, FindingEvent, Kind
from tests.world.race import MS, Race, S, arrivals

POLICY = Policy(clock_unsynchronized_after_s=20)


def race() -> Race:
    """Four ranks on two nodes, whose clocks are right."""
    layers = [[range(4)]]
    made = Race(4, layers, per_node=2, uncertainty_ns=50_000, policy=POLICY, lasts_ns=300_000)
    made.clock_error[:] = 0
    return made


def go_on(of: Race, seconds: float) -> list[FindingEvent]:
    """An even job for so long; returns what became of findings meanwhile."""
    before = len(of.events)
    dice = np.random.default_rng(3)
    work = dice.normal(0.05, 0.001, (round(seconds / 0.05), 4))
    of.run(arrivals(4, [[range(4)]], len(work), lambda step, layer: work[step]))
    return of.events[before:]


# -- hints ---------------------------------------------------------------------------------------


def test_times_that_agree_are_no_news() -> None:
    """Every rank completes after the last one came, by more than clocks differ."""
    job = race()
    go_on(job, 5)
    assert job.attempt.take_clock_hints() == []


def test_a_better_clock_bounds_a_worse_one() -> None:
    """Node 1 is known to 10 ms only: ops end 0.3 ms after their last member came: a bound."""
    job = race()
    job.attempt.clocks.set([2, 3], 1, 10 * MS, job.now)
    go_on(job, 5)
    hint = min(job.attempt.take_clock_hints(), key=lambda hint: hint.slack_ns)
    assert (hint.early_rank // 2, hint.late_rank // 2) == (0, 1)
    assert not hint.contradicts
    assert 300_000 <= hint.slack_ns < 10 * MS
    assert hint.late_most_ns == hint.slack_ns + 50_000
    assert hint.early_least_ns == -(hint.slack_ns + 10 * MS)
    assert job.attempt.take_clock_hints() == []


def test_a_clock_that_is_wrong_contradicts_the_other() -> None:
    """Node 1 is 5 ms ahead of what it says: node 0 completes before node 1 comes."""
    job = race()
    job.clock_error[2:] = 5 * MS
    go_on(job, 5)
    worst = min(job.attempt.take_clock_hints(), key=lambda hint: hint.slack_ns)
    assert (worst.early_rank // 2, worst.late_rank // 2) == (0, 1)
    assert worst.contradicts
    assert worst.slack_ns == pytest.approx(-5 * MS, abs=MS)


def test_an_unknown_clock_gives_no_hint() -> None:
    """An unsynchronized node has no bound that could be clamped or contradicted."""
    job = race()
    job.clock_error[2:] = 5 * MS
    job.attempt.clocks.set([2, 3], 1, None, job.now)
    go_on(job, 5)
    assert job.attempt.take_clock_hints() == []


def test_times_from_before_a_clock_was_set_right_does_not_count() -> None:
    """Rows from before the clock of node 1 was known are aligned by what is not believed now."""
    job = race()
    job.clock_error[2:] = 5 * MS
    job.attempt.clocks.set([2, 3], 1, None, job.now)
    dice = np.random.default_rng(3)
    came = arrivals(4, [[range(4)]], 20, lambda step, layer: dice.normal(0.05, 0.001, 4))
    job.attempt.clocks.set([2, 3], 1, 50_000, AlignedNs(job.now + 2 * S))
    job.run(came)
    assert job.attempt.take_clock_hints() == []


# -- findings ------------------------------------------------------------------------------------


def test_nodes_that_contradict_each_other_are_both_named() -> None:
    """Node 1 is off by 5 ms for a while; the finding names both nodes, and closes afterwards."""
    job = race()
    job.clock_error[2:] = 5 * MS
    (opened,) = go_on(job, 10)
    assert (opened.change, opened.finding.kind) == (Change.OPENED, Kind.CLOCK_UNSYNCHRONIZED)
    assert opened.finding.suspects == ()
    assert opened.finding.unknown == (0, 1, 2, 3)
    assert "The clocks of node0 and node1 contradict each other" in opened.finding.summary
    assert "one of the two is wrong: check the time synchronization" in opened.finding.summary
    job.clock_error[2:] = 0
    (closed,) = go_on(job, 40)
    assert (closed.change, closed.finding.id) == (Change.CLOSED, opened.finding.id)
    assert closed.finding.close_reason == "the clocks agree again"


def test_one_contradiction_is_a_step() -> None:
    """For half a second times are off, as in the middle of a step: no finding."""
    job = race()
    job.clock_error[2:] = 5 * MS
    go_on(job, 0.5)
    job.clock_error[2:] = 0
    assert go_on(job, 30) == []


def test_a_node_that_stays_unknown_is_reported() -> None:
    """Not in the first 20 s; then until its clock is known."""
    job = race()
    job.attempt.clocks.set([2, 3], 1, None, job.now)
    assert go_on(job, 15) == []
    (opened,) = go_on(job, 15)
    assert (opened.change, opened.finding.kind) == (Change.OPENED, Kind.CLOCK_UNSYNCHRONIZED)
    assert opened.finding.unknown == (2, 3)
    assert "The clock of node1 (ranks 2-3) is not synchronized" in opened.finding.summary
    job.attempt.clocks.set([2, 3], 1, 50_000, job.now)
    (closed,) = go_on(job, 5)
    assert closed.finding.close_reason == "the clocks agree again"


def test_a_node_whose_agent_is_gone_is_not_reported() -> None:
    """Nothing is known of its clock because nothing is known of it at all."""
    job = race()
    job.attempt.clocks.set([2, 3], 1, None, job.now)
    job.attempt.connection([2, 3], False)
    assert go_on(job, 40) == []


def test_a_single_node_needs_no_clock() -> None:
    """All ranks share one clock, so none is compared with it."""
    job = race()
    job.attempt.clocks.set(range(4), 1, None, job.now)
    assert go_on(job, 40) == []


def test_a_finding_goes_on_after_a_restart() -> None:
    """The node is unknown before and after: one id; another that has healed closes."""
    before = race()
    before.attempt.clocks.set([2, 3], 1, None, before.now)
    (opened,) = go_on(before, 30)
    restored = finding_from_json(finding_json(opened.finding))
    still, healed = race(), race()
    still.attempt.clocks.set([2, 3], 1, None, still.now)
    for job in (still, healed):
        job.engine.restore([restored], job.now)
        go_on(job, 50)
    assert [finding.id for finding in still.open()] == [opened.finding.id]
    assert [e.finding.close_reason for e in healed.events] == ["the clocks agree again"]
