"""Findings about memory: what people read, and how findings begin and end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from frd.engine.engine import Engine
from frd.engine.memory.incident import MemoryIncident
from frd.engine.memory.rise import MemoryRise
from frd.engine.memory.text import duration, effect, evidence, headline, size
from frd.engine.policy import Policy
from frd.engine.views import Attribution
from frd.model import (
    Address,
    AttemptKey,
    Change,
    Confidence,
    FindingEvent,
    FindingState,
    Flags,
    GroupInfo,
    Kind,
    MemoryEvent,
    MemoryEventKind,
    NodeNs,
    Reason,
    SeriesInfo,
    SeriesKind,
    Severity,
)
from tests.world import memory as memory_world
from tests.world import observe
from tests.world.memory import GIB, Curve, S, at, level, plus, ramp, stairs, step
from tests.world.observe import rank_info

KEY = AttemptKey("job", 0)
CALM = level(2)


class Job:
    """Ranks whose host memory follows curves, two on a node of 16 GiB."""

    def __init__(self, *curves: Curve, max_findings: int = 100) -> None:
        self.engine = Engine(Policy(memory_warmup_s=5, max_findings=max_findings))
        self.attempt = self.engine.attempt(KEY, len(curves), at(0))
        self.curves = curves
        self.handles = []
        for rank in range(len(curves)):
            info = replace(rank_info(rank, len(curves), per_node=2), address=Address(9000 + rank))
            self.engine.rank(self.attempt, info, at(0))
            series = SeriesInfo(rank, SeriesKind.HOST_USED)
            self.handles.append(self.attempt.memory_series(series))
        self.attempt.connection(range(len(curves)), True)
        self.second = 0

    def run(self, until: int) -> list[FindingEvent]:
        events = []
        while self.second < until:
            times = self.second + np.arange(10) / 10
            self.second += 1
            for handle, curve in zip(self.handles, self.curves, strict=True):
                values = curve(times).clip(0, 16 * GIB).astype(np.int64)
                memory_world.observe(
                    self.attempt.memory, [handle], times, values, 16 * GIB, now_s=self.second
                )
            for tick in range(4):
                events += self.engine.advance(at(self.second + tick / 4)).events
                assert not self.engine.faults
        return events

    def run_out(self, rank: int) -> None:
        """The kernel kills a process of the rank."""
        now = at(self.second)
        kill = MemoryEvent(rank, MemoryEventKind.OOM_KILL, NodeNs(0))
        self.attempt.memory.event(kill, now, S // 1000, now)

    def join(
        self, rank: int, seq: int, created: float, flags: Flags, group: str = "default_pg"
    ) -> None:
        attempt = self.attempt
        handle = attempt.group(GroupInfo(group, group, tuple(range(len(self.curves)))))
        observe.entries(attempt, rank, handle, seq, flags, created=at(created), now=at(created))


def test_what_people_read() -> None:
    """Rank 2 grows: rank, node, pid, figures, whose memory it is, and where the rank was."""
    job = Job(CALM, CALM, plus(CALM, ramp(20, 3)), CALM)
    job.join(2, 1, 18.0, Flags.JOINED)
    [opened, *_] = job.run(24)
    finding = opened.finding
    [suspect] = finding.suspects
    assert (opened.change, finding.kind, finding.state) == (
        Change.OPENED,
        Kind.MEMORY_SPIKE,
        FindingState.OPEN,
    )
    assert (suspect.rank, suspect.node, suspect.address) == (2, "node1", Address(9002))
    assert (suspect.reason, suspect.confidence) == (Reason.MEMORY, Confidence.HIGH)
    assert finding.summary == (
        "Rank 2 (node1): its host memory rose first; +5.7 GiB in 1.9 s, 8.3 GiB left, "
        "exhausted in about 2.8 s as of 08:00:21"
    )
    assert suspect.evidence == (
        "host memory: +5.7 GiB in 1.9 s, 8.3 GiB left, exhausted in about 2.8 s as of 08:00:21; "
        "held by the rank's process or its children; "
        "in all_reduce #1 on default_pg when it began"
    )


def test_a_forecast_goes_when_memory_is_flat() -> None:
    """Memory of rank 1 rises by 3 GiB a second and stops at half: the first text says when the
    forecast was made, the next one has none, and after the end it does not come back."""
    job = Job(CALM, plus(CALM, ramp(20, 2, 7)))
    texts = [event.finding.summary for event in job.run(400)]
    assert " left, exhausted in about " in texts[0]
    assert " s as of 08:00:2" in texts[0]
    assert [("exhausted" in text) for text in texts[1:]] == [False] * (len(texts) - 1)
    assert len(texts) > 1


def test_a_forecast_goes_before_the_finding_closes() -> None:
    """Memory falls back within seconds: the closed finding foresees nothing."""
    job = Job(CALM, plus(CALM, ramp(20, 3, 9), lambda t: -step(23, 9)(t)))
    *_, closed = (event.finding for event in job.run(60))
    assert closed.close_reason == "memory fell back"
    assert "exhausted" not in closed.summary + closed.suspects[0].evidence


def test_stairs_keep_their_forecast() -> None:
    """A rise that pauses for three seconds after every step goes on."""
    job = Job(CALM, plus(CALM, stairs(20, 2, 3)))
    [opened, *more] = job.run(36)
    assert not more
    assert "exhausted in about" in opened.finding.summary


@pytest.mark.parametrize("others", [2, 0])
def test_others_memory_is_said_of_the_node(others: int) -> None:
    """Another user of a node fills the cgroup of two ranks within seconds: no rank is accused, no
    rank is a victim, and the text says where it is. So it is if the job has no other node."""
    job = Job(*(CALM,) * (others + 2))
    cgroups = []
    for rank in (others, others + 1):
        cgroups.append(job.attempt.memory_series(SeriesInfo(rank, SeriesKind.CGROUP_USED)))
        job.handles.append(cgroups[-1])
        job.curves = (*job.curves, plus(level(5), ramp(20, 1)))
    [opened, *_] = job.run(30)
    finding = opened.finding
    assert (finding.kind, finding.severity) == (Kind.MEMORY_SPIKE, Severity.WARNING)
    assert (finding.suspects, finding.victims, finding.unknown) == ((), (), ())
    assert finding.summary.startswith(
        f"Host memory of node{others // 2} is taken by processes of no rank; +1.9 GiB in 1.9 s, "
    )
    assert "exhausted in about" in finding.summary


INSIDE, OVER = Flags.JOINED, Flags.JOINED | Flags.COMPLETED


@pytest.mark.parametrize(
    ("joins", "where"),
    [
        pytest.param(
            [("tp", 5, 18.5, INSIDE), ("dp", 7, 18.0, INSIDE), ("pp", 3, 18.7, INSIDE)],
            "in all_reduce #7 on dp when it began",
            id="it waits in several groups: the one that it entered first",
        ),
        pytest.param(
            [("tp", 5, 18.0, OVER), ("dp", 9, 18.2, OVER), ("pp", 2, 18.4, OVER)],
            "last joined all_reduce #9 on dp",
            id="it is in no collective: the last one that it joined",
        ),
        pytest.param(
            [("dp", 6, 20.7, INSIDE)],
            "last joined all_reduce #6 on dp",
            id="it joined after its memory had begun to rise: it was not there",
        ),
    ],
)
def test_where_the_rank_was(joins: list[tuple[str, int, float, Flags]], where: str) -> None:
    """The evidence names the collective in which the rank was when its memory began to rise."""
    job = Job(CALM, plus(CALM, ramp(20, 3)))
    for group, seq, created, flags in joins:
        job.join(1, seq, created, flags, group)
    [opened, *_] = job.run(24)
    assert opened.finding.suspects[0].evidence.endswith(where)


def test_when_all_rise_together_no_rank_is_a_suspect() -> None:
    """A common cause has no suspect; the finding carries the reason itself."""
    job = Job(*(plus(CALM, step(20, 13)) for _ in range(4)))
    [opened, *_] = job.run(24)
    finding = opened.finding
    assert (finding.suspects, finding.reason) == ((), Reason.MEMORY)
    assert finding.victims == (0, 1, 2, 3)
    assert finding.summary == (
        "Host memory of ranks 0-3 rose together: no single rank is the cause; "
        "+13.0 GiB in 0.1 s, 1.0 GiB left"
    )


def test_it_closes_when_memory_falls_back() -> None:
    """The same id from its opening to its end, which says why; a second one has another."""
    job = Job(CALM, plus(CALM, step(20, 13, end=30)), plus(CALM, step(50, 13)))
    opened, closed, other = (event.finding for event in job.run(54))
    assert (opened.id, opened.kind) == (closed.id, closed.kind)
    assert closed.state is FindingState.CLOSED
    assert closed.close_reason == "memory fell back"
    assert other.id != opened.id
    assert [s.rank for s in other.suspects] == [2]


def test_out_of_memory() -> None:
    """The kernel kills the rank that grew: kind `oom`, with what was asked for and what is left.
    Only one finding may be open: that of the spike makes room for what it has become."""
    job = Job(CALM, plus(CALM, ramp(20, 3)), CALM, max_findings=1)
    job.run(24)
    job.run_out(1)
    spike, oom = (event.finding for event in job.run(26) if event.change is not Change.UPDATED)
    assert (spike.kind, spike.close_reason) == (Kind.MEMORY_SPIKE, "memory ran out")
    assert (oom.kind, oom.state) == (Kind.OOM, FindingState.OPEN)
    assert oom.summary == "Rank 1 (node0) ran out of host memory; +14.0 GiB in 4.7 s, 0 bytes left"
    assert "an allocation failed" in oom.suspects[0].evidence


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1536, "1.5 KiB"), (3.14 * GIB, "3.1 GiB"), (1 << 41, "2.0 TiB")],
)
def test_sizes(count: float, text: str) -> None:
    """In the unit that leaves a number people can read."""
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.21, "4.2 s"), (42.1, "42 s"), (1200, "20 min"), (9000, "2.5 h")]
)
def test_durations(seconds: float, text: str) -> None:
    """The same for times."""
    assert duration(seconds) == text


# -- what findings say -----------------------------------------------------------------------------


RISE = MemoryRise(
    rank=3,
    device="GPU-3",
    onset=(at(10), at(11)),
    risen_bytes=2 * GIB,
    took_s=4.0,
    bytes_per_s=0.0,
    headroom_bytes=30 * GIB,
    attribution=Attribution.UNKNOWN,
)
SPIKE = MemoryIncident(
    number=1, kind=Kind.MEMORY_SPIKE, on_host=False, limit=at(11), rows={3: 0}, rises={3: RISE}
)
OOM = replace(SPIKE, kind=Kind.OOM, failed={3})
FIGURES = "+2.0 GiB in 4.0 s, 30.0 GiB left"


@pytest.mark.parametrize(
    ("incident", "text"),
    [
        (
            replace(SPIKE, rows={3: 0, 5: 1}),
            "ranks 3,5: their GPU memory rose first, too close together to say which of them",
        ),
        (replace(SPIKE, leak=True, on_host=True), "rank 3: its host memory leaks"),
        (OOM, "rank 3 ran out of GPU memory"),
        (replace(OOM, failed={7}), "rank 3: its GPU memory rose first; rank 7 ran out"),
        (
            replace(OOM, rows={3: 0, 5: 1}, failed={7}),
            "ranks 3,5: their GPU memory rose first, too close together to say which of them; "
            "rank 7 ran out",
        ),
        (replace(OOM, common=True, failed={1, 2, 3}), "ranks 1-3 ran out of GPU memory"),
    ],
)
def test_one_line(incident: MemoryIncident, text: str) -> None:
    """Who ran out, who rose first, and when they are not the same, both."""
    assert (headline(incident), effect(incident)) == (text, "" if incident.common else FIGURES)


@pytest.mark.parametrize(
    ("attribution", "text"),
    [
        (Attribution.ALLOCATOR, "; held by torch's allocator"),
        (
            Attribution.DRIVER,
            "; held by the rank's process, but not by torch's allocator: NCCL or the driver",
        ),
        (Attribution.PROCESS, "; held by the rank's process"),
        (
            Attribution.OUTSIDE,
            "; not held by torch's allocator: NCCL, the driver or another process",
        ),
        (Attribution.HOST, "; held by the rank's process or its children"),
        (Attribution.UNKNOWN, ""),
    ],
)
def test_whose_memory_it_is(attribution: Attribution, text: str) -> None:
    """As much is claimed as is known, and nothing where only a sum over the device is."""
    rise = replace(RISE, attribution=attribution)
    assert evidence(SPIKE, rise, "") == f"memory of GPU-3: {FIGURES}{text}"


def test_all_that_is_known_of_a_suspect() -> None:
    """A leak whose allocation failed in the end, on a device without a name."""
    rise = replace(RISE, device="", out_of_memory=True)
    assert evidence(replace(SPIKE, leak=True), rise, "in all_reduce #7 on dp when it began") == (
        f"memory of its GPU: {FIGURES}; a leak: it rises slowly and steadily; "
        "an allocation failed; in all_reduce #7 on dp when it began"
    )


def test_a_kill_by_the_kernel_is_no_failed_allocation() -> None:
    """The agent says what was killed."""
    rise = replace(RISE, out_of_memory=True, kill="the kernel killed a process in its cgroup\x1b")
    said = evidence(SPIKE, rise, "")
    assert "; the kernel killed a process in its cgroup" in said
    assert "allocation" not in said
    assert said.isprintable()
