"""Laws of the engine's state: order does not matter, replay changes nothing, memory is bounded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frd.engine.attempt import Attempt
from frd.engine.matching import collectives
from frd.engine.policy import Policy
from frd.model import AlignedNs, AttemptKey, Flags, GroupInfo, RankInfo, Signature
from tests.world import observe
from tests.world.observe import Applied
from tests.world.seeds import examples

NOW = AlignedNs(1_000_000_000_000_000_000)
JOINED, COMPLETED = int(Flags.JOINED), int(Flags.COMPLETED)
SIGNATURES = (
    Signature("nccl", "all_reduce", ((4,),), ((4,),), ("Float",), ("Float",)),
    Signature("nccl", "all_reduce", ((2, 2),), ((2, 2),), ("Float",), ("Float",)),
    Signature("nccl", "all_reduce", ((8,),), ((8,),), ("Float",), ("Float",)),
    Signature("nccl", "broadcast", ((4,),), ((4,),), ("Half",), ("Half",)),
    Signature("nccl", "all_to_all", ((6,),), ((5,),), ("Float",), ("Float",)),
)


@dataclass(frozen=True)
class Row:
    group: int
    seq: int
    flags: int
    signature: int
    created: int


@dataclass(frozen=True)
class Story:
    """What the ranks of a small job report: batches of rows by rank."""

    world: int
    groups: tuple[tuple[int, ...], ...]
    batches: tuple[tuple[tuple[Row, ...], ...], ...]

    def joined(self, group: int) -> set[int]:
        return {row.seq for row in self._rows() if row.group == group and row.flags & JOINED}

    def completed(self, group: int) -> set[int]:
        """Seqs that every member completed."""
        by_rank = [
            {
                r.seq
                for b in self.batches[rank]
                for r in b
                if r.group == group and r.flags & COMPLETED
            }
            for rank in self.groups[group]
        ]
        return set.intersection(*by_rank)

    def _rows(self) -> list[Row]:
        return [row for batches in self.batches for batch in batches for row in batch]


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """The shape of the job is hypothesis's to shrink, the detail of its rows comes from a seed."""
    world = draw(st.integers(2, 4))
    members = st.sets(st.integers(0, world - 1), min_size=1).map(lambda s: tuple(sorted(s)))
    groups = (tuple(range(world)), *draw(st.lists(members, max_size=2)))
    base = draw(st.sampled_from([0, 1, 5_000]))
    dice = Random(draw(st.integers(0, 2**32 - 1)))
    batches = []
    for rank in range(world):
        queues = []
        for group in (group for group, ranks in enumerate(groups) if rank in ranks):
            count = draw(st.integers(0, 25))
            queues.append(_recorded(dice, group, base, count, draw(st.integers(0, count))))
        rows = _interleaved(dice, queues)
        cuts = sorted(dice.randint(0, len(rows)) for _ in range(draw(st.integers(0, 4))))
        edges = pairwise([0, *cuts, len(rows)])
        batches.append(tuple(tuple(rows[start:end]) for start, end in edges))
    return Story(world, groups, tuple(batches))


def _recorded(dice: Random, group: int, base: int, count: int, done: int) -> list[Row]:
    """Rows of one rank in one group: joins in order, completions in order and after their join."""
    odd = dice.randrange(40)
    rows: list[Row] = []
    late: list[Row] = []
    for n in range(count):
        signature = dice.randrange(len(SIGNATURES)) if n == odd else n % 2
        row = Row(group, base + n, JOINED, signature, NOW + dice.randrange(10**10))
        if n < done and not late and dice.random() < 0.5:
            rows.append(replace(row, flags=JOINED | COMPLETED))
            continue
        rows.append(row)
        if n < done:
            late.append(replace(row, flags=COMPLETED))
        while late and dice.random() < 0.5:
            rows.append(late.pop(0))
    return rows + late


def _interleaved(dice: Random, queues: list[list[Row]]) -> list[Row]:
    rows: list[Row] = []
    while left := [queue for queue in queues if queue]:
        rows.append(dice.choice(left).pop(0))
    return rows


def new_attempt(story: Story, policy: Policy | None = None) -> Attempt:
    attempt = Attempt(AttemptKey("job", 0), story.world, policy or Policy(), NOW)
    for rank in range(story.world):
        attempt.rank(RankInfo(rank, story.world, "node", "boot", rank + 1))
    for number, members in enumerate(story.groups):
        attempt.group(GroupInfo(str(number), f"group {number}", members))
    return attempt


def feed(attempt: Attempt, rank: int, rows: tuple[Row, ...], *, replay: bool = False) -> Applied:
    return observe.entries(
        attempt,
        rank,
        [row.group for row in rows],
        [row.seq for row in rows],
        [row.flags for row in rows],
        signature=[SIGNATURES[row.signature] for row in rows],
        created=[row.created for row in rows],
        replay=replay,
        now=NOW,
    )


