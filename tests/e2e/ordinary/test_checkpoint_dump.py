"""`frd dump` and `frd analyze` during a checkpoint: a rank that waits for a moment is not hung."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from frd.cli.commands.demo.scenarios import Scenario
from tests.world.daemons import JOBS, frd, until, watched

pytestmark = [pytest.mark.torch, pytest.mark.recorder, pytest.mark.timeout(240)]

STALL_AFTER_S = 60.0
"""Of the service: more than a busy machine needs for a dump."""
LASTED_S = 4.0


def analysis(code: int, *arguments: object) -> dict[str, Any]:
    result = frd("analyze", "--json", *arguments)
    assert result.returncode == code, result.stdout + result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def dump(http: str, folder: Path) -> Path:
    """Of the only job that runs."""
    result = frd("dump", "--http", http, "--stacks", "-o", folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == f"next: frd analyze {folder}"
    return folder


@pytest.mark.long
def test_a_checkpoint_is_no_hang_until_it_lasts(tmp_path: Path) -> None:
    """Rank 0 saves while rank 1 waits in a barrier. A first dump proves no hang, with and without
    the metadata of `frd dump`; a second one, seconds later, proves a hang if the threshold is that
    low; once rank 0 goes on there is no finding."""
    saving, started = tmp_path / "saving", tmp_path / "started"
    script = Scenario("checkpoint", "", str(JOBS / "checkpoint.py"))
    with watched(script, 2, STALL_AFTER_S, [str(saving), str(started)]) as (stage, client):

        def waits() -> bool:
            ranks = client.get(f"/api/v1/jobs/{stage.job}")["ranks"]
            return any("barrier" in rank["waiting_in"] for rank in ranks if rank["rank"] == 1)

        until(lambda: client.get("/api/v1/jobs")["jobs"], lambda: stage.log("rank0"))
        saving.touch()
        until(started.exists, lambda: stage.log("rank0"))
        until(waits)
        first, since_s = dump(client.address, tmp_path / "first"), time.monotonic()
        acquitted(first, stage.job)
        until(lambda: time.monotonic() > since_s + LASTED_S)
        second = dump(client.address, tmp_path / "second")
        convicted(first, second, stage.job)

        saving.unlink()
        until(lambda: not waits())
        assert analysis(0, dump(client.address, tmp_path / "third"))["findings"] == []


def acquitted(first: Path, job: str) -> None:
    """By the metadata of the folder, and by the times of the bare files."""
    shown = frd("analyze", first)
    assert shown.returncode == 0, shown.stdout
    words = " ".join(shown.stdout.split())
    assert "not proven: rank 0 had kept rank 1 waiting for" in words
    assert "in save); take another dump in a minute" in words
    assert "cpu_stuck" not in words
    report = analysis(0, first)
    assert report["stall_after_s"] == STALL_AFTER_S  # the service's, from the folder
    assert len(report["not_proven"]) == 1
    bare = shutil.copytree(first / job, first.parent / "bare")  # keeps the times of the files
    assert len(analysis(0, bare, "--stall-after", STALL_AFTER_S)["not_proven"]) == 1


def convicted(first: Path, second: Path, job: str) -> None:
    """By the second dump, by both, by a folder that holds both, and by both without the metadata of
    `frd dump`."""
    proof = ("--stall-after", LASTED_S)
    holding, bare = first.parent / "holding", first.parent / "files"
    for name, folder in (("b", first), ("a", second)):
        shutil.copytree(folder, holding / name)
        shutil.copytree(folder / job, bare / name)
    for folders, dumps in (
        ([second], 1),
        ([first, second], 2),
        ([holding], 2),
        ([bare / "a", bare / "b"], 2),
    ):
        report = analysis(3, *folders, *proof)
        (finding,) = report["findings"]
        (suspect,) = finding["suspects"]
        assert (suspect["rank"], suspect["reason"]) == (0, "cpu_stuck")
        assert finding["victims"] == [1]
        assert report["waited"][0]["at_least_s"] >= LASTED_S
        assert report["not_proven"] == []
        assert len(report["dumps"]) == dumps
