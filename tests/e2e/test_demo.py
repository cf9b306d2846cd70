"""`frd demo` as a user runs it: real torch ranks, a real agent and a real service."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from frd.cli.commands.demo.scenarios import SCENARIOS
from tests.world.daemons import frd, run_program

pytestmark = [pytest.mark.torch, pytest.mark.timeout(150)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Shorter than `tmp_path`: the path of a unix socket may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="frd-") as name:
        yield Path(name)


WITH_TORCH = ("missing_rank", "starved")
"""Scenarios that `make test` plays with real ranks; `test_missing_rank_shows_the_line` plays the
first."""
OF_MEMORY = ("memory", "oom")


def marks(name: str) -> list[pytest.MarkDecorator]:
    if name in OF_MEMORY:
        return [pytest.mark.alone, pytest.mark.soak]
    return [] if name == "starved" else [pytest.mark.soak]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in SCENARIOS])
def test_scenario_names_the_injected_ranks(name: str, folder: Path) -> None:
    """Every scenario ends with exit 0, its JSON names exactly the injected ranks, and afterwards no
    folder and no process of it remains."""
    check(name, folder)


@pytest.mark.parametrize("name", sorted(set(SCENARIOS).difference(WITH_TORCH, OF_MEMORY)))
def test_scripted_ranks_stand_in_for_torch(name: str, folder: Path) -> None:
    """Where torch is absent, scripted ranks take its place and the truth is the same."""
    assert "scripted" in check(name, folder, "--scripted")


def check(name: str, folder: Path, *arguments: str) -> str:
    """Returns what the demo wrote to stderr."""
    own = os.environ | {"TMPDIR": str(folder)}
    result = frd("demo", "--scenario", name, "--json", *arguments, env=own)
    assert result.returncode == 0, result.stderr + result.stdout
    findings = json.loads(result.stdout)["findings"]
    expected = SCENARIOS[name].expected
    if expected is None:
        assert findings == []
    else:
        (finding,) = (f for f in findings if f["kind"] not in expected.other_kinds)
        assert sorted(s["rank"] for s in finding["suspects"]) == expected.suspects(4)
        assert finding["victims"] == expected.victims(4)
        assert (finding["state"] == "closed") == SCENARIOS[name].recovers
    assert_nothing_is_left(folder)
    return result.stderr


def assert_nothing_is_left(folder: Path) -> None:
    assert list(folder.glob("frd-demo-*")) == []
    assert str(folder) not in run_program(["ps", "-eo", "args"], check=True).stdout


def test_missing_rank_shows_the_line(folder: Path) -> None:
    """The default scenario shows a person the stuck rank and the line in which it is stuck."""
    result = frd("demo", env=os.environ | {"TMPDIR": str(folder)})
    assert result.returncode == 0, result.stderr + result.stdout
    assert "rank 2" in result.stdout
    assert "in load_batch" in result.stdout
    assert "frd_suspect{" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("next: `frd up` here, and in another")
    assert_nothing_is_left(folder)
