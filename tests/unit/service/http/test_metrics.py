"""/metrics: the agreed names, parsable, bounded, and true to the state they are a view of."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from frd.cluster.lease import ClusterView, Replica
from frd.engine.views import AttemptView, GroupView, Histogram, MemoryView, StatusView
from frd.forms import utc_text
from frd.model import (
    Address,
    AlignedNs,
    AttemptKey,
    Certainty,
    Confidence,
    ExitInfo,
    ExitKind,
    Failure,
    Finding,
    FindingState,
    Kind,
    RankState,
    Severity,
    WaitKind,
    WaitsFor,
)
from frd.service.http.job_json import job_summary
from frd.service.http.json_api import job_json, jobs_json
from frd.service.metrics.collector import (
    CONTENT_TYPE,
    MAX_GROUPS,
    MAX_LABEL_CHARS,
    MAX_OPS,
    OTHER,
    render,
)
from frd.service.metrics.recent_peak import WINDOW_S, RecentPeak, measured_loop
from frd.service.metrics.table import MAX_SUSPECTS, METRICS
from frd.service.state import CellState, ClusterState, Counters, NodeView, ServiceState
from tests.world.http_api import Client, Service, finding
from tests.world.prometheus import documented
from tests.world.views import (
    NOW,
    SECOND,
    TRAIN,
    attempt_view,
    group_view,
    node_view,
    rank_view,
    rise,
)

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Series:
    """Every sample by name and labels; a series that comes twice is an error."""
    series: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in series
            series[key] = sample.value
    return series


def scraped(state: ServiceState) -> Series:
    return parsed(render(state).decode())


def value(series: Series, name: str, **labels: str) -> float | None:
    if name in METRICS and "training_job" in METRICS[name].labels:
        labels = {"namespace": "", "training_job": labels["job"]} | labels
    return series.get((name, frozenset(labels.items())))


def job_view(
    job: str = "train",
    attempt: int = 0,
    *,
    groups: Sequence[GroupView] = (),
    skew: dict[str, Histogram] | None = None,
    ended: bool = False,
) -> AttemptView:
    states = (RankState.LIVE, RankState.LIVE, RankState.EXITED)
    ranks = [rank_view(rank, state) for rank, state in enumerate(states)]
    key = AttemptKey(job, attempt)
    return attempt_view(
        ranks, key=key, world=4, groups=groups, skew=skew, ended=ended, gap_entries=3
    )


def agent_of(name: str, *, reporting: bool = True) -> NodeView:
    view = node_view(name, {TRAIN: (0, 1)}, reporting=reporting, behind_ns=250_000_000)
    return dataclasses.replace(view, clock=view.clock._replace(steps=1))


HOLDS_UP = "holds up 2 ranks in all_reduce #36 of default_pg"


def stall(number: int = 1, *, job: str = "train", suspects: int = 1) -> Finding:
    """Its suspects read a file."""
    waits_for = WaitsFor(WaitKind.FILE_READ, Certainty.SEEN, "/data/shard-17.tar")
    found = finding(number, job)
    suspect = dataclasses.replace(found.suspects[0], waits_for=waits_for)
    named = tuple(dataclasses.replace(suspect, rank=rank) for rank in range(suspects))
    found = dataclasses.replace(found, headline="Rank 0 (node0): reads a file", opened_at=NOW)
    return dataclasses.replace(found, effect=f"{HOLDS_UP} for 62 s", suspects=named)


def service_state(
    *attempts: AttemptView, findings: Sequence[Finding] = (), nodes: Sequence[NodeView] = ()
) -> ServiceState:
    return ServiceState(
        status_view=StatusView(NOW, attempts, findings, {"collectives": 5}),
        nodes=nodes,
        counters=Counters(
            entries=1000,
            duplicates=30,
            refused={"length": 2, "new_word": 1},
            evicted={"dumps": 1, "collectives": 1},
            findings={("train", Kind.STALL): 7},
            store_errors={"timelines": 3},
        ),
        ingest_lag_s=0.5,
        evaluated_at=NOW,
        version="1.2.3",
    )


def full_state() -> ServiceState:
    histogram = Histogram((0.001, 0.1, 1.0), (5, 3, 0, 2), 12.5)
    job = job_view(
        groups=[group_view("default_pg", stall_s=12.0), group_view("tp")],
        skew={"all_reduce": histogram},
    )
    return service_state(
        dataclasses.replace(job, unread={1: "why", 2: "it has ended"}),
        findings=[stall()],
        nodes=[agent_of("node-a"), agent_of("node-b", reporting=False)],
    )


def test_what_is_exported() -> None:
    """Every metric of the table, and nothing else, besides those of the process."""
    exported = {
        line.split()[2] for line in render(full_state()).decode().splitlines() if "# TYPE" in line
    }
    own = {name for name in exported if name.startswith("process_")}
    assert exported - own == set(METRICS)
    assert {"process_resident_memory_bytes", "process_cpu_seconds_total"} <= own


STALLED = """
frd_build_info{version="1.2.3"} 1
frd_ranks{job="train",state="live"} 2
frd_ranks{job="train",state="exited"} 1
frd_ranks{job="train",state="silent"} 0
frd_nodes{job="train",state="reporting"} 1
frd_nodes{job="train",state="late"} 1
frd_agents_expected{job="train",namespace="",training_job="train"} 2
frd_agents_reporting{job="train",namespace="",training_job="train"} 1
frd_unread_ranks{job="train",namespace="",training_job="train"} 1
frd_stall_seconds{job="train",group="default_pg"} 12
frd_stalled_collectives{job="train",group="tp"} 0
frd_stall_threshold_seconds{job="train",group="tp"} 25
frd_group_open_collectives{job="train",group="tp"} 2
frd_findings_open{job="train",namespace="",training_job="train",kind="stall"} 1
frd_findings_total{job="train",namespace="",training_job="train",kind="stall"} 7
frd_suspect{job="train",namespace="",training_job="train",kind="stall",finding="0000000000000001",rank="0",node="node0",\
reason="cpu_stuck",waits_for="file_read"} 1
frd_finding_info{job="train",finding="0000000000000001",headline="Rank 0 (node0): reads a file",\
effect="holds up 2 ranks in all_reduce #36 of default_pg"} 1
frd_clock_offset_seconds{node="node-a"} 0.25
frd_clock_steps_total{node="node-a"} 1
frd_clock_refused_total{reason="backwards"} 0
frd_nodes_unsynchronized{job="train"} 2
frd_telemetry_gap_entries_total{job="train",namespace="",training_job="train"} 3
frd_ingest_entries_total 1000
frd_ingest_duplicate_entries_total 30
frd_ingest_refused_total{reason="length"} 2
frd_ingest_refused_total{reason="new_word"} 1
frd_collective_skew_seconds_bucket{job="train",op="all_reduce",le="0.001"} 5
frd_collective_skew_seconds_bucket{job="train",op="all_reduce",le="0.1"} 8
frd_collective_skew_seconds_bucket{job="train",op="all_reduce",le="1.0"} 8
frd_collective_skew_seconds_bucket{job="train",op="all_reduce",le="+Inf"} 10
frd_collective_skew_seconds_count{job="train",op="all_reduce"} 10
frd_collective_skew_seconds_sum{job="train",op="all_reduce"} 12.5
frd_evicted_total{what="collectives"} 6
frd_evicted_total{what="journal_segments"} 0
frd_store_errors_total{store="findings"} 0
frd_store_errors_total{store="journal"} 0
frd_store_errors_total{store="dumps"} 0
frd_store_errors_total{store="timelines"} 3
frd_last_evaluation_timestamp_seconds 1800000000
"""


def test_values_of_a_stalled_job() -> None:
    """A job with a stall shows its groups, ranks, agents, findings and suspects; buckets are
    cumulative."""
    got = scraped(full_state())
    expected = parsed(STALLED)
    assert {key: got.get(key) for key in expected} == expected
    assert value(got, "frd_clock_uncertainty_seconds", node="node-a") is None


CLUSTER = ClusterState(
    ClusterView(
        me="frd-0",
        replicas=[Replica(f"frd-{n}", "h:9373", "http://h:9374", "1.2.3") for n in range(2)],
        connected=True,
        durable=False,
    ),
    cells={CellState.OWNED: 30, CellState.FOREIGN: 33, CellState.UNOWNED: 1},
    takeovers={"dead": 21, "new_word": 1},
    sure=False,
    fenced=2,
)
OF_CLUSTER = """
frd_replicas 2
frd_cluster_connected 1
frd_cluster_durable 0
frd_cluster_sure 0
frd_cells{state="owned"} 30
frd_cells{state="taking_over"} 0
frd_cells{state="draining"} 0
frd_cells{state="foreign"} 33
frd_cells{state="unowned"} 1
frd_takeovers_total{why="start"} 0
frd_takeovers_total{why="dead"} 21
frd_takeovers_total{why="released"} 0
frd_takeovers_total{why="new_word"} 1
frd_fenced_total 2
"""


def test_values_of_a_replica() -> None:
    """A replica of a cluster exports the cells as it sees them, and whether it is sure of them;
    known series start at zero. A single service has none of these series."""
    got = scraped(dataclasses.replace(full_state(), cluster=CLUSTER))
    of_cluster = {key: sample for key, sample in got.items() if key not in scraped(full_state())}
    assert of_cluster == parsed(OF_CLUSTER)


def test_known_series_start_at_zero() -> None:
    """A job that is fine has a zero for every kind of finding, so that alerts can resolve. A closed
    finding has no series and does not count as open, but its job's zeros stay."""
    closed = dataclasses.replace(stall(), state=FindingState.CLOSED, closed_at=NOW)
    got = scraped(service_state(job_view("quiet"), findings=[closed]))
    assert not [key for key in got if "finding" in dict(key[1])]
    assert value(got, "frd_findings_open", job="train", kind="stall") == 0
    for kind in Kind:
        assert value(got, "frd_findings_open", job="quiet", kind=kind.value) == 0
        assert value(got, "frd_findings_total", job="quiet", kind=kind.value) == 0
    assert value(got, "frd_agents_expected", job="quiet") == 0


