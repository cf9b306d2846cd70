"""The agent's half of the protocol against the service's real decoder: no stream, no time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from frd.model import (
    AttemptKey,
    EntryColumns,
    Flags,
    GroupInfo,
    MemoryColumns,
    MemoryEvent,
    MemoryEventKind,
    NodeNs,
    NodeRawNs,
    RankInfo,
    RankState,
    RankStatus,
    SeriesInfo,
    SeriesKind,
    Signature,
)
from frd.wire.codec import Decoder, encode_agent
from frd.wire.messages import (
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    AgentEvent,
    Declare,
    Hello,
    Leaving,
    MemoryEvents,
    Pace,
    Statuses,
    Watermarks,
)
from frd_agent.memory.samples import Samples
from frd_agent.memory.target import Reading
from frd_agent.recorder.group_progress import GroupWatermarks
from frd_agent.recorder.rows import columns
from frd_agent.uplink import dictionary
from frd_agent.uplink.current_state import CurrentState
from frd_agent.uplink.dictionary import Dictionary, StreamIndexes
from frd_agent.uplink.dispatch import Dispatch
from frd_agent.uplink.outbox import Outbox
from tests.world.messages import entry_columns, p2p_ops

NOW = NodeRawNs(1_700_000_000_000_000_000)


def after(seconds: float) -> NodeRawNs:
    return NodeRawNs(NOW + round(seconds * 1e9))


class Agent:
    """Two ranks of one attempt in one group."""

    def __init__(self) -> None:
        self.dictionary = Dictionary()
        self.attempt = self.dictionary.attempt(AttemptKey("job", 0), 2)
        self.ranks = [
            self.dictionary.rank(self.attempt, RankInfo(rank, 2, "node", "boot", 100 + rank))
            for rank in (0, 1)
        ]
        self.group = self.dictionary.group(self.attempt, GroupInfo("0", "default_pg", (0, 1)))
        self.dictionary.signature(Signature("gloo", "all_reduce"))
        self.outbox = Outbox(100_000)
        self.current = CurrentState(self.dictionary.attempt_of)
        self.samples = Samples(1 << 20, self.dictionary.series_number)
        self.host = SeriesInfo(self.ranks[0], SeriesKind.HOST_USED)
        self.open: list[EntryColumns] = []
        self.dispatch = Dispatch(
            self.dictionary, self.outbox, self.current, self.samples, lambda: self.open
        )

    def rows(self, rank: int, *seqs: int, flags: int = Flags.JOINED) -> EntryColumns:
        return entry_columns(
            seqs,
            rank=self.ranks[rank],
            group=self.group,
            signature=self.dictionary.signature(Signature("gloo", "all_reduce")),
            flags=flags,
            created=NOW,
        )


HELLO = Hello(PROTOCOL, "0", "node", "boot", "session", NodeNs(1), NodeRawNs(1))


def sent(event: AgentEvent) -> AgentEvent:
    return replace(event, sent_raw_ns=NOW) if isinstance(event, Watermarks) else event


class Service:
    """What a service reads, as its own codec reads it. Watermarks get their times when they are
    sent, after dispatch."""

    def __init__(self) -> None:
        self.decoder = Decoder()
        self.decoder.decode(encode_agent(HELLO))
        self.heard: list[AgentEvent] = []

    def listen(
        self, dispatch: Dispatch, at_s: float = 0.0, *, hurry: bool = False
    ) -> list[AgentEvent]:
        """All that the agent has to say at this time, declarations aside."""
        heard: list[AgentEvent] = []
        while events := dispatch.next(after(at_s), hurry=hurry):
            heard += [self.decoder.decode(encode_agent(sent(event))) for event in events]
        self.heard += heard
        return [event for event in heard if not isinstance(event, Declare)]


@pytest.fixture
def agent() -> Agent:
    """On a stream to a service that knows nothing."""
    agent = Agent()
    agent.dispatch.open(knows_nothing=True)
    return agent


@pytest.fixture
def service() -> Service:
    return Service()


def kinds(events: Iterable[AgentEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


def test_rows_come_before_watermarks_and_statuses_last(agent: Agent, service: Service) -> None:
    """All is new on a first stream: the order is what watermarks and statuses rely on."""
    agent.current.set_status(RankStatus(agent.ranks[0], RankState.LIVE, NOW))
    agent.current.set_watermarks(agent.ranks[0], agent.group, GroupWatermarks(2, -1, 1, NOW))
    agent.current.set_as_of(agent.ranks[0], NOW)
    agent.outbox.record(agent.rows(0, 1, 2))
    assert kinds(service.listen(agent.dispatch)) == ["EntryColumns", "Watermarks", "Statuses"]
    assert service.listen(agent.dispatch) == []


def test_that_the_agent_leaves_comes_first_on_every_stream(agent: Agent, service: Service) -> None:
    """It was asked to stop while much waits: a kill may follow. The next stream says it again."""
    agent.outbox.record(agent.rows(0, 1, 2))
    agent.current.set_leaving(Leaving(2))
    first, *_ = service.listen(agent.dispatch)
    assert first == Statuses((), leaving=Leaving(2))
    assert service.listen(agent.dispatch) == []
    agent.dispatch.open(knows_nothing=False)
    assert Service().listen(agent.dispatch)[0] == Statuses((), leaving=Leaving(2))


def test_watermarks_wait_for_their_round_but_not_behind_a_status(
    agent: Agent, service: Service
) -> None:
    """Nothing urgent: watermarks keep to their pace. A rank dies: all is sent immediately."""
    service.listen(agent.dispatch)
    agent.current.set_as_of(agent.ranks[0], NOW)
    assert service.listen(agent.dispatch, 0.8) == []
    agent.current.set_status(RankStatus(agent.ranks[0], RankState.EXITED, NOW))
    assert kinds(service.listen(agent.dispatch, 0.8)) == ["Watermarks", "Statuses"]


def test_a_reconnect_resends_what_is_not_acknowledged_and_no_replay(agent: Agent) -> None:
    """The same service process, another stream: unacknowledged rows and all that is true now."""
    first, second = Service(), Service()
    agent.outbox.record(agent.rows(1, 1, 2, 3))
    first.listen(agent.dispatch)
    agent.dispatch.ack({0: 2})
    agent.open = [agent.rows(1, 2, 3)]
    agent.dispatch.open(knows_nothing=False)
    (rows,) = second.listen(agent.dispatch)
    assert isinstance(rows, EntryColumns)
    assert (rows.first_revision, rows.seq.tolist()) == (3, [3])


@pytest.mark.parametrize("streams", [1, 2], ids=["at first", "after a stream that broke"])
def test_a_restarted_service_hears_of_open_collectives_first(agent: Agent, streams: int) -> None:
    """Seq 4 is open and was acknowledged, 5 and 6 wait: 4 is replayed, then 5 and 6 are sent. The
    replay has no revisions, because the service must not acknowledge it. A stream that breaks
    immediately changes nothing."""
    first, second = Service(), Service()
    agent.outbox.record(agent.rows(0, 4))
    first.listen(agent.dispatch)
    agent.dispatch.ack({0: 1})
    agent.outbox.record(agent.rows(0, 5, 6))
    agent.open = [replace(agent.rows(0, 4, 5, 6), first_revision=1)]
    for _ in range(streams):
        agent.dispatch.open(knows_nothing=True)
    replay, rows = second.listen(agent.dispatch)
    assert isinstance(replay, EntryColumns)
    assert isinstance(rows, EntryColumns)
    assert (replay.first_revision, replay.seq.tolist()) == (0, [4])
    assert (rows.first_revision, rows.seq.tolist()) == (2, [5, 6])


def test_a_resync_repeats_what_is_true_on_the_same_stream(agent: Agent, service: Service) -> None:
    """Nothing is declared twice: the stream's dictionary is still there."""
    agent.current.set_status(RankStatus(agent.ranks[0], RankState.LIVE, NOW))
    agent.current.set_watermarks(agent.ranks[0], agent.group, GroupWatermarks(7, -1, 7))
    service.listen(agent.dispatch)
    agent.dispatch.resync()
    assert kinds(service.listen(agent.dispatch)) == ["Watermarks", "Statuses"]


