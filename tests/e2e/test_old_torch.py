"""What frd says of a hang on the torch that the ranks have, whichever release that is.

The ranks run in the Python of FRD_RANK_PYTHON, which needs torch only; all else in this one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import Scenario
from tests.world.daemons import JOBS, Stage, finding_with, findings, frd, run_program, until

pytestmark = pytest.mark.torch
PYTHON = os.environ.get("FRD_RANK_PYTHON", sys.executable)
ABSENT = Scenario("absent", "rank 1 stays away, then raises", str(JOBS / "absent.py"), "")
RECORDS = "import torch._C._distributed_c10d as c; print(hasattr(c, '_dump_fr_trace_json'))"
UNREAD = "keeps no record of Gloo: use torch 2.10 or later"


class _Stage(Stage):
    def _rank_command(self) -> list[str]:
        command = super()._rank_command()
        command[command.index("--") + 1] = PYTHON
        return command


def said(*arguments: object) -> tuple[int, str]:
    """Exit code and words."""
    done = frd(*arguments)
    return done.returncode, " ".join(f"{done.stdout} {done.stderr}".split())


def test_a_hang_is_named_or_the_job_is_blind(tmp_path: Path) -> None:
    """Rank 1 does not come to a collective. Where torch keeps a record of Gloo, a finding names it;
    else `frd findings`, `frd status` and `frd doctor` say that the collectives cannot be read, and
    which torch helps, and the exception by which the rank ends is found."""
    keeps = run_program([PYTHON, "-c", RECORDS], check=True).stdout.strip() == "True"
    now_raise = tmp_path / "raise"
    with _Stage(ABSENT, 2, 1.0, [str(now_raise)]) as stage:
        at = stage.start_service()
        client = Client(at.http)
        stage.start_agent(at)
        stage.start_job()
        if keeps:
            finding = finding_with(client, "suspects")
            assert [one["rank"] for one in finding["suspects"]] == [1]
            assert not client.get("/api/v1/jobs")["watching"]["blind"]
            return
        why = f"blind: {stage.job}: the collectives of ranks 0-1 cannot be read: torch"
        until(lambda: why in said("findings", "--http", at.http)[1], "a blind job")
        code, blind = said("findings", "--http", at.http)
        assert code == 4
        assert UNREAD in blind
        assert UNREAD in said("status", "--http", at.http)[1]
        doctor = ("doctor", "--http", at.http, "--run-dir", stage.run_dir, "--", PYTHON)
        assert UNREAD in said(*doctor)[1]
        assert findings(client) == []
        now_raise.touch()
        lost = finding_with(client, "suspects")
        assert (lost["kind"], lost["suspects"][0]["rank"]) == ("rank_lost", 1)
        assert "LookupError: no such shard" in str(lost)
        assert "absent.py:19" in str(lost)
