"""The shipped alert rules, by Prometheus' own tool."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RULES = sorted((ROOT / "helm/frd/rules").glob("*.yaml"))
TESTS = sorted((ROOT / "tests/rules").glob("*.test.yaml"))

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is absent (prometheus)"),
]


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rules", RULES, ids=lambda path: path.name)
def test_rules_are_valid(rules: Path) -> None:
    """Prometheus would load the file."""
    promtool("check", "rules", str(rules))


@pytest.mark.parametrize("tests", TESTS, ids=lambda path: path.name)
def test_alerts_fire_stay_and_resolve(tests: Path) -> None:
    """Each alert fires on its series, does not flap while a service restarts, and resolves."""
    promtool("test", "rules", str(tests))
