"""One stream into a real engine: what is applied, acknowledged, cut off, replayed and refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest

from frd.engine.attempt import Attempt
from frd.engine.clocks.alignment import Alignment
from frd.engine.hangs.ops_in_flight import Waits
from frd.engine.policy import Policy
from frd.engine.state.entry_batch import EntryMessage
from frd.engine.state.watermarks import WatermarkRows
from frd.errors import WireError
from frd.model import (
    AlignedNs,
    AttemptKey,
    EntryColumns,
    ExitInfo,
    ExitKind,
    Flags,
    GroupInfo,
    NodeNs,
    NodeRawNs,
    RankInfo,
    RankState,
    RankStatus,
    Stage,
    WaitSource,
)
from frd.service.clocks.agent_clocks import guess
from frd.service.ingest import revisions as revisions_module
from frd.service.ingest.job_runs import Refusal
from frd.service.ingest.revisions import Revisions
from frd.service.ingest.shared import RankOwners
from frd.wire.messages import PROTOCOL, AttemptDecl, Declare, GroupDecl, Hello, RankDecl, Statuses
from frd_agent.uplink.outbox import part
from tests.world.messages import entry_columns, p2p_ops, watermarks
from tests.world.sessions import KEY, NOW, OFFSET, S, Service, Stream, entries

KILLED = ExitInfo(ExitKind.SIGNAL, 9)


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def stream(service: Service) -> Stream:
    return service.stream()


def test_nothing_is_acknowledged_before_it_is_applied(stream: Stream) -> None:
    """Messages of two ranks wait for the tick; the second one of a rank has the first applied."""
    stream.send(entries(1, range(5)))
    stream.send(entries(1, range(2), rank=1))
    assert stream.session.take_acks() == {}
    stream.send(entries(6, range(5, 8)))
    assert stream.session.take_acks() == {0: 5, 1: 2}
    stream.send(entries(1, range(5)))
    assert stream.session.take_acks() == {0: 8}
    assert stream.service.shared.entries == 10


def refused(stream: Stream) -> list[tuple[str, int, str]]:
    stream.service.shared.flush()
    return [(label, n, why.split(": seqs")[0]) for label, n, why in stream.session.take_refused()]


def test_bad_rows_cost_no_other_row(service: Service) -> None:
    """Of a message with seqs that do not rise, the rows that do are applied, the message is
    acknowledged, and the stream goes on."""
    bad, good = service.stream(), service.stream()
    good.send(entries(1, range(5)))
    bad.send(entries(1, range(3, 0, -1), rank=1))
    assert refused(bad) == [("entries", 2, "rank 3 of job: entries.seq: 2 after 3")]
    assert (bad.take_acks(), good.take_acks()) == ({1: 3}, {0: 5})
    bad.send(entries(4, range(4, 8), rank=1))
    assert bad.take_acks() == {1: 7}
    assert service.shared.entries == 10


def test_rows_of_one_group_that_are_refused_cost_no_row_of_another(stream: Stream) -> None:
    """The service knows the rank's 33rd op of a group from a replay of what is in flight; rows 1 to
    34 of it come after that, with rows of another group. Only what was known is refused."""
    stream.send(replace(entries(0, range(33, 34)), flags=np.array([int(Flags.JOINED)], np.uint8)))
    rows = entries(1, range(1, 35)), entries(1, range(3), group=1)
    both = {
        c.name: np.concatenate([getattr(some, c.name) for some in rows])
        for c in fields(rows[0])[2:]
    }
    stream.send(EntryColumns(rank=0, first_revision=1, **both))
    why = "rank 0 of job: entries.seq: 1: the rank has already reported 33 of this group"
    assert refused(stream) == [("entries", 33, why)]
    assert stream.take_acks() == {0: 37}
    enqueued = {view.label: view.enqueued for view in stream.service.view().groups}
    assert (enqueued["default_pg"], enqueued["TENSOR"]) == (34, 2)


def test_a_fault_of_the_engine_costs_one_stream(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine has a bug that one of two waiting messages meets: the other one is applied, and
    the stream of the first ends without an acknowledgement, so that its agent sends the rows again
    on another stream. They are applied then, although the engine had begun with them."""
    apply = Attempt.apply_entries

    def broken(attempt: Attempt, messages: Sequence[EntryMessage]) -> list[int]:
        if hit := [m for m in messages if m.rows.rank == 3]:
            apply(attempt, hit)
            raise ZeroDivisionError
        return apply(attempt, messages)

    bad, good = service.stream(), service.stream()
    with monkeypatch.context() as patch:
        patch.setattr(Attempt, "apply_entries", broken)
        good.send(entries(1, range(5)))
        bad.send(entries(1, range(3), rank=1))
        service.shared.flush()
        assert (good.take_acks(), bad.take_acks()) == ({0: 5}, {})
        for event in (entries(4, range(3, 5), rank=1), Statuses(())):
            with pytest.raises(WireError, match="internal error"):
                bad.send(event)
    again = service.stream()
    again.send(entries(1, range(4), rank=1))
    good.send(entries(6, range(5, 7)))
    service.shared.flush()
    assert (good.take_acks(), again.take_acks(), bad.take_acks()) == ({0: 7}, {1: 4}, {})


