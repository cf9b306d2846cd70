"""Which ranks are asked what they are blocked in, and what becomes of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from frd.engine.evidence.questions import Occasion
from frd.model import (
    IDLE,
    NATIVE,
    POLL,
    REST,
    Certainty,
    ExitInfo,
    ExitKind,
    FindingEvent,
    FindingState,
    Holder,
    NodeRawNs,
    RankState,
    WaitKind,
    WaitsFor,
    WaitSource,
)
from frd.wire.waits import WaitReport
from tests.world.asked import Asked, stack_text
from tests.world.job import Job

S = 1_000_000_000
READ = WaitsFor(
    *(WaitKind.FILE_READ, Certainty.SEEN, "/data/shard-17.tar"),
    topic="data",
    says="its main thread has been in read() of /data/shard-17.tar",
)
LOCK = WaitsFor(
    *(WaitKind.LOCK_FILE, Certainty.SEEN, "/ckpt/.lock"),
    holder=Holder(991, 3),
    topic="a lock",
    says="its main thread has been in flock() of /ckpt/.lock",
)
INNER = WaitsFor(
    *(WaitKind.LOCK_INNER, Certainty.SEEN, "another thread of the process, with a time-out"),
    topic="another thread",
    says="its main thread has been waiting for another thread of the process, with a time-out",
)
UNKNOWN = WaitsFor(WaitKind.UNKNOWN, Certainty.UNKNOWN)
NO_STACK = "# py-spy: not installed\n"
IN_LIBRARY = (
    "Thread 0x00007f3f56a93b80 (most recent call first):\n"
    '  File "/usr/lib/python3.11/threading.py", line 327 in wait\n'
    '  File "/job/train.py", line 88 in exchange\n'
)


class World:
    """A job of four ranks, of which these do not come, and agents that answer immediately."""

    def __init__(self, *absent: int, texts: dict[int, str] | None = None) -> None:
        self.job = Job(4).group("dp", range(4)).all_reduce("dp", 0)
        self.job.run(1)
        self.agents = Asked(self.job)
        self.agents.texts = {**dict.fromkeys(range(4), NO_STACK), **(texts or {})}
        if absent:
            self.hang(absent)

    @property
    def asked(self) -> list[list[int]]:
        return [sorted(ranks) for _, ranks in self.agents.of(Occasion.SUSPECTED)]

    def report(self, rank: int, found: WaitsFor, since_s: float = 4, **more: bool) -> None:
        """What the agent of a rank answers from now on."""
        since, seen = (NodeRawNs(self.job.now - int(ago * S)) for ago in (since_s, 0))
        self.agents.reports[rank] = WaitReport(found, since, seen, **more)

    def seen_in(self, rank: int) -> list[tuple[str, tuple[int, ...]]]:
        """What inspections show the rank to be in, and its peers."""
        waits = self.job.attempt.snapshot(self.job.now).unrecorded.get(rank, ())
        return [(w.op, w.peers) for w in waits if w.source is WaitSource.INSPECTION]

    def look(self, times: int = 1) -> list[FindingEvent]:
        return self.agents.look(times)

    def hang(self, absent: Sequence[int]) -> None:
        self.job.join("dp", [rank for rank in range(4) if rank not in absent], 1)
        self.agents.run(6)
        self.agents.clear()

    def waits_for(self, rank: int) -> WaitsFor | None:
        return next(s.waits_for for s in self.job.only().suspects if s.rank == rank)


def test_of_healthy_ranks_nothing_is_asked() -> None:
    """A job that runs; then rank 2 does not come, and it alone is asked, until it comes."""
    world = World()
    world.look(3)
    assert world.agents.questions == []
    world.hang([2])
    world.report(2, READ)
    world.look(2)
    assert world.asked == [[2], [2]]
    found = world.waits_for(2)
    assert found is not None
    assert found.text == (
        "rank 2 waits for data: its main thread has been in read() of /data/shard-17.tar for 4.0 s"
    )
    assert world.job.only().headline.endswith(
        ": its main thread is stuck in read(/data/shard-17.tar)"
    )
    world.job.join("dp", [2], 1).complete("dp", range(4), 1)
    world.agents.run(3)
    assert world.job.findings()[0].state is FindingState.CLOSED
    world.agents.clear()
    world.look(2)
    assert world.asked == []


@pytest.mark.parametrize("after_s", [0.0, 0.5])
def test_a_finding_that_opens_is_asked_about_immediately(after_s: float) -> None:
    """The first inspection does not wait for the second that passes between two of them."""
    world = World()
    world.job.run(after_s)
    world.job.join("dp", [0, 1, 3], 1)
    events: list[FindingEvent] = []
    while not events:
        world.job.questions.clear()
        events = world.job.run(0.5)
    assert [one.occasion for one in world.job.questions] == [Occasion.OPENED, Occasion.SUSPECTED]


def test_a_rank_that_waits_for_another_kind_of_thing() -> None:
    """A read that lasts is one event. From a read to an fsync: shown immediately. The next file, or
    a moment in no call, comes later: until then the finding shows what was seen last, with the time
    at which that was."""
    world = World(2)
    world.report(2, READ)
    assert len(world.look()) == 1
    assert world.look(10) == []
    world.report(2, replace(READ, kind=WaitKind.FILE_SYNC, what="/ckpt/a.pt"))
    assert len(world.look()) == 1
    before = world.waits_for(2)
    for other in (replace(READ, kind=WaitKind.FILE_SYNC, what="/ckpt/b.pt"), UNKNOWN):
        world.report(2, other)
        assert world.look() == []
        assert world.waits_for(2) == before


def test_other_words_of_the_same_kind() -> None:
    """The next file of a data set is shown after ten seconds."""
    world = World(2)
    world.report(2, READ)
    world.look()
    world.report(2, replace(READ, what="/data/shard-18.tar"))
    assert world.look(8) == []
    assert len(world.look(3)) == 1
    found = world.waits_for(2)
    assert found is not None
    assert found.what == "/data/shard-18.tar"


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("certainty", [Certainty.LIKELY, Certainty.UNKNOWN])
def test_what_was_seen_stays(certainty: Certainty, *, restarted: bool) -> None:
    """A rank was seen in a read; later it is only likely, or not known, what it waits for: the
    finding shows the read, also to a service that has just started; until something is seen."""
    world = World(2)
    world.report(2, READ)
    world.look()
    before = world.waits_for(2)
    assert before is not None
    if restarted:
        world.job.restart_service()
        world.job.reconnect(range(4))
        world.agents.clear()
    world.report(2, replace(INNER, certainty=certainty))
    world.look(30)
    assert len(world.asked) >= 29
    assert world.waits_for(2) == before
    world.report(2, LOCK)
    world.look()
    found = world.waits_for(2)
    assert found is not None
    assert found.kind is WaitKind.LOCK_FILE


def test_after_the_end_no_rank_is_asked() -> None:
    """Ctrl-C ends a rank that waits: what the suspect was seen in stays, whatever it is in while it
    ends."""
    world = World(2)
    world.report(2, READ)
    world.look()
    before = world.waits_for(2)
    how = ExitInfo(ExitKind.INTERRUPT)
    world.job.status(0, RankState.EXITED, how=how)
    world.look(2)
    assert world.job.only().ended_by
    world.agents.clear()
    world.report(2, replace(READ, kind=WaitKind.FILE_SYNC, what="/ckpt/a.pt"))
    world.look(5)
    assert world.asked == []
    assert world.waits_for(2) == before


def test_the_holder_of_a_lock_is_the_first_cause() -> None:
    """Ranks 1 to 3 do not come: 1 and 2 wait for a lock that rank 3 holds, so 3 alone is named, and
    1 and 2 are asked on, because they may get the lock. Only rank 0 waits, so it is not certain."""
    world = World(1, 2, 3)
    assert [s.rank for s in world.job.only().suspects] == [1, 2, 3]
    finding = world.job.only().id
    for _ in range(6):
        for rank in (1, 2):
            world.report(rank, LOCK)
        world.report(3, replace(READ, kind=WaitKind.SLEEP))
        world.look()
    assert (world.job.only().id, world.job.only().victims) == (finding, (0, 1, 2))
    (suspect,) = world.job.only().suspects
    assert (suspect.rank, suspect.confidence.value) == (3, "medium")
    assert world.asked[-1] == [1, 2, 3]


def test_a_holder_that_is_only_likely_is_no_proof() -> None:
    """The lock is in shared memory, which has no record of its holder: all three stay suspects."""
    world = World(1, 2, 3)
    guess = replace(LOCK, kind=WaitKind.LOCK_SHARED, certainty=Certainty.LIKELY)
    for _ in range(6):
        for rank in (1, 2):
            world.report(rank, guess)
        world.look()
    assert [s.rank for s in world.job.only().suspects] == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "is_timed", "named"),
    [(stack_text(""), True, [2]), (IN_LIBRARY, True, [2, 3]), (stack_text(""), False, [2, 3])],
)
def test_a_native_call_that_may_wait_for_a_rank(
    text: str, is_timed: bool, named: list[int]
) -> None:
    """Ranks 2 and 3 do not come: 2 computes, 3 is in `work.wait()` of a receive. Rank 3 stays a
    suspect if its stack ends in the standard library, or if the call waits without a time-out."""
    world = World(2, 3, texts={3: text})
    for _ in range(6):
        world.report(2, replace(READ, kind=WaitKind.ON_CPU))
        world.report(3, INNER, may_be_for_peer=is_timed)
        world.look()
    suspects = world.job.only().suspects
    assert [(s.rank, s.confidence.value) for s in suspects] == [(rank, "high") for rank in named]
    assert world.asked[-1] == [2, 3]


def test_a_native_call_that_ends() -> None:
    """Rank 3 comes out of the receive, and is then in a read: it no longer counts as waiting, and
    is not asked any more. The cause that was certain stays."""
    world = World(2, 3, texts={3: stack_text("")})
    for _ in range(6):
        world.report(3, INNER, may_be_for_peer=True)
        world.look()
    assert [s.rank for s in world.job.only().suspects] == [2]
    world.report(3, READ)
    world.look(2)
    assert world.seen_in(3) == [(REST, ())]
    assert world.asked[-2:] == [[2, 3], [2]]
    assert [s.rank for s in world.job.only().suspects] == [2]


POLLED = WaitsFor(
    *(WaitKind.SLEEP, Certainty.SEEN),
    topic="what it polls for",
    says="its main thread has been polling",
)
FOR_LOCK = replace(
    POLLED,
    certainty=Certainty.LIKELY,
    what="/data/squad.lock",
    holder=Holder(991, 3),
    topic="a lock",
)
REPLY = WaitsFor(
    *(WaitKind.SOCKET, Certainty.SEEN, "10.0.0.1:80"),
    topic="a reply from 10.0.0.1:80",
    says="its main thread has been in recv() from 10.0.0.1:80",
)


WANTS_LOCK = (
    "Thread 0x00007f3f56a93b80 (most recent call first):\n"
    '  File "/opt/venv/lib/python3.11/site-packages/filelock/_api.py", line 344 in acquire\n'
    '  File "/job/train.py", line 88 in exchange\n'
)


@pytest.mark.parametrize(
    ("found", "how", "expected"),
    [
        (POLLED, {"is_poll": True}, (POLL, ())),
        (FOR_LOCK, {"is_poll": True}, (POLL, (3,))),
        (replace(FOR_LOCK, holder=Holder(991)), {"is_poll": True}, (POLL, ())),
        (REPLY, {"is_idle": True}, (IDLE, ())),
        (READ, {}, (REST, ())),
        (replace(READ, holder=Holder(7, 2)), {}, (REST, ())),
        (replace(POLLED, topic="a timer"), {}, (REST, ())),
        (replace(LOCK, holder=Holder(991)), {}, (REST, ())),
        (replace(READ, kind=WaitKind.ON_CPU), {}, ("", ())),
        (replace(LOCK, holder=None), {}, (NATIVE, ())),
    ],
    ids=[
        *("poll", "lock", "other job", "idle", "read", "own worker", "sleep", "lock of no rank"),
        *("computing", "holder not seen"),
    ],
)
def test_what_an_inspection_shows(
    found: WaitsFor, how: dict[str, bool], expected: tuple[str, tuple[int, ...]]
) -> None:
    """Rank 2 does not come, and what it is in is known: a poll, for a lock of rank 3 if its stack
    shows that it wants one; a wait for a request; a call that no other rank ends; or none."""
    world = World(2, texts={2: WANTS_LOCK} if found.topic == "a lock" else {})
    world.report(2, found, **how)
    world.look(2)
    assert world.seen_in(2) == [expected]


WANTS_BATON = WANTS_LOCK.replace("filelock/_api.py", "torch/utils/file_baton.py").replace(
    "acquire", "wait"
)


@pytest.mark.parametrize("stack", [stack_text(""), WANTS_BATON], ids=["no poll", "baton"])
def test_a_poll_beside_a_lock(stack: str) -> None:
    """The stack of rank 2 shows no wait for a lock of the kernel, but at most for another file:
    that rank 3 has one means nothing."""
    world = World(2, texts={2: stack})
    world.report(2, FOR_LOCK, is_poll=True)
    world.look(2)
    assert world.seen_in(2) == [(POLL, ())]


@pytest.mark.parametrize(
    "found",
    [
        replace(READ, certainty=Certainty.LIKELY),
        replace(READ, holder=Holder(991, 3)),
        replace(INNER, topic="a lock"),
    ],
    ids=["likely", "other rank", "lock inside"],
)
def test_what_is_no_proof_of_rest(found: WaitsFor) -> None:
    """A wait that another rank may end, or that is only likely."""
    world = World(2)
    world.report(2, found)
    world.look(2)
    assert world.seen_in(2) == []


STORE = (
    "Thread 0x00007f3f56a93b80 (most recent call first):\n"
    '  File "/opt/venv/torch/distributed/elastic/utils/store.py", line 60 in synchronize\n'
    '  File "/job/train.py", line 88 in exchange\n'
)


@pytest.mark.parametrize(
    ("stack", "expected"), [(NO_STACK, []), (STORE, []), (stack_text(""), [(REST, ())])]
)
def test_a_reply_may_be_one_of_the_store(
    stack: str, expected: list[tuple[str, tuple[int, ...]]]
) -> None:
    """A rank waits for a reply, which proves rest only if its stack shows no wait for the store."""
    world = World(2, texts={2: stack})
    world.report(2, REPLY)
    world.look(2)
    assert world.seen_in(2) == expected


def test_a_poll_that_ends() -> None:
    """Rank 2 polls, and then computes: it does not count as waiting any more."""
    world = World(2)
    world.report(2, POLLED, is_poll=True)
    world.look(2)
    world.report(2, replace(READ, kind=WaitKind.ON_CPU))
    world.look(2)
    assert world.seen_in(2) == [("", ())]


def test_a_holder_that_is_found_later() -> None:
    """A rank was seen to poll; then it is likely for whose lock: the finding shows that."""
    world = World(2)
    world.report(2, POLLED, is_poll=True)
    world.look(2)
    world.report(2, FOR_LOCK, is_poll=True)
    world.look(2)
    found = world.waits_for(2)
    assert found is not None
    assert found.holder == Holder(991, 3)


def test_names_of_the_job_are_made_printable() -> None:
    """A file whose name holds an escape sequence."""
    world = World(2)
    name = "/data/\x1b[31mred"
    world.report(2, replace(READ, what=name, says=f"has been in read() of {name}"))
    world.look()
    found = world.waits_for(2)
    assert found is not None
    assert found.what.isprintable()
    assert world.job.only().summary.isprintable()


def test_a_process_that_was_not_looked_at_yet() -> None:
    """Its agent says so: the finding has no words for it, and nothing counts as a wait."""
    world = World(2)
    world.agents.reports[2] = WaitReport(LOCK)
    assert world.look(3) == []
    assert world.waits_for(2) is None
    unrecorded = world.job.attempt.snapshot(world.job.now).unrecorded
    assert WaitSource.INSPECTION not in {w.source for w in unrecorded.get(2, ())}
