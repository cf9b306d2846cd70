"""Monitors, rules and dashboards of the chart, for Prometheus and Grafana."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.chart import CHART, Object, Rendered, render
from tests.world.daemons import run_program

RULES = sorted((CHART / "rules").glob("*.yaml"))


def groups(rendered: Rendered) -> list[Object]:
    found: list[Object] = rendered.one("PrometheusRule")["spec"]["groups"]
    return found


LOCAL = "http://127.0.0.1:9374/"
"""Base URL of pages and runbooks in the files of the chart."""
IN_CLUSTER = "https://frd.frd.svc:9374/"


@pytest.mark.parametrize(
    ("values", "base", "runbooks"),
    [
        ({}, IN_CLUSTER, ""),
        ({"insecure": True, "service": {"httpPort": 8080}}, "http://frd.frd.svc:8080/", ""),
        ({"runbookUrl": "https://git/docs/runbooks"}, IN_CLUSTER, "https://git/docs/runbooks/"),
        ({"runbookUrl": "https://frd/runbooks/"}, IN_CLUSTER, "https://frd/runbooks/"),
        ({"runbookUrl": f"{LOCAL}runbooks"}, IN_CLUSTER, f"{LOCAL}runbooks/"),
        (
            {"ingress": {"enabled": True, "hosts": ["frd.example"], "tls": [{"secretName": "w"}]}},
            "https://frd.example/",
            "",
        ),
        (
            {"ingress": {"enabled": True, "hosts": ["frd.example", "b.example"]}},
            "http://frd.example/",
            "",
        ),
        (
            {
                "ingress": {"enabled": True, "hosts": ["frd.example"]},
                "config": {"public_url": "https://watch.example:8443/"},
            },
            "https://watch.example:8443/",
            "",
        ),
    ],
)
def test_the_rules_are_the_files_with_links_of_this_release(
    values: dict[str, Any], base: str, runbooks: str
) -> None:
    """Every group of every file is present, in order; only the links to pages and runbooks change,
    both to the same address unless the values name another one for runbooks."""
    expected = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    for group in expected:
        for rule in group["rules"]:
            texts = rule["annotations"]
            assert texts["page_url"].startswith(LOCAL)
            texts["page_url"] = texts["page_url"].replace(LOCAL, base)
            texts["runbook_url"] = f"{runbooks or f'{base}runbooks/'}{rule['alert']}.md"
    assert groups(render(values)) == expected


def test_without_the_page_no_alert_leads_to_it() -> None:
    """With `config.web` off, the rules are the same but for the links to pages."""
    expected = groups(render())
    for group in expected:
        for rule in group["rules"]:
            del rule["annotations"]["page_url"]
    assert groups(render({"config": {"web": False}})) == expected


RULE_CHANGES: dict[str, Any] = {
    "additionalRuleLabels": {"team": "training", "note": "{{ $labels.job }}"},
    "alerts": {
        "FrdCollectiveStalled": {
            "warning": {"enabled": False},
            "critical": {"for": "2m", "severity": "page"},
        },
        "FrdMemoryFirstCause": {"critical": {"severity": "warning"}},
        "FrdBlind": {"warning": {"for": "10m"}, "critical": {"for": "0s"}},
        "FrdTelemetryGap": {"warning": {"enabled": False}},
    },
}


def test_rules_change_as_the_values_say() -> None:
    """By alert and shipped severity: off, later, or another severity; other rules are unchanged."""
    shipped = {
        (rule["alert"], rule["labels"]["severity"]): rule
        for group in groups(render())
        for rule in group["rules"]
    }
    changes = {
        (alert, severity): change
        for alert, by_severity in RULE_CHANGES["alerts"].items()
        for severity, change in by_severity.items()
    }
    assert changes.keys() <= shipped.keys()
    expected = []
    for key, rule in shipped.items():
        change = changes.get(key, {})
        if change.get("enabled", True):
            severity = {"severity": change.get("severity", key[1])}
            labels = RULE_CHANGES["additionalRuleLabels"] | severity
            wait = {"for": change["for"]} if "for" in change else {}
            expected.append(rule | wait | {"labels": labels})
    (group,) = groups(render({"prometheusRule": RULE_CHANGES}))
    assert group["rules"] == expected
    assert len(expected) == len(shipped) - 2
    assert (group["name"], group["interval"]) == ("frd", "5s")


def test_with_all_rules_off_there_is_no_rule_object() -> None:
    """The operator would refuse a PrometheusRule without rules."""
    off: dict[str, dict[str, Any]] = {}
    for group in groups(render()):
        for rule in group["rules"]:
            severities = off.setdefault(rule["alert"], {})
            severities[rule["labels"]["severity"]] = {"enabled": False}
    assert not render({"prometheusRule": {"alerts": off}}).of("PrometheusRule")


@pytest.mark.prometheus
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is absent (prometheus)")
@pytest.mark.parametrize("values", [{}, {"prometheusRule": RULE_CHANGES}], ids=["shipped", "mine"])
def test_prometheus_takes_the_rendered_rules(values: dict[str, Any], tmp_path: Path) -> None:
    """promtool accepts the rules that the operator would write to disk."""
    spec = render(values).one("PrometheusRule")["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(spec))
    command = ["promtool", "check", "rules", str(tmp_path / "rules.yaml")]
    done = run_program(command)
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_value_labels_all_that_prometheus_selects() -> None:
    """Only monitors and rules have the label; without the value the notes mention it."""
    rendered = render({"monitoring": {"labels": {"release": "prom"}}})
    labelled = {o["kind"] for o in rendered.objects if "release" in o["metadata"]["labels"]}
    assert labelled == {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    assert "monitoring.labels" not in rendered.notes
    assert "--set monitoring.labels.release=" in render().notes


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PodMonitor"])
def test_the_job_label_stays_the_training_job(kind: str) -> None:
    """Without honorLabels the label `job` of alerts would be the scrape job."""
    spec = render().one(kind)["spec"]
    (endpoint,) = spec.get("endpoints") or spec["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True


def test_the_pod_monitor_is_where_and_looks_where_the_values_say() -> None:
    """By default it is in the release's namespace and finds agents of all, without a token."""
    monitor = render().one("PodMonitor")
    assert monitor["metadata"]["namespace"] == "frd"
    assert monitor["spec"]["namespaceSelector"] == {"any": True}
    assert "authorization" not in monitor["spec"]["podMetricsEndpoints"][0]
    token = {"type": "Bearer", "credentials": {"name": "agents", "key": "token"}}
    given = {"namespace": "monitoring", "namespaces": ["a", "b"], "authorization": token}
    rendered = render({"podMonitor": given})
    monitor = rendered.one("PodMonitor")
    assert monitor["metadata"]["namespace"] == "monitoring"
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["a", "b"]}
    assert monitor["spec"]["podMetricsEndpoints"][0]["authorization"] == token
    assert rendered.one("ServiceMonitor")["metadata"]["namespace"] == "frd"


