"""One answer of several: pure functions over JSON."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest

from frd.cluster.cells import CELLS
from frd.cluster.lease import ClusterView
from frd.service.http.peers.merging import Gathered, Heard, Jobs, decode, merge_jobs

VIEW = ClusterView("frd-0", owners=dict.fromkeys(range(CELLS), "frd-0"))


def line(job: str, attempt: int = 0, **others: Any) -> dict[str, Any]:
    return {"job": job, "attempt": attempt, **others}


def said(*lines: Any, at: str = "2026-11-25T00:00:00.000000Z", **watching: Any) -> dict[str, Any]:
    known = {"jobs": 0, "ranks": 0, "agents": 0, "last_heard_s": None, "blind": [], **watching}
    return {"at": at, "jobs": list(lines), "watching": known, "warnings": [], "ended": []}


def merged(first: dict[str, Any], *others: dict[str, Any], view: ClusterView = VIEW) -> Any:
    return merge_jobs(Gathered(Heard(first), [Heard(one) for one in others], view=view))


def test_the_order_of_answers_does_not_matter() -> None:
    """Any replica may merge, and any may answer first: the list is the same. Of a job that has just
    moved, the newer attempt is shown."""
    answers = [
        said(line("b"), line("c", 1), agents=2, ranks=3, last_heard_s=2.0, blind=["x"]),
        said(line("a"), at="2026-11-25T00:00:01.000000Z", agents=1, last_heard_s=0.5),
        said(line("c", 2), blind=["x"]),
    ]
    (one, *others) = [merged(*order) for order in permutations(answers)]
    assert all(other == one for other in others)
    assert [(found["job"], found["attempt"]) for found in one["jobs"]] == [
        ("a", 0),
        ("b", 0),
        ("c", 2),
    ]
    assert one["at"] == "2026-11-25T00:00:01.000000Z"
    assert one["watching"] == {
        "jobs": 0,
        "ranks": 3,
        "agents": 3,
        "last_heard_s": 0.5,
        "blind": ["x"],
    }


def test_what_ended_is_that_of_all() -> None:
    """A failed job is known to one replica, a closed finding to all: each is there once, the newest
    first."""
    failed = {"job": "a", "at": "2026-11-25T00:00:02Z", "kind": "failed", "text": "killed"}
    closed = {"job": "b", "at": "2026-11-25T00:00:01Z", "kind": "stall", "text": "stuck"}
    answers = [said() | {"ended": [closed]}, said() | {"ended": [failed, closed]}, said()]
    for order in permutations(answers):
        assert merged(*order)["ended"] == [failed, closed]
    with pytest.raises(ValueError, match="ended"):
        decode(json.dumps(said() | {"ended": [{"job": "a"}]}).encode(), Jobs)


def test_keys_of_a_newer_release_stay() -> None:
    """During an upgrade, a replica says more than this one knows."""
    answer = merged(said(), said(line("a", colour="red")))
    assert answer["jobs"] == [line("a", colour="red")]


def test_a_name_that_is_not_utf_8_arrives() -> None:
    """JSON has it as an escaped surrogate, which a strict parser refuses."""
    watching = b'{"jobs": 0, "ranks": 0, "agents": 0, "last_heard_s": null, "blind": []}'
    body = (
        b'{"at": "", "jobs": [{"job": "a\\udc80", "attempt": 0}], "warnings": [], "watching": '
        + watching
        + b', "ended": []}'
    )
    assert decode(body, Jobs)["jobs"] == [line("a\udc80")]