def test_opening_time_and_severity_of_a_finding() -> None:
    """One finding is a warning, another is critical; a finding without suspects is exported,
    too."""
    warning = dataclasses.replace(stall(1, suspects=0), severity=Severity.WARNING)
    critical = dataclasses.replace(stall(2), severity=Severity.CRITICAL)
    got = scraped(service_state(findings=[warning, critical]))
    for one, is_critical in ((warning, 0), (critical, 1)):
        labels = {"job": "train", "kind": "stall", "finding": one.id}
        assert value(got, "frd_finding_critical", **labels) == is_critical
        assert value(got, "frd_finding_opened_timestamp_seconds", **labels) == NOW / 1e9


def test_a_silenced_finding_has_a_series_until_then() -> None:
    """Of three open findings one is silenced until later and one was until now; all are open."""
    until = {1: AlignedNs(NOW + SECOND), 2: NOW, 3: None}
    findings = [
        dataclasses.replace(stall(number), silenced_until_at=at) for number, at in until.items()
    ]
    got = scraped(service_state(findings=findings))
    silenced = [dict(labels)["finding"] for name, labels in got if name == "frd_finding_silenced"]
    assert silenced == [findings[0].id]
    assert value(got, "frd_findings_open", job="train", kind="stall") == 3


@pytest.mark.parametrize(
    ("effect", "shown"),
    [
        (f"{HOLDS_UP} for 62 s", HOLDS_UP),
        (f"{HOLDS_UP} for 9.3 s, in all 6 ranks", f"{HOLDS_UP}, in all 6 ranks"),
        (f"{HOLDS_UP} for 2 d 3 h", HOLDS_UP),
        ("waits for 3 ranks", "waits for 3 ranks"),
        ("a\x1b[31m\nb\ud800" + "x" * 200, None),
    ],
)
def test_the_text_of_a_finding_is_one_bounded_printable_label(
    effect: str, shown: str | None
) -> None:
    """It does not change with time, and what a hostile name puts into it is escaped."""
    got = scraped(service_state(findings=[dataclasses.replace(stall(), effect=effect)]))
    ((_, labels),) = [key for key in got if key[0] == "frd_finding_info"]
    text = dict(labels)["effect"]
    assert text.isprintable()
    assert len(text) <= MAX_LABEL_CHARS
    assert shown in (text, None)


