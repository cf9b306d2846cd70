"""`frd status`: what is wrong first, then the state of every job."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cli.shell import Shell
from tests.world.http_service import (
    ENDED,
    FINDING,
    JOB,
    WATCHING,
    Service,
    answer,
    jobs_answer,
    says_status,
)


def test_status_folds_ranks_that_stand_alike(service: Service, ask: Shell) -> None:
    """Three ranks that wait in one collective are one row; clocks and the finding are shown."""
    says_status(service)
    text = ask.drawn("status", columns=200).out
    row = next(line for line in text.splitlines() if "all_reduce #7" in line)
    assert row.split()[:3] == ["0-1,3", "(3", "ranks)"]
    assert "ab12" in text
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert rows.index("node8 no exchange yet +0.200 0") < rows.index(
        "node7 synchronized -2500.000 ± 0.320 +12.3 1 0.7 s"
    )


def test_status_begins_with_what_is_wrong(service: Service, ask: Shell) -> None:
    """Open findings first, with an age; the suspect is marked and comes before the crowd; what
    ended is a line, and the last line says what is watched."""
    suspect = {"rank": 2, "node": "node7", "reason": "cpu_stuck", "confidence": "high"}
    found = {**FINDING, "suspects": [{**suspect, "evidence": "", "stack": []}]}
    says_status(service, ENDED, findings=[found])
    service.says("/api/v1/jobs/a%2Fb", {**JOB, "findings": [found]})
    rows = [" ".join(line.split()) for line in ask.drawn("status", columns=200).lines]
    assert rows[0] == "ab12 stall in train, opened 3 min ago: it hangs"
    marked = rows.index("2 live 0.5 s ago <- suspect in ab12")
    assert marked < next(n for n, row in enumerate(rows) if row.startswith("0-1,3 (3 ranks) live"))
    assert rows[-3:] == [
        "old attempt 1 ended, 4 ranks (1 exited, 3 finished), last heard 2 h 5 min ago",
        "",
        "watching 1 job, 4 ranks, 2 agents; last heard 0.4 s ago",
    ]
    says_status(service, {**ENDED, "last_heard_s": None}, findings=[found])
    assert "4 ranks (1 exited, 3 finished)\n" in ask.drawn("status", columns=200).out
    service.says("/api/v1/jobs/old", {**JOB, "job": "old", "ended": True})
    assert "old  attempt 1, ended, 4 ranks" in ask.drawn("status", "--all", columns=200).out


def test_status_says_which_groups_are_watched_in_part(service: Service, ask: Shell) -> None:
    """Members of other jobs are not watched."""
    known: Any = JOB["groups"]
    group = {**known[0], "group": "weights", "size": 0, "unwatched": "others are not"}
    says_status(service)
    service.says("/api/v1/jobs/a%2Fb", {**JOB, "groups": [*known, group]})
    rows = [" ".join(line.split()) for line in ask.drawn("status", columns=200).lines]
    assert "weights: others are not" in rows
    assert any(row.startswith("weights ? 7 6") for row in rows)


def test_a_lost_job_stays_in_sight(service: Service, ask: Shell) -> None:
    """Its agents were stopped: it is shown as jobs that run are, not as a line that ended."""
    says_status(service, {**ENDED, "state": "lost"})
    lost = {**JOB, "job": "old", "ended": True, "state": "lost"}
    service.says("/api/v1/jobs/old", lost)
    text = ask.drawn("status", columns=200).out
    assert "old  attempt 1, lost: its agents were stopped while ranks lived, and none" in text


def test_a_job_that_failed_says_how(service: Service, ask: Shell) -> None:
    """One line of the jobs that ended, in full with --all."""
    raised = "rank 2 raised ValueError: bad batch (train.py:88 load)"
    failed = {"state": "failed", "failure": {"age_s": 720.0, "text": raised}}
    says_status(service, {**ENDED, **failed})
    says = f"old attempt 1 failed 12 min ago: {raised}, 4 ranks (1 exited, 3 finished)"
    assert says in " ".join(ask.drawn("status", columns=200).out.split())
    service.says("/api/v1/jobs/old", {**JOB, **failed, "job": "old", "ended": True})
    whole = " ".join(ask.drawn("status", "--all", columns=200).out.split())
    assert f"old attempt 1, failed 12 min ago: {raised}, 4 ranks" in whole


def test_status_shows_a_job_with_a_finding_first(service: Service, ask: Shell) -> None:
    """A window shows the beginning: jobs without an open finding come later."""
    says_status(service, {**ENDED, "job": "aa", "ended": False}, findings=[FINDING])
    service.says("/api/v1/jobs/aa", {**JOB, "job": "aa", "findings": []})
    service.says("/api/v1/jobs/a%2Fb", {**JOB, "findings": [FINDING]})
    text = ask.drawn("status", columns=200).out
    assert text.index("a/b  attempt") < text.index("aa  attempt")


def test_status_before_the_first_job(service: Service, ask: Shell) -> None:
    """An empty service says so; one that is alone is not asked for replicas."""
    service.says("/api/v1/jobs", jobs_answer())
    service.says("/api/v1/findings?state=open", answer())
    assert "no jobs: no rank has been seen yet" in ask.drawn("status", columns=200).out
    assert "cluster" not in ask("status", "--json").json
    assert not [path for path, _ in service.asked if "cluster" in path]


def test_status_shows_the_worst_memory(service: Service, ask: Shell) -> None:
    """One rank rises by 2 GiB a second: its row has use, capacity, share, bars and trend."""
    says_status(service)
    text = ask.drawn("status", "--job", "a/b", columns=200).out
    row = next(line for line in text.splitlines() if "host" in line)
    assert " ".join(row.split()) == "2 host 12.0 GiB 16.0 GiB, 75% ▁▄█ +2.0 GiB/s"
    assert "3 more ranks: --memory" in text


def test_status_shows_every_rise_of_memory(service: Service, ask: Shell) -> None:
    """On 80 columns: those that alarm are marked, and first. Nothing is shown without a rise."""
    says_status(service)
    assert "memory that rose" not in ask.drawn("status", columns=80).out
    calm = {"alarming": False, "text": "host memory of rank 0 rose first: +1.0 GiB in 1.5 s"}
    alarms = {"alarming": True, "text": f"host memory of rank 2 rose{' and rose' * 9}"}
    service.says("/api/v1/jobs/a%2Fb", {**JOB, "rises": [calm, alarms]})
    lines = ask.drawn("status", columns=80).lines
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    shown = text[text.index("memory that rose") :]
    assert shown.index(f"{alarms['text']} <- alarms") < shown.index(str(calm["text"]))
    assert shown.count("<- alarms") == 1


@pytest.mark.parametrize(
    ("options", "query"), [(["--memory"], "all"), (["--ranks", "2-3"], "2-3")], ids=str
)
def test_status_asks_for_the_memory_of_ranks(
    service: Service, ask: Shell, options: list[str], query: str
) -> None:
    """--memory shows all, --ranks those named; these are then the only ones in the tables."""
    says_status(service)
    service.says(f"/api/v1/jobs/a%2Fb?memory={query}", JOB)
    (job,) = ask("status", "--job", "a/b", "--json", *options).json["jobs"]
    ranks = [rank["rank"] for rank in job["ranks"]]
    assert ranks == ([2, 3] if "--ranks" in options else [0, 1, 2, 3])


def test_in_a_pipe_a_job_is_a_line(service: Service, ask: Shell) -> None:
    """Columns separated by tabs; a job of which nothing was heard has an empty one."""
    says_status(service, {**ENDED, "last_heard_s": None})
    printed = ask("status")
    assert printed.out == (
        "a/b\trunning\t1\t4 live\t1\t0.5 s ago\t\nold\tended\t1\t1 exited, 3 finished\t0\t\t\n"
    )
    assert printed.err == "watching 1 job, 4 ranks, 2 agents; last heard 0.4 s ago\n"
    assert ask("status", "-o", "name").out == "a/b\nold\n"
    assert ask("status", "--job", "a/b", "-o", "wide").out.split("\t")[7:] == ["4", "2\n"]
    assert "last heard never" not in ask.drawn("status").out


def test_tables_in_a_pipe_are_not_wrapped(service: Service, ask: Shell) -> None:
    """--ranks and --memory are drawn there, too."""
    group = "all_reduce #7 on " + "g" * 300
    ranks: Any = JOB["ranks"]
    says_status(service)
    job = {**JOB, "ranks": [{**ranks[0], "waiting_in": group}]}
    service.says("/api/v1/jobs/a%2Fb?memory=0", job)
    assert any(group in line for line in ask("status", "--ranks", "0").lines)


def test_status_as_json_holds_every_job(service: Service, ask: Shell) -> None:
    """The details of all jobs in one object, of those that ended too, and what is watched."""
    says_status(service, ENDED)
    service.says("/api/v1/jobs/old", {**JOB, "job": "old"})
    printed = ask("status", "--json").json
    assert printed["jobs"] == [JOB, {**JOB, "job": "old"}]
    assert printed["watching"] == WATCHING
    assert "findings" not in printed
