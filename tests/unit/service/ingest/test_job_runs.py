"""Two running jobs of one name: which one counts, and when the other one is taken up."""

from __future__ import annotations

from dataclasses import dataclass, field

from frd.model import AlignedNs, AttemptKey, RankInfo
from frd.service.ingest.job_runs import JobRuns

KEY = AttemptKey("train", 0)
S = 1_000_000_000
NEVER = AlignedNs(0)


@dataclass(eq=False)
class Reporter:
    """A session that records the calls."""

    stream: int = 1
    heard_at: AlignedNs = NEVER
    calls: list[str] = field(default_factory=list)

    def admit(self, key: AttemptKey, run: str, now: AlignedNs) -> None:
        self.calls.append(f"admit {run}")

    def suspend(self, key: AttemptKey, run: str) -> None:
        self.calls.append(f"suspend {run}")


def info(rank: int, pid: int, node: str = "vm") -> RankInfo:
    return RankInfo(rank, 2, node, f"boot-{node}", pid)


class Job:
    def __init__(self) -> None:
        self.runs = JobRuns()
        self.now = AlignedNs(S)

    def declare(self, run: str, rank: int, pid: int, reporter: Reporter, node: str = "vm") -> bool:
        reporter.heard_at = self.now
        return self.runs.declare(KEY, run, info(rank, pid, node), reporter, self.now)

    def passes(self, seconds: float, *heard: Reporter) -> None:
        self.now = AlignedNs(self.now + round(seconds * S))
        for reporter in heard:
            reporter.heard_at = self.now
        self.runs.settle(self.now)


def test_the_second_run_is_refused_as_a_whole_and_named() -> None:
    """Two launches on one node, their ranks found in any order: the first one is watched."""
    job, agent = Job(), Reporter()
    assert job.declare("vm:1", 0, 27, agent)
    assert not job.declare("vm:2", 0, 41, agent)
    assert not job.declare("vm:2", 1, 42, agent)
    assert job.declare("vm:1", 1, 28, agent)
    assert job.runs.refused == 2
    assert job.runs.warnings(job.now) == ()  # might be a restart
    job.passes(4, agent)
    (warning,) = job.runs.warnings(job.now)
    assert warning.job == "train"
    assert warning.text == (
        "two running jobs on vm are called train (pids 27, 41): give each its own --job; "
        "only the job of pid 27 is watched"
    )
    assert job.runs.conflicts() == {"train": 1}


def test_the_second_run_is_admitted_when_the_first_has_ended() -> None:
    """Both ranks of the first launch end: the second is admitted, and starts the attempt over."""
    job, agent = Job(), Reporter()
    for rank in (0, 1):
        assert job.declare("vm:1", rank, 27 + rank, agent)
    assert not job.runs.takes_over(KEY, "vm:1")
    for rank in (0, 1):
        assert not job.declare("vm:2", rank, 41 + rank, agent)
    job.runs.gone(KEY, "vm:1", info(0, 27))
    job.passes(4, agent)
    assert job.runs.warnings(job.now)  # rank 1 still runs
    job.runs.gone(KEY, "vm:1", info(1, 28))
    job.passes(1, agent)
    assert agent.calls == ["suspend vm:1", "admit vm:2"]
    assert job.runs.take_changed() == [agent.stream]
    assert job.runs.takes_over(KEY, "vm:2")
    assert job.runs.warnings(job.now) == ()
    assert job.runs.conflicts() == {}


def test_on_two_nodes_the_pids_are_named_with_their_nodes() -> None:
    """Each node has an agent and a job of the same name."""
    job, one, other = Job(), Reporter(1), Reporter(2)
    assert job.declare("a:29500", 0, 27, one, "a")
    assert not job.declare("b:29500", 0, 27, other, "b")
    job.passes(4, one, other)
    (warning,) = job.runs.warnings(job.now)
    assert "two running jobs are called train (pid 27 on a, pid 27 on b)" in warning.text


def test_a_run_with_a_silent_agent_is_replaced() -> None:
    """The node of the first run is cut off: the second run is watched after a while, and stays
    watched when the node is back."""
    job, one, other = Job(), Reporter(1), Reporter(2)
    job.declare("a:1", 0, 27, one, "a")
    assert not job.declare("b:1", 0, 27, other, "b")
    job.passes(5, other)
    assert other.calls == []
    job.passes(6, other)
    assert one.calls == ["suspend a:1"]
    assert other.calls == ["admit b:1"]
    assert not job.declare("a:1", 0, 27, one, "a")
    job.passes(1, one, other)
    assert other.calls == ["admit b:1"]
    assert job.runs.conflicts() == {"train": 1}


def test_an_agent_that_reconnects_keeps_its_run() -> None:
    """The first run's agent is restarted within seconds: the second run is not admitted."""
    job, one, other = Job(), Reporter(1), Reporter(2)
    job.declare("a:1", 0, 27, one, "a")
    assert not job.declare("b:1", 0, 41, other, "b")
    job.runs.closed(one)
    job.passes(3, other)
    again = Reporter(3)
    assert job.declare("a:1", 0, 27, again, "a")
    job.passes(20, again, other)
    assert other.calls == []


def test_one_run_may_report_two_addresses() -> None:
    """The master calls itself localhost: its ranks and those of the other node share no rank."""
    job, one, other = Job(), Reporter(1), Reporter(2)
    assert job.declare("a:29500", 0, 27, one, "a")
    assert job.declare("master:29500", 1, 27, other, "b")
    job.passes(4, one, other)
    assert job.runs.warnings(job.now) == ()


def test_the_earlier_run_wins_when_a_conflict_shows_late() -> None:
    """The ranks that are found first differ; then a rank of both runs is found."""
    job, one, other = Job(), Reporter(1), Reporter(2)
    assert job.declare("vm:1", 0, 27, one)
    assert job.declare("vm:2", 1, 42, other)
    assert job.declare("vm:1", 1, 28, one)
    assert other.calls == ["suspend vm:2"]
    assert not job.declare("vm:2", 0, 41, other)


def test_a_job_that_runs_again_is_no_conflict() -> None:
    """The same job many times, each launch at another port, each ended before the next."""
    job, agent = Job(), Reporter()
    for turn in range(100):
        assert job.declare(f"vm:{turn}", 0, 100 + turn, agent)
        assert job.runs.takes_over(KEY, f"vm:{turn}") == (turn > 0)
        job.runs.gone(KEY, f"vm:{turn}", info(0, 100 + turn))
        job.passes(1, agent)
    assert job.runs.refused == 0


def test_a_restarted_rank_of_the_same_run() -> None:
    """Only the new process of the rank is live; when it ends, the run has ended."""
    job, agent = Job(), Reporter()
    assert job.declare("vm:1", 0, 27, agent)
    assert job.declare("vm:1", 0, 28, agent)
    job.runs.gone(KEY, "vm:1", info(0, 28))
    assert job.declare("vm:2", 0, 41, agent)


def test_a_process_that_goes_on_in_the_next_attempt_has_not_ended() -> None:
    """A rank sets up its groups again: it leaves the first attempt, and its run continues."""
    job, agent = Job(), Reporter()
    assert job.declare("vm:1", 0, 27, agent)
    later = AttemptKey("train", 1)
    assert job.runs.declare(later, "vm:1", info(0, 27), agent, job.now)
    job.runs.gone(KEY, "vm:1", info(0, 27))
    assert not job.declare("vm:2", 0, 41, agent)