def test_a_straggler_has_no_effect_as_a_label() -> None:
    """How long its group has waited for it grows with every op."""
    late = dataclasses.replace(stall(), kind=Kind.STRAGGLER, effect="tp has waited 3.1 s for it")
    (labels,) = [
        dict(labels)
        for name, labels in scraped(service_state(findings=[late]))
        if name == "frd_finding_info"
    ]
    assert (labels["headline"], labels["effect"]) == (late.headline, "")


def test_rises_of_memory_that_have_not_fallen_back() -> None:
    """Bytes above the usual level of each suspect, with its node, the larger one of two rises of
    a rank, whether a finding is open or not; of the ranks of an undecided rise; not of a common
    one. The largest of a job, and none of a job that has ended."""
    count = MAX_SUSPECTS + 4
    memory = MemoryView(
        rises=[
            *(rise(rank, size=rank << 20) for rank in range(1, count)),
            rise(1, size=50 << 20),
            rise(2, size=90 << 20, fell_back=True),
            rise(ranks=(0, 2), size=60 << 20),
            rise(ranks=range(count), size=99 << 20, common_cause=True),
        ]
    )
    view = attempt_view([rank_view(rank, world=count) for rank in range(count)])
    view = dataclasses.replace(view, memory=memory)
    got = scraped(service_state(view))
    rises = [(dict(key[1]), found) for key, found in got.items() if key[0] == "frd_memory_rise"]
    assert {(int(of["rank"]), found / 2**20) for of, found in rises} == {
        (0, 60), (1, 50), (2, 60), *((rank, rank) for rank in range(count - 13, count)),
    }  # fmt: skip
    labels = {"job": "train", "rank": "1", "node": "node1", "kind": "host_used"}
    assert value(got, "frd_memory_rise", **labels) == 50 << 20
    ended = scraped(service_state(dataclasses.replace(view, ended=True)))
    assert "frd_memory_rise" not in {name for name, _ in ended}


