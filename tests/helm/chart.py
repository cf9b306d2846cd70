"""Renders the chart with Helm's own code, and checks its objects against their schemas.

Helm is a library here (helm-python-sdk). Its `Chart.render` does not pass on a cluster's version
and APIs, so `_render` calls the private function below it, which takes them.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.helm.crds import SCHEMAS

helm = pytest.importorskip("helm_python", reason="helm_python is absent (helm-python-sdk)")

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm/frd"
NEWEST = "1.37"
"""The newest version whose schemas kubernetes-validate has."""
OPERATOR = "monitoring.coreos.com/v1"
CERT_MANAGER = "cert-manager.io/v1"

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cluster:
    """The properties of a cluster that templates may ask for."""

    version: str = NEWEST
    apis: tuple[str, ...] = (OPERATOR, CERT_MANAGER)


@dataclass(frozen=True, slots=True)
class Rendered:
    objects: tuple[Object, ...]
    notes: str

    def of(self, kind: str) -> list[Object]:
        return [thing for thing in self.objects if thing["kind"] == kind]

    def one(self, kind: str, name: str = "") -> Object:
        """The only object of this kind, or the one with this name."""
        (found,) = (o for o in self.of(kind) if name in ("", o["metadata"]["name"]))
        return found

    def pod(self, kind: str = "StatefulSet") -> Object:
        """The pod's spec of the only object of this kind."""
        spec: Object = self.one(kind)["spec"]["template"]["spec"]
        return spec

    def pods(self) -> Iterator[tuple[str, Object]]:
        """The spec of every pod, with the name of the object that creates it."""
        for thing in self.objects:
            if thing["kind"] == "Pod":
                yield thing["metadata"]["name"], thing["spec"]
            elif "template" in thing.get("spec", {}):
                yield thing["metadata"]["name"], thing["spec"]["template"]["spec"]


def render(
    values: Mapping[str, Any] | None = None,
    *,
    cluster: Cluster = Cluster(),
    name: str = "frd",
    chart: Path = CHART,
) -> Rendered:
    """The objects and notes of `helm install`.

    Raises:
        helm.HelmValuesError: the schema refuses the values.
        helm.HelmRenderError: a template refuses them.
    """
    options = {
        "name": name,
        "namespace": "frd",
        "kube_version": f"v{cluster.version}.0",
        "api_versions": list(cluster.apis),
    }
    texts: dict[str, str] = json.loads(
        _render(chart, json.dumps(values or {}), json.dumps(options))
    )
    notes = texts.pop("frd/templates/NOTES.txt")
    objects = (thing for text in texts.values() for thing in yaml.load_all(text, yaml.CSafeLoader))
    return Rendered(tuple(thing for thing in objects if thing), notes)


@cache
def _render(path: Path, values: str, options: str) -> str:
    with helm.Chart.load(path) as chart:
        answer: str = helm._native.call_string("helm_render", chart._raw(), values, options)
    return answer


def recipe(values: Mapping[str, Any] | None = None) -> Object:
    """The part of a pod's spec that the notes ask users to add."""
    blocks = re.split(r"\n\n(?=\S)", render(values).notes)
    (block,) = (block for block in blocks if "containers:" in block)
    part: Object = yaml.safe_load(textwrap.dedent(block.partition("\n\n")[2]))
    return part


def containers(pod: Object) -> list[Object]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def check(thing: Object, version: str = NEWEST) -> None:
    """Check the object against its schema; raises the errors of jsonschema."""
    _check(json.dumps(thing, sort_keys=True), version)


@cache
def _check(text: str, version: str) -> None:
    thing = json.loads(text)
    if (schema := SCHEMAS.get((thing["apiVersion"], thing["kind"]))) is not None:
        jsonschema.Draft202012Validator(schema).validate(thing)
    else:
        kubernetes_validate.validate(thing, version, strict=True)