def test_only_what_changed_is_said_again(agent: Agent, service: Service) -> None:
    """Marks and statuses that stay the same are no news; channels replace one another."""
    status = RankStatus(agent.ranks[0], RankState.LIVE, NOW)
    channels = p2p_ops(agent.ranks[0], (agent.group, 1, True, 1, NOW))
    for _ in range(2):
        agent.current.set_status(status)
        agent.current.set_watermarks(agent.ranks[0], agent.group, GroupWatermarks(7, -1, 7))
        agent.current.set_as_of(agent.ranks[0], NOW)
        agent.current.set_channels(channels)
    assert kinds(service.listen(agent.dispatch)) == ["ChannelColumns", "Watermarks", "Statuses"]
    agent.current.set_as_of(agent.ranks[0], NodeRawNs(NOW - 1))
    assert service.listen(agent.dispatch) == []


def test_a_rank_is_declared_when_an_event_refers_to_it(agent: Agent, service: Service) -> None:
    """A rank of long ago is forgotten: a new stream never hears of it."""
    for rank in agent.ranks:
        agent.current.set_status(RankStatus(rank, RankState.LIVE, NOW))
    agent.current.forget(agent.ranks[0])
    (statuses,) = service.listen(agent.dispatch)
    assert isinstance(statuses, Statuses)
    declared = [r.info.rank for e in service.heard if isinstance(e, Declare) for r in e.ranks]
    assert declared == [1]
    assert agent.dispatch.rank_of(0) == agent.ranks[1]


