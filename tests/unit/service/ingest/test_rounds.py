"""How often agents are asked to report, and messages that come together."""

from __future__ import annotations

from dataclasses import replace

from frd.model import AlignedNs, AttemptKey, GroupInfo, NodeNs, NodeRawNs, RankInfo
from frd.service.ingest.streams import HURRIED_ROUND_MS, ROUND_MS, Stream
from frd.wire.codec import encode_agent
from frd.wire.messages import (
    PROTOCOL,
    AttemptDecl,
    Declare,
    GroupDecl,
    Hello,
    Pace,
    RankDecl,
    SignatureDecl,
)
from tests.world.messages import ALL_REDUCE, entry_columns, watermarks
from tests.world.sessions import quiet_streams

S = 1_000_000_000
BEGIN = 1_000 * S


class Job:
    """Two nodes of one rank each, and a third one whose agent knows no pace."""

    def __init__(self) -> None:
        self.now = BEGIN
        self.streams = quiet_streams()
        self.streams.now = lambda: AlignedNs(self.now)
        self.agents = [self._agent(rank, paced=rank < 2) for rank in range(3)]
        self.paces()

    def _agent(self, rank: int, *, paced: bool) -> Stream:
        stream, name = self.streams.open(), str(rank)
        hello = Hello(PROTOCOL, "0", name, name, name, NodeNs(BEGIN), NodeRawNs(BEGIN))
        declare = Declare(
            attempts=(AttemptDecl(0, AttemptKey("job", 0), 3),),
            ranks=(RankDecl(0, 0, RankInfo(rank, 3, name, name, 10 + rank)),),
            groups=(GroupDecl(0, 0, GroupInfo("0", "default_pg", (0, 1, 2))),),
            signatures=(SignatureDecl(0, ALL_REDUCE),),
        )
        for event in (replace(hello, paced=paced), declare):
            self.streams.take(stream, encode_agent(event))
        return stream

    def waits(self, rank: int, seconds: float) -> None:
        """By its report of now, the rank has been in its first op for so long."""
        head = self.now - round(seconds * S)
        marks = watermarks([0], enqueued=0, head=head, seen=[0], as_of=self.now, sent=self.now)
        self.streams.take(self.agents[rank], encode_agent(marks))

    def goes_on(self, rank: int) -> None:
        marks = watermarks([0], enqueued=0, completed=0, seen=[0], as_of=self.now, sent=self.now)
        self.streams.take(self.agents[rank], encode_agent(marks))

    def reports_rows(self, rank: int, seq: int = 0) -> None:
        rows = entry_columns([seq], revision=seq + 1, created=self.now)
        self.streams.take(self.agents[rank], encode_agent(rows))

    def paces(self, after_s: float = 0.25) -> list[list[int]]:
        """What each agent is asked at the next evaluation."""
        self.now += round(after_s * S)
        self.streams.settle(AlignedNs(self.now))
        events = [stream.take_outgoing() for stream in self.agents]
        return [[one.round_ms for one in some if isinstance(one, Pace)] for some in events]


def test_a_healthy_job_reports_rarely() -> None:
    """An agent that obeys paces gets one as soon as its job is known, and none again while nothing
    changes, also if its ranks are in short ops."""
    job = Job()
    assert [stream.round_ms for stream in job.agents] == [ROUND_MS, ROUND_MS, 0]
    job.waits(0, 0.9)
    assert job.paces() == [[], [], []]


def test_one_rank_that_waits_hurries_all_nodes_of_its_job() -> None:
    """The node on which the hang is has nothing that waits. Half a minute after the last wait
    reports are rare again."""
    job = Job()
    job.waits(0, 1.1)
    assert job.paces() == [[HURRIED_ROUND_MS], [HURRIED_ROUND_MS], []]
    job.goes_on(0)
    assert job.paces() == [[], [], []]
    assert job.paces(after_s=29) == [[], [], []]
    assert job.paces(after_s=2) == [[ROUND_MS], [ROUND_MS], []]


def test_what_ranks_report_is_urgent_when_one_waits() -> None:
    """Rows are to be acknowledged soon; only what a rank reports that waits is evaluated soon."""
    job, called = Job(), list[str]()
    job.streams.on_rows = lambda: called.append("rows")
    job.streams.on_news = lambda: called.append("news")
    job.reports_rows(0)
    job.goes_on(0)
    job.waits(0, 0.9)
    assert called == ["rows"]
    job.waits(0, 1.1)
    assert called == ["rows", "news"]
    job.reports_rows(0, 1)
    assert called == ["rows", "news", "rows", "news"]


def test_a_node_that_comes_while_a_rank_waits_hurries_as_well() -> None:
    """A stream that opens during a wait gets the pace of its job."""
    job = Job()
    job.waits(0, 1.1)
    job.paces()
    job.agents.append(job._agent(1, paced=True))
    assert job.paces()[-1] == [HURRIED_ROUND_MS]