def test_a_fault_of_the_engine_costs_one_message_of_watermarks(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine has a bug that one of two waiting messages meets: the other one is applied, and
    the evaluation learns of the fault."""
    observe = Attempt.observe_watermarks

    def broken(attempt: Attempt, rows: WatermarkRows) -> None:
        if 9 in rows.enqueued:
            raise ZeroDivisionError
        observe(attempt, rows)

    one, two = service.stream(), service.stream()
    monkeypatch.setattr(Attempt, "observe_watermarks", broken)
    one.watermarks(9, 9, one.ago(1))
    two.watermarks(5, 5, two.ago(1), index=1)
    assert max(group.enqueued for group in service.view().groups) == 5
    assert isinstance(service.shared.watermarks.take_fault(), ZeroDivisionError)
    assert service.shared.watermarks.take_fault() is None


def test_a_reconnect_resends_and_nothing_counts_twice(service: Service) -> None:
    """The same agent resends from revision 3 after a reconnect: only what is new is applied."""
    service.stream().send(entries(1, range(5)))
    again = service.stream()
    again.send(entries(3, range(2, 9)))
    service.shared.flush()
    assert (service.shared.entries, service.shared.duplicates) == (9, 0)
    assert again.take_acks() == {0: 9}
    again.send(entries(3, range(2, 9)))
    assert service.shared.entries == 9
    assert again.take_acks() == {0: 9}
    again.send(entries(1, range(5)))
    again.send(entries(9, range(8, 10)))
    assert again.take_acks() == {0: 10}
    assert service.shared.entries == 10


def paired(
    service: Service, came: Sequence[int], peer_came: Sequence[int], *, known: int = 0
) -> float:
    """Two ranks join collectives of a new group at these node times; those of the first rank are
    sent again after `known` rows. Returns the skew of all in seconds."""
    stream = service.stream()
    stream.send(Declare(groups=(GroupDecl(2, 0, GroupInfo("8", "PAIR", (0, 3))),)))
    rows = replace(entries(1, range(len(came)), group=2), created_ns=np.array(came))
    stream.send(part(rows, 0, known))
    stream.send(rows)
    stream.send(replace(rows, rank=1, created_ns=np.array(peer_came)))
    service.now += 60 * S
    stream.session.disconnect(())
    return service.view().skew["all_reduce"].total


def test_new_rows_keep_their_times() -> None:
    """Two of five rows are known; the other three have the times that were sent with them."""
    came = [NOW - OFFSET - (50 - 10 * i) * S for i in range(5)]
    late = [at + (1 + i) * S for i, at in enumerate(came)]
    assert paired(Service(), came, late) == pytest.approx(15.0)
    assert paired(Service(), came, late, known=2) == pytest.approx(15.0)


def test_no_rank_joins_in_the_future() -> None:
    """The node's clock is an hour ahead: a rank joins now at the latest."""
    now = NOW - OFFSET
    assert paired(Service(), [now], [now + 3600 * S]) == 0.0


def test_rows_of_the_agent_before_may_come_late(service: Service) -> None:
    """An agent is replaced, and the new one reports all rows before the last ones of the old one
    arrive: these are duplicates, no fault of the old stream."""
    old, new = service.stream("a"), service.stream("b")
    new.send(entries(1, range(6)))
    old.send(entries(1, range(3)))
    old.send(entries(4, range(3, 8)))
    assert old.take_acks() == {0: 8}
    assert (service.shared.entries, service.shared.duplicates) == (8, 6)


def test_unnumbered_rows_are_a_resync(stream: Stream) -> None:
    """In-flight entries sent again have no revision: applied once, never acknowledged."""
    stream.send(entries(1, range(5)))
    stream.take_acks()
    stream.send(entries(0, range(4, 6)))
    stream.service.shared.flush()
    assert stream.service.shared.entries == 6
    assert stream.take_acks() == {}


def test_a_restarted_rank_begins_again(service: Service) -> None:
    """Another process of the same rank, in the same attempt, counts from 0 and is accepted."""
    service.stream(pid=10).send(entries(1, range(5)))
    restarted = service.stream(pid=20)
    restarted.send(entries(1, range(3)))
    service.shared.flush()
    assert service.shared.entries == 8


def test_backwards_is_refused_and_counted(stream: Stream) -> None:
    """Fresh rows whose seq does not rise are refused; those above what is known count."""
    stream.send(entries(1, range(5, 8)))
    stream.send(entries(4, range(4, 9)))
    ((label, count, _),) = refused(stream)
    assert (label, count) == ("entries", 4)
    assert stream.service.shared.entries == 4
    assert stream.take_acks() == {0: 8}


def test_a_rank_outside_the_group_is_refused(stream: Stream) -> None:
    """Rank 3 reports a collective of a group of ranks 0 and 1, and how far it has come there: both
    are refused, and the stream goes on."""
    stream.send(entries(1, range(2), rank=1, group=1))
    why = "rank 3 of job: entries.group: row 0: the rank is not in the group"
    assert refused(stream) == [("entries", 2, why)]
    now = stream.node_now()
    marks = watermarks([1], enqueued=5, completed=4, head=now, seen=[0, 1], as_of=now, sent=now)
    outside = replace(marks.columns, group=np.array([1], np.uint32))
    stream.send(replace(marks, columns=outside))
    assert [one[:2] for one in stream.session.take_refused()] == [("entries", 1)]
    stream.send(entries(3, range(2), rank=1))
    assert stream.take_acks() == {1: 4}


def test_a_job_without_room_waits_until_there_is_some() -> None:
    """One job more than the policy allows: its rank is refused until it has ended or there is room,
    its stream goes on, and the agent is asked to send again what was dropped."""
    service = Service(Policy(max_attempts=1))
    stream = service.stream()
    other, info = AttemptKey("other", 0), RankInfo(0, 1, "n", "boot", 77)
    group = GroupDecl(2, 1, GroupInfo("0", "default_pg", (0,)))
    attempt = AttemptDecl(1, other, 1)
    stream.send(Declare(attempts=(attempt,), ranks=(RankDecl(2, 1, info),), groups=(group,)))
    declared = stream.session.declared
    why = "attempts: 1 run already: raise policy.max_attempts or policy.max_objects"
    assert list(declared.refused()) == [Refusal("other", 1, why)]
    stream.send(entries(1, range(3)))
    stream.send(entry_columns(range(3), rank=2, revision=1, group=2, created=NOW - OFFSET))
    assert stream.take_acks() == {0: 3, 2: 3}
    assert not declared.settle(AlignedNs(service.now))
    stream.send(Statuses(tuple(RankStatus(i, RankState.EXITED, stream.ago(0)) for i in (0, 1))))
    assert list(declared.refused()) == [Refusal("other", 1, why)]
    for _ in range(8):
        service.now += S
        service.engine.advance(AlignedNs(service.now))
    assert declared.settle(AlignedNs(service.now))
    assert declared.must_resync
    assert list(declared.refused()) == []
    (view,) = service.engine.status_view(AlignedNs(service.now)).attempts
    assert [(view.key, rank.info.pid) for rank in view.ranks] == [(other, 77)]


def test_a_refused_rank_that_has_ended_is_not_missed() -> None:
    """There is no room for its job, and it exits: nothing is blind any more."""
    service = Service(Policy(max_attempts=1))
    stream = service.stream()
    info = RankInfo(0, 1, "n", "boot", 77)
    attempt = AttemptDecl(1, AttemptKey("other", 0), 1)
    stream.send(Declare(attempts=(attempt,), ranks=(RankDecl(2, 1, info),)))
    stream.send(Statuses((RankStatus(2, RankState.EXITED, stream.ago(0)),)))
    assert list(stream.session.declared.refused()) == []


def test_ranks_beyond_the_limit_are_refused_alone() -> None:
    """The policy allows two ranks; the node has the ranks 0 and 3: what is sent about 3 is
    dropped, and 0 is watched."""
    service = Service(Policy(max_ranks=2))
    stream = service.stream()
    why = "ranks.rank: 3: ranks 0..1 are watched: raise policy.max_ranks"
    assert list(stream.session.declared.refused()) == [Refusal("job", 1, why)]
    stream.watermarks(7, 6, stream.ago(1))
    stream.watermarks(9, 8, stream.ago(1), index=1)
    assert [rank.info.rank for rank in service.view().ranks] == [0]
    assert service.rank(0).waiting_in == "collective #7 on default_pg"


def test_ranks_without_room_enter_when_there_is_some() -> None:
    """Of a job of 60 ranks some do not fit; another job ends and is forgotten: all of them are
    watched, and none is refused any more."""
    service = Service(Policy(max_objects=1_400, attempt_retention_s=5))
    engine, now = service.engine, AlignedNs(service.now)
    other = engine.attempt(AttemptKey("other", 0), 1, now)
    engine.rank(other, RankInfo(0, 1, "n", "b", 5), now)
    other.observe_status(RankStatus(0, RankState.EXITED, NodeNs(1)), now)
    session = service.session()
    stream = Stream.__new__(Stream)
    stream.service, stream.session = service, session
    stream.send(Hello(PROTOCOL, "0", "n", "boot", "s", NodeNs(NOW), stream.node_now()))
    infos = [RankInfo(rank, 60, "n", "boot", 10 + rank) for rank in range(60)]
    ranks = tuple(RankDecl(i, 0, info) for i, info in enumerate(infos))
    stream.send(Declare(attempts=(AttemptDecl(0, KEY, 60),), ranks=ranks))
    (refusal,) = session.declared.refused()
    assert 10 < refusal.ranks < 50
    for _ in range(10):
        service.now += S
        engine.advance(AlignedNs(service.now))
        session.settle(AlignedNs(service.now))
    assert list(session.declared.refused()) == []
    assert session.declared.must_resync
    assert len(service.view().ranks) == 60


def test_a_job_that_does_not_fit_keeps_out_no_other() -> None:
    """A large job waits for room before a small one: the small one enters when there is some."""
    service = Service(Policy(max_objects=3_000))
    engine, now = service.engine, AlignedNs(service.now)
    for name in "abc":
        engine.attempt(AttemptKey(name, 0), 1, now)
    engine.room.take("a", 700, "groups")
    first, second = service.session(), service.session()
    for number, (session, job) in enumerate(((first, "a"), (second, "d"))):
        stream = Stream.__new__(Stream)
        stream.service, stream.session = service, session
        stream.send(Hello(PROTOCOL, "0", "n", "boot", f"s{number}", NodeNs(NOW), stream.node_now()))
        engine.room.short.add("e")
        info = RankInfo(0, 1, "n", "boot", 10)
        attempt = AttemptDecl(0, AttemptKey(job, 1), 1)
        stream.send(Declare(attempts=(attempt,), ranks=(RankDecl(0, 0, info),)))
    assert [one.job for one in first.declared.refused()] == ["a"]
    assert list(second.declared.refused()) == []


def test_watermarks_are_of_the_ranks_they_name(service: Service, stream: Stream) -> None:
    """One message is about rank 0, the next one, of the same size, about rank 3."""
    for index, seq in ((0, 7), (1, 5)):
        stream.watermarks(seq, seq - 1, stream.node_now(), index)
    assert service.rank(0).waiting_in == "collective #7 on default_pg"
    assert service.rank(3).waiting_in == "collective #5 on default_pg"


def test_no_wait_has_no_start(service: Service) -> None:
    """The absent time is sent as 0, and is not aligned."""
    service.stream().watermarks(7, 7, NodeNs(0))
    service.shared.flush()
    attempt = service.engine.attempt(KEY, 4, AlignedNs(service.now))
    assert not attempt.snapshot(AlignedNs(service.now)).pairs.head_since.any()


def test_an_agent_cannot_know_the_future(service: Service, stream: Stream) -> None:
    """What a report says of the time after it counts as known when it was sent, and no later."""
    now = stream.node_now()
    stream.send(watermarks([], seen=[0], as_of=now + 3600 * S, sent=now))
    assert service.rank(0).as_of == service.now
    service.now += 5 * S
    assert service.rank(0).as_of == service.now - 5 * S


def test_no_rank_waits_since_the_future(service: Service, stream: Stream) -> None:
    """The node's clock is an hour ahead of what is known of it: the wait has no length yet. Then
    the clock becomes known."""
    stream.watermarks(7, 6, stream.ago(-3600))
    assert service.rank(0).waiting_s == 0
    service.now += 2 * S
    stream.session.align(bounded(OFFSET - 3600 * S))
    assert service.rank(0).waiting_s == pytest.approx(2.0, abs=0.01)


def test_a_new_alignment_applies_to_later_messages(service: Service, stream: Stream) -> None:
    """The node's clock is 99 s behind, not 100: later times are aligned with that."""
    service.now += 10 * S
    stream.watermarks(7, 6, stream.ago(3))
    assert service.rank(0).waiting_s == pytest.approx(3.0, abs=0.01)
    stream.session.align(guess(NodeNs(NOW - 99 * S), AlignedNs(NOW)))
    stream.watermarks(7, 6, stream.ago(3))
    assert service.rank(0).waiting_s == pytest.approx(4.0, abs=0.01)


def bounded(offset: int) -> Alignment:
    """The node's clock is `offset` behind."""
    return guess(NOW - offset, AlignedNs(NOW))._replace(
        reason="", half_ns=1000, now_ns=AlignedNs(NOW + 10 * S)
    )


def test_waits_are_aligned_again(service: Service, stream: Stream) -> None:
    """A rank waits for 3 s in a collective and for 2 s in a send; both were aligned by a first
    guess, then the clock becomes known. Their order is that of the node."""
    service.now += 10 * S
    stream.watermarks(7, 6, stream.ago(3))
    stream.channel(stream.ago(2))
    assert service.rank(0).waiting_s == pytest.approx(3.0, abs=0.01)
    stream.session.align(bounded(OFFSET - 5 * S))
    assert service.rank(0).waiting_s == pytest.approx(8.0, abs=0.01)
    snapshot = service.engine.attempt(KEY, 4, AlignedNs(NOW)).snapshot(AlignedNs(service.now))
    since = [op.since for op in Waits(snapshot).ops(0)]
    assert [service.now - at for at in since] == [8 * S, 7 * S]
    stream.session.align(bounded(OFFSET + 9 * S))
    assert service.rank(0).waiting_s == 0  # no rank waits since the future


def test_sends_have_signatures(service: Service, stream: Stream) -> None:
    """A row names the signature of its ops, their call, and their place on the channel."""
    attempt = service.engine.attempt(KEY, 4, AlignedNs(NOW))
    columns = p2p_ops(0, (0, 1, True, 1, stream.ago(2)))
    numbers = np.zeros(1, np.uint32)
    posted = np.array([5])
    stream.send(replace(columns, signature=numbers, batch=numbers + 7, posted=posted))
    snapshot = attempt.snapshot(AlignedNs(service.now))
    assert [snapshot.signatures[i].op for i in snapshot.channels.signature] == ["all_reduce"]
    assert (snapshot.channels.batch.tolist(), snapshot.channels.posted.tolist()) == ([7], [5])
    assert [op.since for op in Waits(snapshot).ops(0)] == [service.now - 2 * S]


def test_a_clock_aligns_its_own_ranks_only(service: Service) -> None:
    """Another agent has taken over the ranks, with another clock; the first still has a stream."""
    first = service.stream("a")
    second = service.stream("b")
    service.now += 10 * S
    second.watermarks(7, 6, second.ago(3))
    first.session.align(bounded(OFFSET - 5 * S))
    assert service.rank(0).waiting_s == pytest.approx(3.0, abs=0.01)
    second.session.align(bounded(OFFSET - 5 * S))
    assert service.rank(0).waiting_s == pytest.approx(8.0, abs=0.01)


def test_a_row_after_its_watermark_changes_no_head(service: Service, stream: Stream) -> None:
    """The agent reports a wait in 7, then the rows up to 7; then its clock becomes known."""
    stream.send(entries(1, range(6, 7)))
    service.now += 10 * S
    stream.watermarks(7, 6, stream.ago(3))
    assert service.rank(0).waiting_s == pytest.approx(3.0, abs=0.01)
    created_ns = np.full(1, stream.ago(3))
    joined = replace(entries(2, range(7, 8)), flags=np.full(1, 1, np.uint8), created_ns=created_ns)
    stream.send(joined)
    stream.session.align(bounded(OFFSET - 5 * S))
    assert service.rank(0).waiting_s == pytest.approx(8.0, abs=0.01)


def test_an_unknown_clock_aligns_nothing_again(service: Service, stream: Stream) -> None:
    """A known clock becomes unknown: times stay as they were aligned."""
    stream.session.align(bounded(OFFSET))
    service.now += 10 * S
    stream.watermarks(7, 6, stream.ago(3))
    stream.session.align(bounded(OFFSET)._replace(reason="contradiction"))
    assert service.rank(0).waiting_s == pytest.approx(3.0, abs=0.01)


def test_the_engine_gets_the_uncertainty_of_a_clock(service: Service, stream: Stream) -> None:
    """A ping bounds the clock to a few milliseconds."""
    attempt = service.engine.attempt(KEY, 4, AlignedNs(NOW))
    assert attempt.snapshot(AlignedNs(NOW)).moment(0, AlignedNs(NOW)).uncertainty_ns is None
    stream.session.align(bounded(OFFSET)._replace(now_ns=AlignedNs(NOW)))
    known = attempt.snapshot(AlignedNs(NOW)).moment(0, AlignedNs(NOW)).uncertainty_ns
    assert known is not None
    assert 1000 <= known < 10_000_000


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent restarts for ever: sessions that open a stream now and then keep their numbers."""
    monkeypatch.setattr(revisions_module, "MAX_SESSIONS", 8)
    revisions = Revisions()
    mine = revisions.session_number(("boot", "mine"))
    others = set()
    for i in range(100):
        others.add(revisions.session_number(("boot", str(i))))
        assert revisions.session_number(("boot", "mine")) == mine
    assert len(others) == 100
    assert revisions.session_number(("boot", "0")) not in others


def test_a_late_message_shows_as_lag(service: Service, stream: Stream) -> None:
    """A message that was sent two seconds before it is applied counts as two seconds of lag."""
    sent = stream.node_now()
    service.now += 2 * S
    stream.send(watermarks([], seen=[], as_of=0, sent=sent))
    assert stream.session.lag_ns == 2 * S


def test_a_stage_reaches_the_engine_and_ends(service: Service, stream: Stream) -> None:
    """A rank is in init_process_group for some time, and then no longer: the engine knows of the
    wait in aligned time as long as it lasts, and people see it."""
    attempt, since = service.engine.known(KEY), stream.ago(9)
    assert attempt is not None
    stage = Stage("init_process_group", since, NodeRawNs(since + 8 * S))
    alive = RankStatus(1, RankState.LIVE, since, as_of_ns=since + 8 * S, stage=stage)
    stream.send(Statuses((alive,)))
    (wait,) = attempt.snapshot(AlignedNs(service.now)).unrecorded[3]
    assert (wait.source, wait.op) == (WaitSource.STAGE, "init_process_group")
    assert wait.as_of_ns - wait.since_ns == 8 * S
    assert service.rank(3).waiting_in == "init_process_group"
    assert service.rank(3).waiting_s == pytest.approx(9.0, abs=0.1)

    stream.send(Statuses((replace(alive, stage=None, as_of_ns=since + 9 * S),)))
    assert attempt.snapshot(AlignedNs(service.now)).unrecorded == {}
    assert service.rank(3).waiting_in == ""


def test_a_stage_without_op_and_line_of_a_rank_with_groups(
    service: Service, stream: Stream
) -> None:
    """Its frames show neither a wait nor a line: no evidence, for the rank may be in recv. It ends
    the stage before it."""
    attempt, since = service.engine.known(KEY), stream.ago(9)
    assert attempt is not None
    for after_s, op, where, known in [
        (1, "new_group", "", ["new_group"]),
        (2, "", "", []),
        (3, "", "train.py:8 in step", [""]),
    ]:
        at = NodeRawNs(since + after_s * S)
        stage = Stage(op, since, at, where)
        stream.send(Statuses((RankStatus(1, RankState.LIVE, since, as_of_ns=at, stage=stage),)))
        waits = attempt.snapshot(AlignedNs(service.now)).unrecorded.get(3, ())
        assert [wait.op for wait in waits] == known


def test_a_process_that_becomes_a_rank_stays_the_same_rank(
    service: Service, stream: Stream
) -> None:
    """A rank is declared before it has groups, and once more with its groups: what is known of the
    process stays, and no report on it is dropped."""
    stream.send(Statuses((RankStatus(1, RankState.LIVE, stream.node_now(), "forming"),)))
    known = stream.session.ranks[1]
    again = RankDecl(len(stream.session.ranks), 0, replace(known.info, backends=("gloo",)))
    stream.send(Declare(ranks=(again,)))
    assert service.rank(3).status.detail == "forming"
    assert service.rank(3).info.backends == ("gloo",)
    stream.send(Statuses((RankStatus(again.index, RankState.LIVE, stream.node_now()),)))
    assert service.rank(3).status.detail == ""
    assert not stream.session.declared.superseded


def test_statuses_and_channels_reach_the_engine(service: Service, stream: Stream) -> None:
    """A killed rank is shown as exited under its global rank; its channels are taken."""
    stream.send(p2p_ops(1, (0, 0, True, 1, stream.node_now())))
    status = RankStatus(1, RankState.EXITED, stream.node_now(), "killed", 0, KILLED)
    stream.send(Statuses((status,)))
    shown = service.rank(3).status
    assert (shown.state, shown.detail) == (RankState.EXITED, "killed")
    assert shown.exit == KILLED
    assert shown.rank == 3


def test_the_owners_of_ranks(service: Service) -> None:
    """The agent has reconnected before its old stream ends: its ranks are still connected. Dumps
    are requested by index: a third rank, which is declared later, has index 2."""
    owners = RankOwners()
    old, new = service.stream(), service.stream()
    owners.claim(old.session)
    owners.claim(new.session)
    assert owners.release(old.session) == []
    assert owners.of(KEY, 3) == (new.session, 1)
    new.send(Declare(ranks=(RankDecl(2, 0, RankInfo(1, 4, "n", "boot", 77)),)))
    owners.claim(new.session)
    assert owners.of(KEY, 1) == (new.session, 2)
    assert owners.of(KEY, 0) == (new.session, 0)
    assert [rank.info.rank for rank in owners.release(new.session)] == [0, 3, 1]
    assert owners.of(KEY, 3) is None


def test_processes_of_a_rank_are_bounded() -> None:
    """Thousands of processes of one rank in one attempt: few of them are remembered, and none when
    the attempt is forgotten."""
    revisions = Revisions()
    for pid in range(1000):
        revisions.of_process(KEY, RankInfo(0, 4, "n", "boot", pid), "s").applied = pid
    last = revisions.of_process(KEY, RankInfo(0, 4, "n", "boot", 998), "s")
    assert last.applied == 998
    assert revisions.of_process(KEY, RankInfo(0, 4, "n", "boot", 3), "s").applied == 0
    assert revisions.ranks(KEY) == {0}
    revisions.keep(set())
    assert revisions.ranks(KEY) == set()


def test_unread_entries_are_counted_at_a_takeover(service: Service) -> None:
    """An agent dies, and the next one loses nothing; before a third one, 8 to 10 are
    overwritten."""
    service.stream("a").send(entries(1, range(5)))
    second = service.stream("b")
    second.send(entries(1, range(3, 5)))
    assert service.view().gap_entries == 0
    second.send(entries(3, range(6, 8)))  # an agent counts its own losses
    assert service.view().gap_entries == 0
    third = service.stream("c")
    third.send(entries(1, range(11, 14)))
    assert service.view().gap_entries == 3


def test_groups_without_their_own_numbers_have_no_gaps(service: Service) -> None:
    """torchcomms numbers the ops of all groups together, so the numbers of a group have holes."""
    service.stream("a").send(entries(1, range(5)))
    second = service.stream("b")
    second.send(replace(entries(1, range(8, 10)), seq=np.array([8, 11])))
    second.send(entries(3, range(15, 16)))
    assert service.view().gap_entries == 0
