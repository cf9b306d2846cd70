"""The shipped alert rules, by Prometheus' own tool."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from frd.model import Kind
from tests.world.daemons import run_program
from tests.world.prometheus import ROOT, documented

RULES = sorted((ROOT / "helm/frd/rules").glob("*.yaml"))
ALERTS = [
    rule
    for path in RULES
    for group in yaml.safe_load(path.read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
TESTS = sorted((ROOT / "tests/rules").glob("*.test.yaml"))

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is absent (prometheus)"),
]


def run(*command: str) -> None:
    done = run_program(command, env=os.environ | {"GOGC": "400"})  # else a third of it collects
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rules", RULES, ids=lambda path: path.name)
def test_rules_are_valid(rules: Path) -> None:
    """Prometheus would load the file."""
    run("promtool", "check", "rules", str(rules))


@pytest.mark.parametrize("tests", TESTS, ids=lambda path: path.name)
def test_alerts_fire_stay_and_resolve(tests: Path) -> None:
    """Each alert fires on its series, does not flap while a service restarts, and resolves."""
    run("promtool", "test", "rules", str(tests))


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_enough(rule: dict[str, Any]) -> None:
    """Each has a severity, what it says, a page and a runbook, of a finding a link to
    Alertmanager's form, too; and it stays up while scrapes are missed, every 2 s or every 15 s."""
    assert rule["labels"]["severity"]
    says = {"summary", "description", "page_url", "runbook_url"}
    of_finding = "kind, finding" in rule["expr"]
    assert set(rule["annotations"]) == says | ({"silence_url"} if of_finding else set())
    assert rule["keep_firing_for"] == ("30s" if "frd_finding_" in rule["expr"] else "1m")


def test_no_alert_of_a_finding_fires_while_it_is_silenced() -> None:
    """Every rule about findings rests, whatever their kind; lost telemetry is an alert by its
    counter."""
    of_findings = [rule["expr"] for rule in ALERTS if "frd_finding_" in rule["expr"]]
    assert set(Kind) - {Kind.TELEMETRY_GAP} == {
        kind
        for expression in of_findings
        for found in re.findall(r'kind=~?"([a-z_|]+)"', expression)
        for kind in found.split("|")
    }
    for expression in of_findings:
        assert "unless on (job, finding) frd_finding_silenced == 1" in expression


def test_every_alert_is_seen_to_fire_and_to_resolve() -> None:
    """The tests for promtool expect each alert at some time, and its absence at a later one."""
    fires: dict[str, int] = {}
    resolves: dict[str, int] = {}
    for path in TESTS:
        for test in yaml.safe_load(path.read_text("utf-8"))["tests"]:
            for number, seen in enumerate(test.get("alert_rule_test", ())):
                into = fires if seen.get("exp_alerts") else resolves
                into[seen["alertname"]] = max(into.get(seen["alertname"], 0), number)
    assert set(fires) == {rule["alert"] for rule in ALERTS}
    assert all(resolves[name] > 0 for name in fires)


@pytest.mark.skipif(shutil.which("amtool") is None, reason="amtool is absent (alertmanager)")
def test_the_documented_configurations_are_valid(tmp_path: Path) -> None:
    """Prometheus and Alertmanager would load what docs/metrics.md tells to write."""
    prometheus, alertmanager = tmp_path / "prometheus.yml", tmp_path / "alertmanager.yml"
    config = documented(prometheus.name)
    config["rule_files"] = [str(ROOT / path) for path in config["rule_files"]]
    prometheus.write_text(yaml.safe_dump(config))
    run("promtool", "check", "config", str(prometheus))
    alertmanager.write_text(yaml.safe_dump(documented(alertmanager.name)))
    run("amtool", "check-config", str(alertmanager))
