"""`frd findings` says so if no agent watches, because "no findings" then means nothing."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from frd.cli import BLIND, FAILED, FINDINGS_PRESENT
from frd.cli.client import Client
from frd.cli.commands.findings.people import said_by
from tests.world.daemons import STEADY, Stage, findings, frd, until

pytestmark = [pytest.mark.torch, pytest.mark.recorder, pytest.mark.timeout(300)]

WATCHING = "watching 1 job, 2 ranks, 1 agent; last heard "


@pytest.mark.long
def test_an_agent_is_killed_under_a_healthy_job() -> None:
    """Before the agent starts, while it watches, after it is killed, and after its restart: four
    answers of `frd findings` about one healthy job, which steps on all the time; no collective
    counts twice. Then one of its ranks is stopped, and a user closes the finding by hand: it does
    not open again, and a replay agrees. At last the service is killed: the agent ends well, and the
    ranks run on."""
    with Stage(STEADY, 2, 3.0) as stage:
        addresses = stage.start_service()
        client, command = Client(addresses.http), ("findings", "--http", addresses.http)

        def watching() -> dict[str, Any]:
            seen: dict[str, Any] = client.get("/api/v1/findings")["watching"]
            return seen

        def group() -> dict[str, Any]:
            (seen,) = client.get("/api/v1/jobs/demo-steady")["groups"]
            return dict(seen)

        before = frd(*command)
        assert before.returncode == BLIND
        assert "blind: no agent has connected since the service started" in before.stderr
        stage.start_agent(addresses)
        stage.start_job()

        until(lambda: watching()["ranks"] == 2 and not watching()["blind"], str(watching()))
        well = frd(*command)
        assert well.returncode == 0
        assert well.stdout == ""
        assert well.stderr.startswith(f"no findings\n{WATCHING}")
        typo = frd(*command, "--job", "TYPO")
        assert (typo.returncode, typo.stdout) == (FAILED, "")
        assert typo.stderr == (
            "frd: error: job: 'TYPO': unknown to this service: it knows 'demo-steady'\n"
        )

        stage.process("agent").kill()
        stage.process("agent").wait()
        until(lambda: watching()["blind"])
        blind = frd(*command)
        assert blind.returncode == BLIND
        shown = " ".join(blind.stderr.split())
        assert "no findings, but frd does not see everything blind: demo-steady: " in shown
        assert "is gone, last heard" in shown
        assert "no agent watches ranks 0-1" in shown
        assert "blind: demo-steady" in frd("status", "--http", addresses.http).stderr

        stage.start_agent(addresses)
        until(lambda: watching()["ranks"] == 2 and not watching()["blind"])
        assert frd(*command).returncode == 0
        resumed = group()["completed"]
        until(lambda: group()["completed"] > resumed + 200, "more steps")
        assert group()["matched"] <= group()["completed"]
        assert all(rank.poll() is None for rank in stage.ranks)
        assert findings(client) == []

        _close_by_hand(stage, client)

        stage.process("service").kill()
        stage.process("agent").terminate()
        assert stage.process("agent").wait(10) == 0
        assert all(rank.poll() is None for rank in stage.ranks)


def _close_by_hand(stage: Stage, client: Client) -> None:
    http = client.address
    stage.ranks[1].send_signal(signal.SIGSTOP)
    (finding,) = until(lambda: findings(client))
    whole = frd("findings", finding["id"][:8], "--http", http)
    assert whole.returncode == FINDINGS_PRESENT
    assert "opened 20" in whole.stdout
    closed = frd("findings", "close", finding["id"], "--because", "I stopped it", "--http", http)
    assert closed.returncode == 0, closed.stderr
    at = _waited_s(client)
    until(lambda: _waited_s(client) > at + 4)
    lasts = frd("findings", "--http", http)  # the job is stopped
    assert lasts.returncode == FINDINGS_PRESENT
    assert lasts.stdout.split("\t")[:3] == [finding["id"], "stall", "goes on"]
    said = f"closed by {said_by()} (unverified): I stopped it"
    stage.ranks[1].send_signal(signal.SIGCONT)
    replayed = frd("replay", str(stage.folder / "data" / "journal"), "--json")
    found: list[dict[str, Any]] = json.loads(replayed.stdout)["findings"]
    assert [(f["id"], f["close_reason"]) for f in found] == [(finding["id"], said)]


def _waited_s(client: Client) -> float:
    """How long the rank that runs has waited for the other one."""
    ranks = client.get("/api/v1/jobs/demo-steady")["ranks"]
    return float(max(rank["waiting_s"] for rank in ranks))