def test_the_namespace_of_a_job() -> None:
    """Series of its findings and of its state have it, histograms have not."""
    job = dataclasses.replace(full_state().latest_attempts()["train"], namespace="ml")
    got = scraped(service_state(job, findings=[stall()]))
    of_job = {name for name, labels in got if dict(labels).get("namespace") == "ml"}
    assert {"frd_suspect", "frd_finding_critical", "frd_job_failed"} <= of_job
    assert not [name for name in of_job if "seconds_bucket" in name]


def test_the_namespace_of_a_job_of_which_no_agent_has_reported_yet() -> None:
    """After a restart: with another label each alert would be sent again. The stored finding has
    the address of its suspects."""
    finding = stall()
    address = Address(namespace="ml")
    suspects = tuple(dataclasses.replace(one, address=address) for one in finding.suspects)
    got = scraped(service_state(findings=[dataclasses.replace(finding, suspects=suspects)]))
    labels = [dict(labels) for name, labels in got if name == "frd_suspect"]
    assert labels
    assert {one["namespace"] for one in labels} == {"ml"}


def test_the_series_of_findings_by_http(tmp_path: Path) -> None:
    """As Prometheus asks for them."""
    service = Service(tmp_path, [job_view()])
    answer = Client(service).get("/metrics/findings")
    service.close()
    assert (answer.status, answer.content_type) == (200, CONTENT_TYPE)
    assert answer.body == render(service.state, of_findings=True)


def test_the_series_of_findings_alone() -> None:
    """They are those of a scrape of everything, and no others; the documented configuration drops
    them from the slow scrape."""
    state = dataclasses.replace(full_state(), counters=Counters(corrected=2))
    everything, of_findings = scraped(state), parsed(render(state, of_findings=True).decode())
    slow, fast = documented("prometheus.yml")["scrape_configs"][:2]
    assert (slow["metrics_path"], fast["metrics_path"]) == ("/metrics", "/metrics/findings")
    (drop,) = slow["metric_relabel_configs"]
    assert (drop["source_labels"], drop["action"]) == (["__name__"], "drop")
    dropped = {key: n for key, n in everything.items() if re.fullmatch(drop["regex"], key[0])}
    assert of_findings == dropped
    assert value(of_findings, "frd_findings_corrected_total") == 2


