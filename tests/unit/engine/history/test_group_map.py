"""How each rank is doing in each group, what is waited in, and the groups of one rank."""

from __future__ import annotations

from frd.engine.attempt import Attempt
from frd.engine.policy import Policy
from frd.engine.views import RankGroup
from frd.model import AttemptKey, Flags, GroupInfo, NodeNs, RankState, RankStatus
from tests.world import observe
from tests.world.attempt import Job, at
from tests.world.history import cells, history, missing

POLICY = Policy(stall_after_s=8.0)
"""A wait is listed after 2 s, shown in the map after 4 s, and a stall after 8 s."""


def group(job: Job, name: str, label: str, *ranks: int) -> int:
    return job.attempt.group(GroupInfo(name, label, ranks))


def mapped(job: Job, now: float) -> dict[str, str]:
    return cells(history(job.attempt, now).group_map(9))


# -- the map -----------------------------------------------------------------------------------


def test_a_wait_grows_from_ok_to_stuck() -> None:
    """Rank 0 waits in an op that ranks 1 to 3 have not joined: half of the threshold, all of it."""
    job = Job(policy=POLICY)
    job.entries(0, [7], Flags.JOINED, created=0)
    assert mapped(job, 3.9) == {"default_pg": "ok ok ok ok"}
    assert mapped(job, 4.1) == {"default_pg": "waiting missing missing missing"}
    assert mapped(job, 8.1) == {"default_pg": "stuck missing missing missing"}
    for rank in (1, 2, 3):
        job.entries(rank, [7], created=8.5)
    job.entries(0, [7], Flags.COMPLETED, created=0, completed=8.6)
    assert mapped(job, 9) == {"default_pg": "ok ok ok ok"}


def test_a_process_that_is_gone() -> None:
    """Whatever it did before, its cell says that it is gone; a clean end is one, too. It waits for
    no rank any more; a silent one does."""
    job = Job(policy=POLICY)
    job.entries(0, [7], Flags.JOINED, created=0)
    job.status(0, RankState.EXITED, 5)
    job.status(1, RankState.FINISHED, 5)
    assert mapped(job, 9) == {"default_pg": "gone gone ok ok"}
    assert waits(job, 9) == []
    job.entries(2, [7], Flags.JOINED, created=0)
    job.status(2, RankState.SILENT, 5)
    assert mapped(job, 9) == {"default_pg": "gone gone stuck missing"}
    assert waits(job, 9) == [("default_pg", 7, 0, True)]


def test_ranks_outside_a_group_have_no_state() -> None:
    """A group of two of four ranks."""
    job = Job(policy=POLICY)
    tp = group(job, "1", "tp", 1, 2)
    job.entries(1, [0], Flags.JOINED, created=0, group=tp)
    assert mapped(job, 5) == {"default_pg": "ok ok ok ok", "tp": "none waiting missing none"}


def test_groups_with_one_label_share_a_row() -> None:
    """Two groups called tp: each rank has the worst of its groups with the label."""
    job = Job(policy=POLICY)
    left, _, both = (
        group(job, name, "tp", *ranks) for name, *ranks in (("1", 0, 1), ("2", 2, 3), ("3", 1, 2))
    )
    job.entries(0, [0], Flags.JOINED, created=0, group=left)
    job.entries(2, [0], Flags.JOINED, created=4.5, group=both)
    found = history(job.attempt, 9).group_map(9)
    assert cells(found)["tp"] == "stuck missing waiting ok"
    row = list(found.labels).index("tp")
    assert (found.groups[row], found.members[row], found.more) == (3, 4, 0)


def test_the_worst_labels_stay_in_their_order() -> None:
    """Of four labels, two are asked for: one with a stuck rank, then the largest; in the order in
    which they were declared, so that no row jumps when it becomes worse."""
    job = Job(policy=POLICY)
    group(job, "1", "small", 0, 1)
    bad = group(job, "2", "bad", 0, 1)
    group(job, "3", "other", 0, 1)
    job.entries(0, [0], Flags.JOINED, created=0, group=bad)
    found = history(job.attempt, 9).group_map(2)
    assert (list(found.labels), found.more) == (["default_pg", "bad"], 2)
    assert list(history(job.attempt, 9).group_map(1).labels) == ["bad"]
    assert list(history(job.attempt, 1).group_map(2).labels) == ["default_pg", "small"]
    every = history(job.attempt, 9).group_map(9)
    assert list(every.labels) == ["default_pg", "small", "bad", "other"]


def test_an_attempt_without_ranks_and_groups() -> None:
    """A job that has just been declared, of a known or an unknown size: an empty map."""
    for world in (0, 4):
        attempt = Attempt(AttemptKey("job", 0), world, POLICY, at(0))
        found = history(attempt, 1)
        shown = found.group_map(9)
        assert (shown.cells.shape, list(shown.labels), shown.more) == ((0, world), [], 0)
        assert found.open_ops(9) == ([], 0)
        assert found.groups_of(0, 9) == ([], 0)


# -- what is waited in -------------------------------------------------------------------------


def waits(job: Job, now: float) -> list[tuple[str, int, float, bool]]:
    found, _ = history(job.attempt, now).open_ops(9)
    return [(op.label, op.seq, (op.since - at(0)) / 1e9, op.stalled) for op in found]


