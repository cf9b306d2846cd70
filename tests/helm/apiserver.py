"""The part of a Kubernetes API server that Helm needs to render Secrets against a cluster.

`helm template` uses no cluster, so only an installation against one shows what the chart keeps on
upgrade (`lookup`). No real API server runs here; this one serves the given Secrets, read-only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tests.helm.chart import Object, helm
from tests.world.http_server import Reply, answering

_KIND: Final = {"group": "", "kind": "Secret", "version": "v1"}
_CALL: Final = {
    "parameters": [{"name": "fieldValidation", "in": "query"}],
    "x-kubernetes-group-version-kind": _KIND,
}
_ANSWERS: Final[Mapping[str, Any]] = {
    "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "v1",
        "resources": [
            {"name": "secrets", "singularName": "secret", "namespaced": True, "kind": "Secret"}
            | {"verbs": ["get", "create", "patch"]}
        ],
    },
    "/openapi/v3": {"paths": {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1"}}},
    "/openapi/v3/api/v1": {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.33.0"},
        "paths": {
            "/api/v1/namespaces/{namespace}/secrets": {"post": _CALL, "patch": _CALL},
        },
    },
}
_ABSENT: Final = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound"}
_OWNED: Final = {"meta.helm.sh/release-name": "frd", "meta.helm.sh/release-namespace": "frd"}

Secrets = dict[tuple[str, str], Object]
"""By namespace and name."""


def install(chart: Path, values: Mapping[str, Any], present: Secrets) -> Secrets:
    """The Secrets that `helm install` sends to a cluster that has the Secrets `present`.

    Raises:
        helm.HelmError: the installation fails.
    """
    with _serving(present) as config, helm.Config(**config) as cluster:
        release = cluster.install(chart, "frd", dict(values), dry_run="server")
    sent = (thing for thing in yaml.safe_load_all(release["manifest"]) if thing)
    return {(s["metadata"]["namespace"], s["metadata"]["name"]): s for s in sent}


@contextmanager
def _serving(present: Secrets) -> Iterator[dict[str, str]]:
    """The options with which `helm.Config` finds the server."""
    answers = dict(_ANSWERS)
    for (namespace, name), secret in present.items():
        metadata = secret["metadata"] | {"annotations": _OWNED}
        answers[f"/api/v1/namespaces/{namespace}/secrets/{name}"] = secret | {"metadata": metadata}

    def answer(path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        found = answers.get(path.partition("?")[0])
        as_json = {"Content-Type": "application/json"}
        if found is None:
            return Reply(404, json.dumps(_ABSENT | {"code": 404}).encode(), as_json)
        return Reply(200, json.dumps(found).encode(), as_json)

    with answering(answer) as port:
        yield {
            "namespace": "frd",
            "storage_driver": "memory",
            "kubeconfig_content": _kubeconfig(f"http://127.0.0.1:{port}"),
        }


def _kubeconfig(address: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
    )