def test_the_stream_after_a_full_one_sends_what_waits(
    agent: Agent, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that wait for an acknowledgement keep their signatures when old ones go, and no number
    of a signature is used again."""
    monkeypatch.setattr(dictionary, "MAX_SIGNATURES", 2)
    agent.dictionary.signature(Signature("gloo", "of long ago"))
    agent.outbox.record(agent.rows(0, 1))
    other = agent.dictionary.signature(Signature("gloo", "broadcast"))
    agent.outbox.record(replace(agent.rows(0, 2), signature=np.array([other], np.uint32)))
    service.listen(agent.dispatch)
    assert agent.dispatch.must_reopen
    agent.dispatch.open(knows_nothing=False)
    ops = [known.signature.op for known in agent.dictionary.signatures.values()]
    assert ops == ["all_reduce", "broadcast"]
    assert agent.dictionary.signature(Signature("gloo", "of long ago")) > other
    assert kinds(Service().listen(agent.dispatch)) == ["EntryColumns", "EntryColumns"]


def test_sends_in_flight_keep_their_signatures(
    agent: Agent, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream is full, and the next one repeats a send in flight."""
    monkeypatch.setattr(dictionary, "MAX_SIGNATURES", 1)
    number = agent.dictionary.signature(Signature("nccl", "send"))
    columns, zero = p2p_ops(agent.ranks[0], (agent.group, 1, True, 1, NOW)), np.zeros(1, np.uint32)
    agent.current.set_channels(
        replace(columns, signature=zero + number, batch=zero, posted=np.zeros(1, np.int64))
    )
    service.listen(agent.dispatch)
    assert agent.dispatch.must_reopen
    agent.dispatch.open(knows_nothing=False)
    assert kinds(Service().listen(agent.dispatch)) == ["ChannelColumns"]


def test_declarations_of_any_size_fit_their_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops with a thousand tensors of 64 dimensions, in groups whose ranks have no pattern."""
    monkeypatch.setattr(dictionary, "MAX_SIGNATURE_BYTES", 1 << 23)
    known = Dictionary()
    attempt = known.attempt(AttemptKey("big", 0), 16_384)
    rank = known.rank(attempt, RankInfo(0, 16_384, "node", "boot", 1))
    world = np.arange(16_384)
    groups = [
        known.group(attempt, GroupInfo(f"g{i}", "", tuple(world[(world**2 + i) % 7 < 3].tolist())))
        for i in range(30)
    ]
    shapes = ((1 << 60,) * 64,) * 1024
    signatures = [
        known.signature(Signature("nccl", f"op{i}", shapes, shapes, ("Half",), ("Half",)))
        for i in range(15)
    ]
    rows = [[group, i, signatures[i % 15], 1, 1, 0, 0] for i, group in enumerate(groups)]
    indexes = StreamIndexes(known)
    sizes = [len(encode_agent(event)) for event in indexes.translate(columns(rank, 1, rows))]
    assert sum(sizes) > MAX_MESSAGE_BYTES > max(sizes)
    assert indexes.full, "the service bounds what one stream may declare"


def test_every_rank_of_new_series_is_declared() -> None:
    """Batches of four series, in every combination, each on a new stream."""
    known = Dictionary()
    attempt = known.attempt(AttemptKey("job", 0), 32)
    for rank in range(18):
        number = known.rank(attempt, RankInfo(rank, 32, "node", "boot", 100 + rank))
        known.series_number(SeriesInfo(number, SeriesKind.HOST_USED))
    column = np.zeros(4, np.int64)
    for numbers in combinations(range(1, 18), 4):
        memory = MemoryColumns(
            series=np.array(numbers, np.uint32),
            capacity=column,
            begin_ns=column[:1],
            end_ns=column[:1],
            values=column.reshape(4, 1),
        )
        declares = StreamIndexes(known).translate(memory)[:-1]
        ranks = [r.info.rank for one in declares if isinstance(one, Declare) for r in one.ranks]
        assert ranks == [*numbers]


def host_series(agent: Agent, value: int, at_ns: int, limit: int = 64 << 30) -> None:
    agent.samples.add(at_ns, at_ns + 1, [Reading(agent.attempt, agent.host, limit, value)])


def test_memory_is_sent_last_and_in_the_streams_indexes(agent: Agent, service: Service) -> None:
    """The second rank is the stream's first, and its series is declared with it."""
    series = SeriesInfo(agent.ranks[1], SeriesKind.DEVICE_USED, "GPU-1")
    agent.samples.add(NOW, NOW + 1, [Reading(agent.attempt, series, 100, 7)])
    agent.current.set_as_of(agent.ranks[1], NOW)
    assert kinds(service.listen(agent.dispatch)) == ["Watermarks", "MemoryColumns"]
    (declared,) = [
        series for event in service.heard if isinstance(event, Declare) for series in event.series
    ]
    assert (declared.index, declared.info) == (0, SeriesInfo(0, SeriesKind.DEVICE_USED, "GPU-1"))
    (memory,) = [event for event in service.heard if isinstance(event, MemoryColumns)]
    assert (memory.series.tolist(), memory.values.tolist()) == ([0], [[7]])


def test_memory_waits_for_its_round_unless_it_jumped(agent: Agent, service: Service) -> None:
    """Ten samples a second are one message; a gigabyte more is sent immediately."""
    service.listen(agent.dispatch)
    host_series(agent, 1 << 30, NOW)
    assert service.listen(agent.dispatch, 0.8) == []
    host_series(agent, 3 << 30, NOW + 100)
    (batch,) = service.listen(agent.dispatch, 0.8)
    assert isinstance(batch, MemoryColumns)
    assert batch.values.tolist() == [[1 << 30, 3 << 30]]


def test_an_error_of_memory_waits_for_nothing(agent: Agent, service: Service) -> None:
    """Out of memory: said before all that can wait, after the rows that came before it."""
    host_series(agent, 1 << 30, NOW)
    agent.current.set_as_of(agent.ranks[0], NOW)
    agent.outbox.record(agent.rows(0, 1))
    agent.samples.event(MemoryEvent(agent.ranks[0], MemoryEventKind.OOM, NOW, "GPU-1", 9))
    heard = service.listen(agent.dispatch)
    assert kinds(heard) == ["EntryColumns", "MemoryEvents", "Watermarks", "MemoryColumns"]
    assert heard[1] == MemoryEvents((MemoryEvent(0, MemoryEventKind.OOM, NOW, "GPU-1", 9),))


# -- the pace of the service ---------------------------------------------------------------------


@pytest.fixture
def paced(agent: Agent, service: Service) -> Agent:
    """On a stream whose service wants a round every two seconds; the last one was at 0."""
    agent.dispatch.adopt(Pace(2_000), NOW)
    service.listen(agent.dispatch)
    return agent


def move(agent: Agent, at_s: float, head_s: float | None = None) -> None:
    """The first rank is seen at this time, in an op since `head_s` if it is in one."""
    head_ns = 0 if head_s is None else after(head_s)
    agent.current.set_watermarks(agent.ranks[0], agent.group, GroupWatermarks(7, -1, 6, head_ns))
    agent.current.set_as_of(agent.ranks[0], after(at_s))


def reports(agent: Agent, service: Service, times: Sequence[float]) -> list[float]:
    """When watermarks of a rank that is seen all the time are sent."""
    sent = []
    for at_s in times:
        agent.current.set_as_of(agent.ranks[0], after(at_s))
        if service.listen(agent.dispatch, at_s):
            sent.append(at_s)
    return sent


def tenths(first: int, last: int) -> list[float]:
    return [number / 10 for number in range(first, last)]


def test_a_healthy_job_is_reported_at_the_pace(paced: Agent, service: Service) -> None:
    """Watermarks and samples of two seconds go together. A pace of nothing at all is bounded, and
    the next stream may be to a service without one."""
    host_series(paced, 1 << 30, NOW)
    assert reports(paced, service, tenths(1, 65)) == [2.0, 4.0, 6.0]
    sent = [kind for kind in kinds(service.heard) if kind != "Declare"]
    assert sent == ["Watermarks", "MemoryColumns", "Watermarks", "Watermarks"]
    paced.dispatch.adopt(Pace(0), after(6.4))
    assert reports(paced, service, tenths(65, 90)) == [6.9, 7.8, 8.7]
    paced.dispatch.open(knows_nothing=False)
    assert not paced.dispatch.is_paced
    assert reports(paced, Service(), tenths(90, 110)) == [9.0, 9.9, 10.8]


def test_rows_wait_for_no_round(paced: Agent, service: Service) -> None:
    """A dump shows new ops, of which one may be a mismatch: its rows go immediately, and what it
    shows of the ranks with them. Samples go with rows if their round is half over."""
    sent = []
    for number, at_s in enumerate((0.5, 1.1, 1.2, 2.0)):
        host_series(paced, 1 << 30, after(at_s))
        paced.outbox.record(paced.rows(0, number))
        move(paced, at_s)
        assert paced.dispatch.is_due(after(at_s))
        sent.append(kinds(service.listen(paced.dispatch, at_s)))
        assert not paced.dispatch.is_due(after(at_s))
    rows = ["EntryColumns", "Watermarks"]
    assert sent == [rows, [*rows, "MemoryColumns"], rows, rows]
    assert paced.dispatch.round_in_ns(after(2.0)) == 1_100_000_000


def test_a_rank_that_is_known_to_wait_is_reported_immediately(
    paced: Agent, service: Service
) -> None:
    """An op since 0.2 s: the report is due when the rank is seen in it at 1.3 s, not before. From
    then on rounds are as without a pace: short at first, then every 0.9 s; and once the op has
    ended they keep to the pace."""
    move(paced, 1.0, head_s=0.2)
    assert not paced.dispatch.is_due(after(1.9))
    move(paced, 1.3, head_s=0.2)
    assert reports(paced, service, tenths(13, 30)) == [1.3, 1.7, 2.1, 2.5, 2.9]
    assert reports(paced, service, tenths(601, 630)) == [60.1, 61.0, 61.9, 62.8]
    move(paced, 63.0)
    assert reports(paced, service, tenths(630, 690)) == [64.8, 66.8, 68.8]


def test_a_rank_that_waits_for_a_message_is_reported_immediately(
    paced: Agent, service: Service
) -> None:
    """No collective is in flight; the receive is, for longer than a second when it is seen."""
    ops = p2p_ops(paced.ranks[0], (paced.group, 1, False, 1, NOW))
    paced.current.set_channels(replace(ops, as_of_ns=after(0.9)))
    service.listen(paced.dispatch, 0.9)
    assert not paced.dispatch.is_due(after(1.1))
    paced.current.set_channels(replace(ops, as_of_ns=after(1.1)))
    assert reports(paced, service, tenths(11, 40)) == [1.1, 2.0, 2.9, 3.8]


def test_another_pace_keeps_the_phase_of_the_agent(paced: Agent, service: Service) -> None:
    """All agents of a job get a shorter pace at the same moment, 1.5 s after this one's last
    round: it reports when its round would have been by that pace, and others at other times."""
    paced.dispatch.adopt(Pace(1_000), after(1.5))
    assert reports(paced, service, tenths(15, 45)) == [2.0, 3.0, 4.0]
    paced.dispatch.adopt(Pace(2_000), after(4.5))
    assert reports(paced, service, tenths(45, 65)) == [6.0]