def test_groups_of_one_label_share_a_series() -> None:
    """Two groups with one description are summed, and their age is the older one's."""
    groups = [group_view("tp", stall_s=3.0, matched=1), group_view("tp", stall_s=9.0, matched=2)]
    got = scraped(service_state(job_view(groups=groups)))
    assert value(got, "frd_collectives_matched_total", job="train", group="tp") == 3
    assert value(got, "frd_stalled_collectives", job="train", group="tp") == 2
    assert value(got, "frd_stall_seconds", job="train", group="tp") == 9


def test_newest_attempt_only() -> None:
    """A restarted job shows its newest attempt, whatever order the attempts come in."""
    old, new = job_view(attempt=0), job_view(attempt=1, groups=[group_view("tp")])
    for attempts in ((old, new), (new, old)):
        got = scraped(service_state(*attempts))
        assert value(got, "frd_ranks", job="train", state="unwatched") == 2  # no agent is there
        assert value(got, "frd_group_open_collectives", job="train", group="tp") == 2


def test_a_job_of_which_only_its_failure_is_known() -> None:
    """Its attempt is forgotten: the metric, the list of jobs and both forms of the job have it; any
    attempt that runs is newer."""
    how = ExitInfo(ExitKind.EXCEPTION, exception="ValueError: x", where="train.py:8")
    at = AlignedNs(NOW - 720 * SECOND)
    failure = Failure(3, 4, at, 2, "rank 2 raised ValueError: x (train.py:8)", how)
    view = AttemptView.forgotten(AttemptKey("train", 3), failure)
    state = ServiceState(StatusView(NOW, [view], []))
    assert value(scraped(state), "frd_job_failed", job="train") == 1
    (line,) = jobs_json(state)["jobs"]
    assert (line["state"], line["ended"], line["attempt"], line["ranks"]) == ("failed", True, 3, {})
    assert line["failure"] == {
        **{"attempt": 3, "world_size": 4, "rank": 2, "finding": "", "text": failure.text},
        **{"at": utc_text(at), "age_s": 720.0, "exit": dataclasses.asdict(how)},
    }
    assert job_json(state, view)["failure"] == line["failure"]
    assert json.loads(json.dumps(job_summary(state, view, "tag")))["failure"] == line["failure"]
    both = ServiceState(StatusView(NOW, [view, job_view(attempt=0)], []))
    assert value(scraped(both), "frd_job_failed", job="train") == 0


def test_series_are_bounded() -> None:
    """Thousands of groups, ops and suspects with huge names give a bounded number of series."""
    histogram = Histogram((1.0,), (1, 0), 0.5)
    groups = [group_view(f"{n}{'x' * 5000}", stall_s=float(n)) for n in range(2000)]
    ops = {f"op{n}": histogram for n in range(500)}
    got = scraped(
        service_state(
            job_view(groups=groups, skew=ops),
            findings=[stall(n, suspects=50) for n in range(3)],
        )
    )
    per_name: dict[str, int] = {}
    for name, labels in got:
        per_name[name] = per_name.get(name, 0) + 1
        assert all(len(text) <= MAX_LABEL_CHARS for _, text in labels)
    assert per_name["frd_stall_seconds"] == MAX_GROUPS + 1
    assert per_name["frd_collective_skew_seconds_count"] == MAX_OPS + 1
    assert per_name["frd_suspect"] == 3 * MAX_SUSPECTS
    assert value(got, "frd_stall_seconds", job="train", group=OTHER) == 1999
    assert value(got, "frd_collective_skew_seconds_sum", job="train", op=OTHER) == 218