def fed(story: Story, policy: Policy | None = None) -> Attempt:
    """All that the ranks report, one rank after the other."""
    attempt = new_attempt(story, policy)
    for rank, batches in enumerate(story.batches):
        for batch in batches:
            feed(attempt, rank, batch)
    return attempt


def feed_watermarks(attempt: Attempt, rank: int, rows: list[Row]) -> None:
    """A watermark message that is true after these rows of the rank."""
    groups = sorted({row.group for row in rows})

    def highest(group: int, flag: int) -> int:
        return max((r.seq for r in rows if r.group == group and r.flags & flag), default=-1)

    marks = [
        (attempt.pair(rank, group), highest(group, JOINED), -1, highest(group, COMPLETED), NOW)
        for group in groups
    ]
    observe.watermarks(attempt, marks, rank, NOW)


def state(attempt: Attempt) -> tuple[object, ...]:
    """All state that does not depend on the time of the question.

    Skew is summed over ops: a collective whose members disagree on the op has the first one's.
    """
    snapshot, view = attempt.snapshot(NOW), attempt.view(NOW)
    skew, pairs = view.skew.values(), snapshot.pairs
    return (
        [column.tolist() for column in (pairs.first, pairs.rank, pairs.joined, pairs.completed)],
        [(g.matched, g.open_collectives, g.enqueued, g.completed) for g in view.groups],
        [sum(column) for column in zip(*(of.counts for of in skew), strict=True)],
        round(sum(of.total for of in skew), 6),
        [
            (fact.group, fact.seq, [ranks for _, ranks in fact.classes], fact.complete)
            for fact in snapshot.mismatches
        ],
        [group.threshold_s for group in view.groups],
    )


@examples(80)
@given(stories(), st.integers(0, 2**32 - 1).map(Random))
def test_order_across_ranks_does_not_matter(story: Story, dice: Random) -> None:
    """Batches of different ranks arrive in any order, with watermarks that run ahead of them and
    questions in between: same state."""
    straight = fed(story)
    shuffled = new_attempt(story)
    reported: list[list[Row]] = [[] for _ in story.batches]
    left = {rank: list(batches) for rank, batches in enumerate(story.batches)}
    while left := {rank: batches for rank, batches in left.items() if batches}:
        rank = dice.choice(sorted(left))
        batch = left[rank].pop(0)
        reported[rank] += batch
        if dice.random() < 0.3:
            feed_watermarks(shuffled, rank, reported[rank])
        feed(shuffled, rank, batch)
        if dice.random() < 0.5:
            shuffled.stalls(NOW)
    assert state(shuffled) == state(straight)


@examples(60)
@given(stories(), st.floats(0, 1))
def test_replay_changes_nothing(story: Story, part: float) -> None:
    """After any part of the story, rows that were reported may be sent again, from any row on."""
    attempt = new_attempt(story)
    for rank, batches in enumerate(story.batches):
        known: tuple[Row, ...] = ()
        for batch in batches:
            feed(attempt, rank, batch)
            known += batch
        before = state(attempt)
        again = known[round(part * len(known)) :]
        applied = feed(attempt, rank, again, replay=True)
        assert applied.duplicates == len(again)
        assert state(attempt) == before


@examples(60)
@given(stories())
def test_matched_and_open_add_up(story: Story) -> None:
    """Each collective that some rank joined is either matched by all members or still open."""
    attempt = fed(story)
    for group, view in enumerate(attempt.view(NOW).groups):
        joined, completed = story.joined(group), story.completed(group)
        assert view.matched == len(completed)
        assert view.open_collectives == len(joined - completed)
        assert view.enqueued == max(joined, default=-1)


@examples(60)
@given(stories(), st.integers(16, 64), st.integers(16, 32))
def test_nothing_grows_past_its_limit(story: Story, limit: int, per_group: int) -> None:
    """With very small limits every row is accepted, and dropped collectives are counted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collectives, "MAX_OPEN", limit)
        patch.setattr(collectives, "MAX_OPEN_OF_GROUP", per_group)
        attempt = fed(story)
    open_collectives = attempt._collectives.open_collectives
    assert open_collectives.slots.count <= limit
    assert int((open_collectives.slots.seq >= 0).sum()) == open_collectives.open <= limit
    generous = fed(story)
    view, whole = attempt.view(NOW), generous.view(NOW)
    assert [g.completed for g in view.groups] == [g.completed for g in whole.groups]
    matched = [g.matched for g in view.groups]
    lost = attempt.evicted["collectives"] + attempt.evicted["rows"]
    if lost == 0:
        assert matched == [g.matched for g in whole.groups]
    assert all(m <= w.matched for m, w in zip(matched, whole.groups, strict=True))
