"""A scripted HTTP API of the service, for tests of the commands."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.world.http_server import Reply, answering

FINDING = {
    "id": "ab12",
    "kind": "stall",
    "state": "open",
    "job": "train",
    "attempt": 0,
    "opened_at": "2026-11-20T10:00:00.123456Z",
    "closed_at": None,
    "suspects": [],
    "victims": [0, 1],
    "headline": "it hangs",
    "summary": "it hangs",
    "dump": "20261120-1",
}
JOB = {
    "job": "a/b",
    "attempt": 1,
    "world_size": 4,
    "ended": False,
    "groups": [
        {
            "group_id": "g",
            "group": "default_pg",
            "size": 4,
            "open": 1,
            "stalled": 1,
            "stall_s": 12.0,
            "matched": 6,
            "enqueued": 7,
            "completed": 6,
        }
    ],
    "ranks": [
        {
            "rank": rank,
            "node": "node7",
            "pid": 100 + rank,
            "state": "live",
            "detail": "",
            "as_of": "2026-11-20T10:00:00.123456Z",
            "age_s": 0.5,
            "waiting_in": "" if rank == 2 else "all_reduce #7 on default_pg",
            "waiting_s": 0.0 if rank == 2 else 12.0,
        }
        for rank in range(4)
    ],
    "memory": {
        "ranks": 4,
        "recent_every_s": 2.0,
        "series": [
            {
                "rank": 2,
                "kind": "host_used",
                "device": "",
                "used_bytes": 12 << 30,
                "capacity_bytes": 16 << 30,
                "recent_bytes": [None, 4 << 30, 8 << 30, 12 << 30],
            }
        ],
    },
    "nodes": [
        {
            "node": "node7",
            "boot_id": "b",
            "connected": True,
            "clock_state": "synchronized",
            "clock_reason": "",
            "clock_offset_s": -2.5,
            "clock_uncertainty_s": 0.00032,
            "clock_drift_ppm": 12.34,
            "clock_age_s": 0.7,
            "clock_steps": 1,
            "last_message_age_s": 0.4,
            "ranks": [0, 1],
        },
        {
            "node": "node8",
            "boot_id": "c",
            "connected": True,
            "clock_state": "unsynchronized",
            "clock_reason": "no exchange yet",
            "clock_offset_s": 0.0002,
            "clock_uncertainty_s": None,
            "clock_drift_ppm": 0.0,
            "clock_age_s": None,
            "clock_steps": 0,
            "last_message_age_s": 0.4,
            "ranks": [2, 3],
        },
    ],
    "findings": [FINDING],
}


WATCHING = {"jobs": 1, "ranks": 4, "agents": 2, "last_heard_s": 0.4, "blind": []}
GONE = "a/b: the agent on node8 is gone: start `frd-agent run` there"
BLIND_NOW = {**WATCHING, "ranks": 2, "agents": 1, "blind": [GONE]}
LINE = {
    "job": "a/b",
    "attempt": 1,
    "world_size": 4,
    "ended": False,
    "ranks": {"live": 4},
    "open_findings": 1,
    "last_heard_s": 0.5,
    "agents": 2,
}
ENDED = {
    **LINE,
    "job": "old",
    "ended": True,
    "ranks": {"exited": 1, "finished": 3},
    "open_findings": 0,
    "last_heard_s": 7500.0,
}


def answer(*findings: Any, watching: Any = WATCHING, **others: Any) -> dict[str, Any]:
    """As `/api/v1/findings` gives it."""
    at = "2026-11-20T10:03:10.000000Z"
    return {
        "api_version": 1,
        "at": at,
        "findings": list(findings),
        "watching": watching,
        "warnings": [],
        **others,
    }


def jobs_answer(*jobs: Any) -> dict[str, Any]:
    """As `/api/v1/jobs` gives it."""
    return {"api_version": 1, "jobs": list(jobs), "watching": WATCHING, "warnings": []}


def says_status(service: Service, *ended: Any, findings: Any = (FINDING,)) -> None:
    """One job that runs, and those that ended."""
    jobs = [LINE, *ended]
    service.says("/api/v1/jobs", jobs_answer(*jobs))
    service.says("/api/v1/jobs/a%2Fb", JOB)
    for query in ("state=open", "job=a%2Fb&state=open"):
        service.says(f"/api/v1/findings?{query}", answer(*findings))


class Service:
    """Answers by path; remembers paths and bodies of requests."""

    def __init__(self) -> None:
        self.address = ""
        self.stop: Callable[[], None]
        """Nothing listens at the address afterwards."""
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.asked: list[tuple[str, bytes]] = []
        self.headers: Mapping[str, str] = {}
        """Of the last request."""

    def says(self, path: str, value: object, status: int = 200) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.answers[path] = (status, data)

    def reply(self, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        self.asked.append((path, body))
        self.headers = headers
        missing = json.dumps({"error": "path: unknown: look elsewhere"}).encode()
        return Reply(*self.answers.get(path, (404, missing)))


@contextlib.contextmanager
def serving() -> Iterator[Service]:
    service = Service()
    with contextlib.ExitStack() as stack:
        service.address = f"127.0.0.1:{stack.enter_context(answering(service.reply))}"
        service.stop = stack.close
        yield service
