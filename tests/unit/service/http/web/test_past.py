"""What ended within a day, and how often the same happened before, as the API says it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from frd.model import (
    AlignedNs,
    Change,
    ExitInfo,
    ExitKind,
    Failure,
    Finding,
    FindingEvent,
    FindingState,
    Kind,
    Reason,
)
from frd.service.http.web.past import MOST_ENDED
from tests.world.http_api import Client, Service, closed, finding, job_view
from tests.world.views import NOW, SECOND

HOUR = 3600 * SECOND


def past(number: int, ago: int, job: str = "train", node: str = "node0") -> Finding:
    """It closed so long ago, a second after it had opened."""
    one = closed(finding(number, job))
    suspect = dataclasses.replace(one.suspects[0], node=node)
    at = AlignedNs(NOW - ago)
    return dataclasses.replace(
        one, suspects=(suspect,), opened_at=AlignedNs(at - SECOND), closed_at=at, headline="h"
    )


def test_what_ended(tmp_path: Path) -> None:
    """Findings that closed within a day and jobs that failed, newest first; a finding
    that explains a failure is in that entry; what goes on has not ended."""
    why = ExitInfo(ExitKind.SIGNAL, 9)
    failure = Failure(0, 2, AlignedNs(NOW - HOUR), 1, "rank 1 was killed", why, f"{1:016x}")
    failed = dataclasses.replace(job_view("failed"), ended=True, failure=failure)
    findings = [past(1, HOUR, "failed"), past(2, 2 * HOUR), past(3, 25 * HOUR)]
    findings += [dataclasses.replace(past(4, HOUR), goes_on=True), finding(5)]
    unknown = dataclasses.replace(failure, finding="", at=AlignedNs(NOW - 3 * HOUR))
    other = dataclasses.replace(job_view("other"), ended=True, failure=unknown)
    client = Client(Service(tmp_path, [job_view("train"), failed, other], findings))
    ended = client.get("/api/v1/jobs").json["ended"]
    assert [(one["job"], one["kind"], one["text"], one["finding"]) for one in ended] == [
        ("failed", "failed", "h", f"{1:016x}"),
        ("train", "stall", "h", f"{2:016x}"),
        ("other", "failed", "rank 1 was killed", None),
    ]


def test_it_is_bounded_and_current(tmp_path: Path) -> None:
    """Of many, the newest are there; one that closes is there with the next answer; without the
    store, jobs are still listed."""
    many = [past(number, number * SECOND) for number in range(10, MOST_ENDED + 20)]
    service = Service(tmp_path, [job_view("train")], [*many, finding(1)])
    client = Client(service)
    ended = client.get("/api/v1/jobs").json["ended"]
    assert [one["finding"] for one in ended] == [one.id for one in many[:MOST_ENDED]]
    service.store.save([FindingEvent(Change.CLOSED, closed(finding(1)))])
    view = dataclasses.replace(service.state.status_view, findings=[])
    service.state = dataclasses.replace(service.state, status_view=view)
    assert client.get("/api/v1/jobs").json["ended"][0]["finding"] == finding(1).id
    service.store.close()
    service.state = dataclasses.replace(
        service.state, status_view=dataclasses.replace(view, findings=[finding(2)])
    )
    answer = client.get("/api/v1/jobs")
    assert (answer.status, len(answer.json["ended"])) == (200, MOST_ENDED)
    assert client.get(f"/api/v1/findings/{finding(2).id}").json["id"] == finding(2).id


def test_it_happened_before(tmp_path: Path) -> None:
    """Earlier findings of the job, of the same kind and reason, also on which node; those of other
    jobs, kinds and reasons, and later ones, do not count."""
    other = dataclasses.replace(past(6, 3 * HOUR), kind=Kind.OOM)
    suspect = dataclasses.replace(finding(7).suspects[0], reason=Reason.EXITED)
    findings = [
        past(1, HOUR), past(2, 2 * HOUR, node="node9"), past(3, 3 * HOUR), past(4, HOUR, "rl"),
        other, dataclasses.replace(past(7, HOUR), suspects=(suspect,)),
        dataclasses.replace(finding(8), opened_at=NOW, state=FindingState.OPEN), finding(9),
    ]  # fmt: skip
    client = Client(Service(tmp_path, [job_view("train")], findings))
    assert client.get(f"/api/v1/findings/{8:016x}").json["before"] == {
        "times": 3,
        "last_at": "2027-01-15T06:59:59.000000Z",
        "node": "node0",
        "node_times": 2,
    }
    assert "before" not in client.get(f"/api/v1/findings/{4:016x}").json
