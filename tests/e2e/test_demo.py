"""`frd demo` as a user runs it: real torch ranks, a real agent and a real service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from frd.cli.commands.demo.scenarios import SCENARIOS

pytestmark = [pytest.mark.torch, pytest.mark.timeout(90)]


def demo(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "frd", "demo", *arguments],
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
        env=environment,
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.alone] if name in ("memory", "oom") else [])
        for name in SCENARIOS
    ],
)
def test_scenario_tells_the_injected_truth(name: str) -> None:
    """Every scenario ends with exit 0, and its JSON names exactly the injected ranks."""
    pytest.importorskip("torch")
    result = demo("--scenario", name, "--json")
    assert result.returncode == 0, result.stderr + result.stdout
    said = json.loads(result.stdout)
    truth = SCENARIOS[name].truth(4)
    if truth is None:
        assert said["findings"] == []
        return
    (finding,) = (f for f in said["findings"] if f["kind"] not in truth.besides)
    assert sorted(s["rank"] for s in finding["suspects"]) == list(truth.suspects)
    assert finding["victims"] == list(truth.victims)
    assert (finding["state"] == "closed") == SCENARIOS[name].recovers


def test_missing_rank_shows_the_line(tmp_path: Path) -> None:
    """The default scenario shows a person the stuck rank and the line in which it is stuck."""
    pytest.importorskip("torch")
    result = demo()
    assert result.returncode == 0, result.stderr + result.stdout
    assert "rank 2" in result.stdout
    assert "in load_batch" in result.stdout
    assert "frd_suspect{" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("next: `frd up` here, and in another")


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """After a demo no folder and no process of it remains."""
    pytest.importorskip("torch")
    own = os.environ | {"TMPDIR": str(tmp_path)}
    assert demo("--scenario", "missing_rank", "--json", environment=own).returncode == 0
    assert list(tmp_path.glob("frd-demo-*")) == []
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert str(tmp_path) not in listing.stdout


def test_scripted_ranks_stand_in_for_torch() -> None:
    """Where torch cannot be had, scripted ranks take its place and the truth is the same."""
    result = demo("--scenario", "missing_rank", "--json", "--scripted")
    assert result.returncode == 0, result.stderr + result.stdout
    assert "scripted" in result.stderr