def test_the_longest_wait_comes_first() -> None:
    """Three waits: the two that have lasted are listed, the older one first, which is a stall."""
    job = Job(policy=POLICY)
    first, second, third = (group(job, name, name, 0, 1) for name in ("a", "b", "c"))
    job.entries(0, [3], Flags.JOINED, created=4, group=first)
    job.entries(0, [5], Flags.JOINED, created=1, group=second)
    job.entries(1, [9], Flags.JOINED, created=8, group=third)
    assert waits(job, 9.5) == [("b", 5, 1, True), ("a", 3, 4, False)]
    found, more = history(job.attempt, 9.5).open_ops(1)
    assert ([op.label for op in found], more) == (["b"], 1)
    assert waits(job, 2.9) == []


def test_who_waits_and_who_is_missing() -> None:
    """Ranks 0 and 3 wait in all_reduce 7; rank 1 is at 6. Rank 2 has no op, and must have joined
    6 before its first report: of 7 nothing is known."""
    job = Job(policy=POLICY)
    for rank in (0, 1, 3):
        job.entries(rank, [6], created=0.5)
    job.entries(3, [7], Flags.JOINED, created=1)
    job.entries(0, [7], Flags.JOINED, created=2)
    (op,), more = history(job.attempt, 9).open_ops(9)
    assert (op.op, op.seq, more) == ("all_reduce", 7, 0)
    assert ([*op.waiting], [*op.missing], [*op.unknown]) == ([0, 3], [1], [2])
    assert (op.group_id, op.since) == (GroupInfo("0", "", (0, 1, 2, 3)).group_id, at(1))


def test_a_wait_of_an_unknown_op() -> None:
    """Only a watermark shows it: its name is not known. Members without an op are missing, as a
    snapshot says."""
    job = Job(policy=POLICY)
    job.watermark(2, 7, 6, 1.0)
    (op,), _ = history(job.attempt, 9).open_ops(9)
    assert (op.op, [*op.waiting], [*op.missing]) == ("collective", [2], [0, 1, 3])
    assert [*op.unknown] == []
    assert (job.attempt.snapshot(at(9)).pairs.joined_most[[0, 1, 3]] < 7).all()


# -- what is not known -------------------------------------------------------------------------


def test_a_program_that_runs_ahead_of_its_device_does_not_wait() -> None:
    """All ranks enqueue ten ops together and complete one each second: none of them is stuck, as
    the engine says."""
    job = Job(policy=POLICY)
    for rank in range(4):
        job.entries(rank, [*range(10)], Flags.JOINED, created=0)
    for done in range(9):
        for rank in range(4):
            job.watermark(rank, 9, done, 0.0, as_of=float(done + 1))
    assert not len(job.attempt.stalls(at(9.5)))
    assert "stuck" not in cells(history(job.attempt, 9.5).group_map(9))["default_pg"]
    assert not any(op.stalled for op in history(job.attempt, 9.5).open_ops(9)[0])


def test_the_telemetry_of_a_rank_confirms_its_wait() -> None:
    """Its agent went silent a second after it had joined: it is not known to be stuck."""
    job = Job(policy=POLICY)
    for rank in range(4):
        job.entries(rank, [6], created=0)
    job.entries(0, [7], Flags.JOINED, created=1)
    observe.watermarks(job.attempt, [], [0], at(2))
    view = job.attempt.view(at(100)).history
    assert view is not None
    assert cells(view.group_map(9)) == {"default_pg": "unknown unknown unknown unknown"}
    assert view.open_ops(9) == ([], 0)


def test_lost_rows_prove_no_absence() -> None:
    """Rank 2 has lost entries: that it has none of op 7 says nothing."""
    job = Job(policy=POLICY)
    for rank in range(4):
        job.entries(rank, [6], created=0)
    for rank in (0, 1, 3):
        job.entries(rank, [7], Flags.JOINED, created=1)
    status = RankStatus(2, RankState.LIVE, NodeNs(at(0)), gap_entries=3, as_of_ns=at(20))
    job.attempt.observe_status(status, at(20))
    found = history(job.attempt, 9)
    (op,), _ = found.open_ops(9)
    assert ([*op.missing], [*op.unknown]) == ([], [2])
    assert cells(found.group_map(9))["default_pg"].split()[2] == "unknown"
    assert missing(found.ops(range(4), 9)) == []


# -- one rank ----------------------------------------------------------------------------------


def test_the_groups_of_a_rank() -> None:
    """The worst first; how far the rank has come, and how far any member has."""
    job = Job(policy=POLICY)
    tp = group(job, "1", "tp", 1, 2)
    group(job, "2", "dp", 0, 2)
    job.entries(1, [4, 5], created=0)
    job.entries(2, [3], created=0)
    job.entries(2, [0], Flags.JOINED, created=0, group=tp)
    found, more = history(job.attempt, 9).groups_of(2, 2)
    ids = [
        GroupInfo(name, "", ranks).group_id for name, ranks in (("1", (1, 2)), ("0", (0, 1, 2, 3)))
    ]
    assert found == [
        RankGroup(ids[0], "tp", 2, 0, -1, 0, "stuck"),
        RankGroup(ids[1], "default_pg", 4, 3, 3, 5, "ok"),
    ]
    assert more == 1
    assert history(job.attempt, 9).groups_of(77, 9) == ([], 0)