def test_prometheus_shows_the_readers_token_and_checks_the_certificate() -> None:
    """The Secrets and keys of the monitor exist, and its server name is in the certificate."""
    rendered = render()
    (endpoint,) = rendered.one("ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["tlsConfig"]["serverName"]) == ("https", "frd.frd.svc")
    for named in (endpoint["tlsConfig"]["ca"]["secret"], endpoint["authorization"]["credentials"]):
        assert named["key"] in rendered.one("Secret", named["name"])["data"]


def test_an_insecure_service_is_scraped_in_plain_text() -> None:
    """The monitor of a service without TLS and tokens has neither."""
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
    """Names are valid, Grafana's braces stay, and the ConfigMap has the sidecar's label."""
    dashboards = {
        "job_overview.json": {"title": "Job {{job}}", "legend": "{{ rank }}"},
        "health.json": {"title": "Health"},
    }
    rendered = render(chart=with_dashboards(tmp_path, dashboards))
    for name, object_name in (("job_overview.json", "job-overview"), ("health.json", "health")):
        found = rendered.one("ConfigMap", f"frd-dashboard-{object_name}")
        assert json.loads(found["data"][name]) == dashboards[name]
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_a_chart_without_dashboards_renders(tmp_path: Path) -> None:
    """An empty folder gives no ConfigMap."""
    rendered = render(chart=with_dashboards(tmp_path, {}))
    assert [thing["metadata"]["name"] for thing in rendered.of("ConfigMap")] == ["frd"]


def test_the_shipped_dashboards_fit() -> None:
    """Every file is present, with changed links to pages and runbooks, and fits a ConfigMap."""
    files = {
        path.name: path.read_text("utf-8").replace(LOCAL, IN_CLUSTER)
        for path in (CHART / "dashboards").glob("*.json")
    }
    assert files
    shipped: dict[str, str] = {}
    for found in render().of("ConfigMap"):
        if found["metadata"]["labels"]["app.kubernetes.io/component"] == "dashboard":
            shipped |= found["data"]
    assert shipped == {name: text.strip() for name, text in files.items()}
    assert all(len(text) < 1_000_000 for text in files.values())
