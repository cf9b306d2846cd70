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


LOCAL = "http://127.0.0.1:9374/runbooks/"
"""Where the files of the chart have the runbooks."""


@pytest.mark.parametrize(
    ("values", "base"),
    [
        ({}, "https://frd.frd.svc:9374/runbooks/"),
        ({"insecure": True, "service": {"httpPort": 8080}}, "http://frd.frd.svc:8080/runbooks/"),
        ({"runbookUrl": "https://git/frd/docs/runbooks"}, "https://git/frd/docs/runbooks/"),
        ({"runbookUrl": "https://frd/runbooks/"}, "https://frd/runbooks/"),
    ],
)
def test_the_rules_are_the_files_with_links_of_this_release(
    values: dict[str, Any], base: str
) -> None:
    """Every group of every file is there, in order; only where runbooks lie is the release's."""
    texts = [path.read_text("utf-8").replace(LOCAL, base) for path in RULES]
    expected = [group for text in texts for group in yaml.safe_load(text)["groups"]]
    assert groups(render(values)) == expected
    for group in expected:
        for rule in group["rules"]:
            assert rule["annotations"]["runbook_url"] == f"{base}{rule['alert']}.md"


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
    """Every file is there but for its links to runbooks, below what a ConfigMap may hold."""
    files = {
        path.name: path.read_text("utf-8").replace(LOCAL, "https://frd.frd.svc:9374/runbooks/")
        for path in (CHART / "dashboards").glob("*.json")
    }
    assert files
    shipped: dict[str, str] = {}
    for found in render().of("ConfigMap"):
        if found["metadata"]["labels"]["app.kubernetes.io/component"] == "dashboard":
            shipped |= found["data"]
    assert shipped == {name: text.strip() for name, text in files.items()}
    assert all(len(text) < 1_000_000 for text in files.values())
