"""Jobs on a backend that torch's FlightRecorderHook records, from the real rank to the finding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import Scenario
from tests.hooks.backend import FORMS, library, why_not
from tests.world.daemons import JOBS, Stage, findings, opened_s, throughout, until, watched

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(180),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "can be built"),
]
STALL_AFTER_S: Final = 4.0
LONGEST_S: Final = 15.0
"""From a stall to the finding, on a busy machine."""
STAYS_S: Final = 3.0
TRUTH: Final[Mapping[str, tuple[str, Mapping[int, str]]]] = {
    "absent": ("stall", {2: "cpu_stuck"}),
    "crossed": ("order", {0: "order", 1: "order"}),
    "size": ("mismatch", {2: "mismatch"}),
    "killed": ("rank_lost", {2: "exited"}),
    "receive": ("order", {0: "order", 1: "order"}),
    "pipeline": ("stall", {0: "cpu_stuck"}),
}
"""By fault: the kind of the finding, and the reason by suspect."""
_ON_GLOO: Final = {
    **{fault: TRUTH[fault] for fault in ("absent", "crossed", "killed")},
    "receive": ("stall", {1: "cpu_stuck"}),
}
"""Gloo ends a rank that gets another size, and does not record receives."""
TRUTHS: Final = {
    "late": TRUTH,
    "issue": {**_ON_GLOO, "size": TRUTH["size"]},  # no entry shows that a receive has not ended
    "gloo": _ON_GLOO,
}


@dataclass
class Watch:
    """All that the service claimed about a job, at any time."""

    stage: Stage
    client: Client
    now: list[dict[str, Any]] = field(default_factory=list)
    claims: set[tuple[str, int, str, str]] = field(default_factory=set)
    """Kind, suspect, reason, confidence."""

    def look(self) -> None:
        self.now = findings(self.client)
        for one in self.now:
            for each in one["suspects"]:
                self.claims.add((one["kind"], each["rank"], each["reason"], each["confidence"]))

    def named(self, kind: str, suspects: Mapping[int, str]) -> dict[str, Any] | None:
        """The right finding, if it is the only one."""
        self.look()
        if len(self.now) != 1 or self.now[0]["kind"] != kind or reasons(self.now[0]) != suspects:
            return None
        return self.now[0]

    def __str__(self) -> str:
        logs = "\n".join(self.stage.log(f"rank{rank}")[-500:] for rank in range(4))
        summaries = [one["summary"] for one in self.now]
        return f"{summaries}\n{sorted(self.claims)}\n{self.stage.log('agent')[-800:]}\n{logs}"

    def took_s(self, finding: Mapping[str, Any]) -> float:
        """From the fault, by the rank's clock, to the finding."""
        logs = "".join(self.stage.log(f"rank{rank}") for rank in range(4))
        return opened_s(finding) - min(int(at) for at in re.findall(r"hangs at (\d+)", logs)) / 1e9


def reasons(finding: Mapping[str, Any]) -> dict[int, str]:
    return {suspect["rank"]: suspect["reason"] for suspect in finding["suspects"]}


def scenario(fault: str) -> Scenario:
    return Scenario(fault, fault, str(JOBS / "hooked.py"))


def check(fault: str, backend: str) -> None:
    """The fault is named, and at no time an innocent rank with confidence high, or an op in which
    a rank is alone because completion came late."""
    arguments = [fault, backend, "" if backend == "gloo" else str(library())]
    with watched(scenario(fault), 4, STALL_AFTER_S, arguments) as (stage, client):
        seen = Watch(stage, client)
        truth = TRUTHS[backend][fault]
        named = until(lambda: seen.named(*truth), lambda: str(seen))
        throughout(STAYS_S, seen.look)
        took_s = seen.took_s(named)
        print(f"{fault:8} {backend:5} {took_s:5.1f} s: {named['summary']}")
        assert seen.named(*truth), str(seen)
        assert not [claim for claim in seen.claims if claim[2] == "in_collective_alone"]
        assert not [one for one in seen.claims if one[3] == "high" and one[1] not in truth[1]]
        if backend == "issue" and truth[0] in ("stall", "order"):
            assert {each["confidence"] for each in named["suspects"]} == {"medium"}
        assert took_s < STALL_AFTER_S + LONGEST_S


@pytest.mark.parametrize(
    ("fault", "form"),
    [(fault, form) for form in FORMS for fault in TRUTHS[form]],
)
def test_a_hang_is_named(fault: str, form: str) -> None:
    check(fault, form)


@pytest.mark.soak
@pytest.mark.parametrize("fault", TRUTHS["gloo"])
def test_the_same_hang_on_gloo(fault: str) -> None:
    """For comparison of the seconds that it takes."""
    check(fault, "gloo")


@pytest.mark.parametrize("form", FORMS)
def test_a_healthy_job_has_no_finding(form: str) -> None:
    """Completion comes late or never, and all ranks pause for longer than the threshold of a
    stall now and then."""
    with watched(scenario("healthy"), 4, STALL_AFTER_S, ["healthy", form, str(library())]) as (
        stage,
        client,
    ):
        seen = Watch(stage, client)
        until(lambda: client.get("/api/v1/jobs")["jobs"], lambda: str(seen))
        throughout(30.0, seen.look)
        assert not seen.now, str(seen)


@pytest.mark.soak
@pytest.mark.parametrize("form", FORMS)
def test_a_straggler(form: str) -> None:
    """Rank 2 is late by 100 ms in each step: it alone is named, or no rank, because the ends of
    ops are found up to a second late or never."""
    policy = {"straggler_window_s": 9.0, "straggler_min_lost_s": 0.5}
    late = Scenario("stragglers", "a rank is late", str(JOBS / "hooked.py"), policy=policy)
    arguments = ["stragglers", form, str(library())]
    with watched(late, 4, 10.0, arguments) as (stage, client):
        seen = Watch(stage, client)
        throughout(35.0, seen.look)
        print(f"straggler {form}: {[one['summary'] for one in seen.now]} {sorted(seen.claims)}")
        assert {claim[1] for claim in seen.claims} <= {2}, str(seen)
