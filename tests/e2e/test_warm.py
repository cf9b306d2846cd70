"""Warm starts, with which most tests start real ranks and daemons: neither what frd reports nor
what a program knows of its start depends on them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import SCENARIOS, Scenario
from tests.world.daemons import JOBS, exec_command, findings, until, watched
from tests.world.warm import Process, real_starts

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
RANKS = 3  # of which the third is the first cause of the hang
JOBS_OF_BOTH = {
    "a data loader is stuck": (SCENARIOS["missing_rank"], None),
    "a rank stays in eval": (Scenario("phased", "", str(JOBS / "phased.py")), []),
    "a rank raises": (Scenario("crash", "", str(JOBS / "endings.py")), ["crash"]),
}


@pytest.mark.recorder
@pytest.mark.long
@pytest.mark.parametrize("job", JOBS_OF_BOTH)
def test_the_verdict_is_the_same(job: str) -> None:
    """Of two equal jobs at one time, the one with warm and the other with real starts."""
    scenario, arguments = JOBS_OF_BOTH[job]
    with ExitStack() as stack:
        _, warm = stack.enter_context(watched(scenario, RANKS, 3.0, arguments))
        with real_starts():
            _, real = stack.enter_context(watched(scenario, RANKS, 3.0, arguments))
        until(
            lambda: claims(warm) and claims(warm) == claims(real),
            lambda: f"{findings(warm)}\nafter real starts: {findings(real)}",
        )


COLLECTIVE = ("group", "group_size", "seq", "waiting_ranks", "missing_ranks")
"""Not the op, which is unknown if its entry did not arrive before the end."""


def claims(client: Client) -> list[Any]:
    """What the findings claim, without times and numbers of processes."""
    return [
        {
            "kind": finding["kind"],
            "collective": [finding["collective"].get(key) for key in COLLECTIVE],
            "suspects": [suspect(of) for of in finding["suspects"]],
            "victims": finding["victims"],
        }
        for finding in findings(client)
    ]


def suspect(of: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "cause": [of["rank"], of["reason"], of["confidence"]],
        "stack": own(of["stack"]),
        "raised": re.findall(r"raised [^)]*\)", of["evidence"]),
        "waits for": of.get("waits_for", {}).get("kind"),
        "phase": of.get("phase", {}).get("path"),
    }


def own(stack: list[str]) -> list[str]:
    """The frames of the program."""
    return [frame for frame in stack if not frame.startswith("warm_parent.py")]


@pytest.mark.parametrize(("end", "status"), [("3", 3), ("raise", 1), ("kill", -9)])
def test_a_program_knows_no_difference(end: str, status: int, tmp_path: Path) -> None:
    """Arguments, variables, streams, folder, session, parent and the way in which it ends."""
    script = [sys.executable, str(JOBS / "facts.py"), end, "a b"]
    command = exec_command(tmp_path / "run", *script)

    def facts() -> tuple[Any, int, list[str]]:
        process = Process(
            command,
            env=os.environ | {"RANK": "7", "FRD_JOB": "facts"},
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        stdout, stderr = process.communicate("typed\n", timeout=60)
        said = [line for line in stderr.splitlines() if not line.startswith(" ")]
        return json.loads(stdout), process.returncode, said

    warm = facts()
    with real_starts():
        assert warm == facts()
    known, returned, _ = warm
    assert (returned, known["parent"], known["input"]) == (status, os.getpid(), "typed\n")