def test_alerts_carry_the_surest_suspects_of_a_finding() -> None:
    """Of three suspects of one finding two have high confidence; another finding has medium ones
    only, which count."""
    sure, others = stall(1, suspects=3), stall(2, suspects=2)
    medium = [dataclasses.replace(s, confidence=Confidence.MEDIUM) for s in sure.suspects]
    sure = dataclasses.replace(sure, suspects=(*sure.suspects[:2], medium[2]))
    others = dataclasses.replace(others, suspects=tuple(medium[:2]))
    got = scraped(service_state(job_view(), findings=[sure, others]))
    series = [dict(labels) for name, labels in got if name == "frd_suspect"]
    assert sorted((one["finding"], one["rank"]) for one in series) == [
        (sure.id, "0"), (sure.id, "1"), (others.id, "0"), (others.id, "1")
    ]  # fmt: skip


@pytest.mark.parametrize("name", ['a"b\\c\nd', "\ud800", "", "\U0001f525", "x" * 200 + "\udc80"])
def test_odd_names_do_not_break_the_scrape(name: str) -> None:
    """Whatever a job or a group is called, the text parses and the series is there once."""
    state = service_state(job_view(name, groups=[group_view(name)]), findings=[stall(job=name)])
    got = scraped(state)
    assert sum(key[0] == "frd_stall_seconds" for key in got) == 1
    assert sum(key[0] == "frd_suspect" for key in got) == 1


@pytest.mark.prometheus
def test_promtool_accepts_it() -> None:
    """Prometheus's own linter has no complaint about names, types and help."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=render(dataclasses.replace(full_state(), cluster=CLUSTER)),
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


UP = node_view("a", {TRAIN: (0, 1)})
KILLED = node_view("b", {TRAIN: (0, 1)}, connected=False, reporting=False)
STOPPED = dataclasses.replace(KILLED, stopped=True)


@pytest.mark.parametrize(
    ("nodes", "counts"),
    [
        ([UP, KILLED], (2, 1)),
        ([UP, STOPPED], (2, 1)),
        ([KILLED, STOPPED], (2, 0)),
        ([STOPPED, STOPPED], (0, 0)),
        ([UP, dataclasses.replace(UP, stopped=True)], (2, 2)),
    ],
    ids=["one killed", "one stopped", "none left", "all stopped", "one leaves"],
)
def test_agents_that_are_missed(nodes: list[NodeView], counts: tuple[int, int]) -> None:
    """FrdBlind compares the agents that are expected with those that report: one that has gone is
    missed while ranks of it may live, unless all agents of the job were stopped. Of a job that has
    ended none is missed; configured agents are expected before they were seen."""
    assert expected_and_reporting(service_state(job_view(), nodes=nodes)) == counts
    ended = service_state(job_view(ended=True), nodes=nodes)
    assert expected_and_reporting(ended) == (0, 0)
    four = dataclasses.replace(service_state(job_view(), nodes=nodes), expected_agents={"train": 4})
    assert expected_and_reporting(four) == (4, counts[1])


def expected_and_reporting(state: ServiceState) -> tuple[float | None, ...]:
    got = scraped(state)
    names = ("frd_agents_expected", "frd_agents_reporting")
    return tuple(value(got, name, job="train") for name in names)


def test_the_peak_is_remembered_for_a_window() -> None:
    """A slow message between two scrapes is seen by both, and forgotten after the window, and also
    when the service's clock is set back by an hour."""
    recent = RecentPeak()
    assert recent.value(0.0) == 0.0
    recent.add(7.0, 100.2)
    recent.add(1.0, 100.9)
    recent.add(2.0, 105.0)
    assert recent.value(105.5) == recent.value(100.0 + WINDOW_S - 0.1) == 7.0
    assert recent.value(100.0 + WINDOW_S) == 2.0
    assert recent.value(105.0 + WINDOW_S) == 0.0
    recent.add(7.0, 10_000.0)
    assert recent.value(6_400.0) == 0.0


def test_what_delays_the_loop_is_measured() -> None:
    """A callback takes 0.2 s, and the loop sleeps: the delay is about 0.2 s, not the sleep."""
    lag = RecentPeak()

    async def program() -> None:
        await asyncio.sleep(0.3)
        assert lag.value(time.monotonic()) < 0.2
        time.sleep(0.2)
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=lambda: measured_loop(lag)) as runner:
        runner.run(program())
    assert 0.2 <= lag.value(time.monotonic()) < 0.3
