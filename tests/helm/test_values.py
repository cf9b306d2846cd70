"""Values: what the schema accepts, and that schema, table and defaults agree."""

from __future__ import annotations

import base64
import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

import frd
from tests.helm import keys
from tests.helm.chart import CHART, ROOT, helm, render

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text("utf-8"))
KUBERNETES_OWN = {
    "affinity",
    "global",
    "limits",
    "podSecurityContext",
    "requests",
    "securityContext",
}
"""Objects that Kubernetes (or Helm) validates."""
WHOLE = {"podSecurityContext", "securityContext", "resources", "agent.resources"}
"""Shown in one row of the table."""
MAPS = {"dashboards.additionalLabels", "dashboards.annotations"}


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value and key not in WHOLE | MAPS:
            yield from leaves(value, f"{key}.")
        else:
            yield key, value


def nested(key: str, value: Any) -> dict[str, Any]:
    *sections, name = key.split(".")
    out: dict[str, Any] = {name: value}
    for section in reversed(sections):
        out = {section: out}
    return out


LEAVES = dict(leaves(VALUES))


@pytest.mark.parametrize("key", LEAVES)
def test_a_misspelt_value_is_refused_by_its_name(key: str) -> None:
    """With one extra letter in any key, Helm names the key."""
    section, _, name = f"{key}x".rpartition(".")
    with helm.Chart.load(CHART) as chart, pytest.raises(helm.HelmValuesError) as refused:
        chart.validate_schema(nested(f"{key}x", LEAVES[key]))
    assert f"'/{section.replace('.', '/')}'" in str(refused.value) or not section
    assert f"'{name}' not allowed" in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("config.policy.stall_after", 3, "stall_after"),
        ("config.policy.stall_after_s", 0, "stall_after_s"),
        ("config.grpc", "0.0.0.0:1", "grpc"),
        ("config.cluster.server", ["nats://n:4222"], "server"),
        ("config.cluster.member", "frd-0", "member"),
        ("replicas", 0, "replicas"),
        ("agent.config.pol_s", 1, "pol_s"),
        ("agent.config.service", "elsewhere:1", "service"),
        ("tls.source", "selfsigned", "source"),
        ("tls.source", "secret", "secretName"),
        ("service.grpcPort", 80, "grpcPort"),
        ("image.digest", "latest", "digest"),
        ("agent.daemonset.capabilities", ["SYS_ADMIN"], "capabilities"),
        ("agent.sidecar.capabilities", ["CAP_SYS_PTRACE"], "capabilities"),
        ("agent.sidecar.capabilities", ["DAC_OVERRIDE"], "capabilities"),
        ("agent.daemonset.serviceAccount.nmae", "x", "nmae"),
        ("image.registry", "/x", "registry"),
        ("podMonitor.namespaces", [""], "namespaces"),
        ("podMonitor.authorization", {"credentials": {"name": "agents"}}, "key"),
        ("extraObjects", [1], "extraObjects"),
        ("serviceMonitor.interval", "5", "interval"),
        ("serviceMonitor.findings.interval", "5", "interval"),
        ("persistence.enabled", "yes", "enabled"),
        ("ingress.enabled", True, "hosts"),
        ("extraVolumes", [{"name": "tmp", "emptyDir": {}}], "extraVolumes"),
        ("agent.extraVolumes", [{"name": "frd", "emptyDir": {}}], "extraVolumes"),
        ("extraEnv", [{"name": "A", "valeu": "1"}], "valeu"),
        ("extraEnv", [{"name": "A", "value": 1}], "value"),
        ("prometheusRule.additionalRuleLabels", {"severity": "page"}, "severity"),
        ("prometheusRule.additionalRuleLabels", {"a-b": "c"}, "a-b"),
        ("prometheusRule.alerts.FrdDwon", {"critical": {"enabled": False}}, "FrdDwon"),
        ("prometheusRule.alerts.FrdDown", {"warning": {"enabled": False}}, "warning"),
        ("prometheusRule.alerts.FrdDown", {"severity": "page"}, "severity"),
        ("prometheusRule.alerts.FrdDown.critical", {"for": "5"}, "for"),
        ("prometheusRule.alerts.FrdDown.critical", {"enable": False}, "enable"),
    ],
)
def test_a_value_that_cannot_work_is_refused(key: str, value: Any, named: str) -> None:
    """Unknown keys of frd, wrong types and wrong numbers fail before the installation."""
    with pytest.raises(helm.HelmValuesError, match=named):
        render(nested(key, value))


def test_the_schema_refuses_unknown_keys_of_frds_own_objects() -> None:
    """Only Kubernetes' own objects accept keys that the schema does not name."""

    def walk(part: dict[str, Any], name: str) -> None:
        if part.get("type") == "object" and name not in KUBERNETES_OWN:
            closed = part.get("additionalProperties")
            assert closed is False or "type" in (closed or {}), name
        for key, inner in part.get("properties", {}).items():
            walk(inner, key)

    walk(SCHEMA, "")
    for name, definition in SCHEMA["$defs"].items():
        walk(definition, name)


def test_the_schema_names_no_value_that_is_not_there() -> None:
    """values.yaml has every value of the schema, except the keys of frd itself."""

    def walk(part: dict[str, Any], values: dict[str, Any], prefix: str) -> None:
        for key, inner in part.get("properties", {}).items():
            assert key in values or key == "global", prefix + key
            if inner.get("type") == "object" and key != "global":
                walk(inner, values[key], f"{prefix}{key}.")

    walk(SCHEMA, VALUES, "")


def test_the_schema_knows_the_keys_that_the_code_has() -> None:
    """`config` and `agent.config` are as in the code, `prometheusRule.alerts` as in the rules.

    Else run python -m tests.helm.keys.
    """
    assert (CHART / "values.schema.json").read_text("utf-8") == keys.text()


def test_every_value_has_its_row() -> None:
    """The table of README.md lists all values in order, with their defaults."""
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \|", (CHART / "README.md").read_text(), re.M)
    assert [key for key, _ in rows] == list(LEAVES)
    for key, default in rows:
        assert default == "restricted" or json.loads(default.strip("`")) == LEAVES[key], key


def test_chart_and_package_have_one_version_and_home() -> None:
    """Chart.yaml has the version of this package and the URLs of pyproject.toml, and the icon is
    that of the web page."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert chart["appVersion"] == frd.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["urls"] == {"Homepage": chart["home"], "Source": chart["sources"][0]}
    assert chart["description"] == project["description"]
    kind, _, data = chart["icon"].partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(data) == (ROOT / "frd/web/favicon.svg").read_bytes()
