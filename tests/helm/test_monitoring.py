"""Monitors, rules and dashboards as the chart brings them to Prometheus and Grafana."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.chart import CHART, Object, Rendered, render

RULES = sorted((CHART / "rules").glob("*.yaml"))


def groups(rendered: Rendered) -> list[Object]:
    found: list[Object] = rendered.one("PrometheusRule")["spec"]["groups"]
    return found


def test_the_rules_are_the_files() -> None:
    """Every group of every file is there, in order, unchanged."""
    files = [yaml.safe_load(path.read_text("utf-8")) for path in RULES]
    assert groups(render()) == [group for file in files for group in file["groups"]]


def test_runbooks_can_be_put_where_operators_read() -> None:
    """A prefix makes the relative addresses of runbooks whole, and changes nothing else."""
    prefixed = groups(render({"prometheusRule": {"runbookUrlPrefix": "git/frd/"}}))
    for group, plain in zip(prefixed, groups(render()), strict=True):
        for rule, before in zip(group["rules"], plain["rules"], strict=True):
            url = before["annotations"]["runbook_url"]
            annotations = before["annotations"] | {"runbook_url": f"git/frd/{url}"}
            assert rule == before | {"annotations": annotations}


@pytest.mark.prometheus
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is absent (prometheus)")
def test_prometheus_takes_the_rendered_rules(tmp_path: Path) -> None:
    """What the operator would write to disk passes promtool."""
    spec = render().one("PrometheusRule")["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(spec))
    command = ["promtool", "check", "rules", str(tmp_path / "rules.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PodMonitor"])
def test_the_job_label_stays_the_training_job(kind: str) -> None:
    """Without honorLabels the alerts would name the scrape job."""
    spec = render().one(kind)["spec"]
    (endpoint,) = spec.get("endpoints") or spec["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True


def test_prometheus_shows_the_readers_token_and_checks_the_certificate() -> None:
    """The Secrets and keys that the monitor names exist, under the name in the certificate."""
    rendered = render()
    (endpoint,) = rendered.one("ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["tlsConfig"]["serverName"]) == ("https", "frd.frd.svc")
    for named in (endpoint["tlsConfig"]["ca"]["secret"], endpoint["authorization"]["credentials"]):
        assert named["key"] in rendered.one("Secret", named["name"])["data"]


def test_an_insecure_service_is_scraped_in_plain_text() -> None:
    """Neither a certificate nor a token is asked of a service that has none."""
    (endpoint,) = render({"insecure": True}).one("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["scheme"] == "http"
    assert not {"tlsConfig", "authorization"} & set(endpoint)


def with_dashboards(folder: Path, dashboards: dict[str, Any]) -> Path:
    chart = folder / "frd"
    shutil.copytree(CHART, chart)
    shutil.rmtree(chart / "dashboards", ignore_errors=True)
    (chart / "dashboards").mkdir()
    for name, dashboard in dashboards.items():
        (chart / "dashboards" / name).write_text(json.dumps(dashboard, indent=2))
    return chart


def test_each_dashboard_is_a_config_map(tmp_path: Path) -> None:
    """Names are made fit, Grafana's own braces stay, and the sidecar's label is on it."""
    dashboards = {
        "job_overview.json": {"title": "Job {{job}}", "legend": "{{ rank }}"},
        "health.json": {"title": "Health"},
    }
    rendered = render(chart=with_dashboards(tmp_path, dashboards))
    for name, object_name in (("job_overview.json", "job-overview"), ("health.json", "health")):
        found = rendered.one("ConfigMap", f"frd-dashboard-{object_name}")
        assert json.loads(found["data"][name]) == dashboards[name]
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_a_chart_without_dashboards_is_whole(tmp_path: Path) -> None:
    """An empty folder brings none."""
    rendered = render(chart=with_dashboards(tmp_path, {}))
    assert [thing["metadata"]["name"] for thing in rendered.of("ConfigMap")] == ["frd"]


def test_the_shipped_dashboards_fit() -> None:
    """Every file is there, byte for byte, below what a ConfigMap may hold."""
    files = {path.name: path.read_text("utf-8") for path in (CHART / "dashboards").glob("*.json")}
    shipped: dict[str, str] = {}
    for found in render().of("ConfigMap"):
        if found["metadata"]["labels"]["app.kubernetes.io/component"] == "dashboard":
            shipped |= found["data"]
    assert shipped == {name: text.strip() for name, text in files.items()}
    assert all(len(text) < 1_000_000 for text in files.values())
