"""Schemas of the custom resources of the chart and the examples.

Kubernetes' own schemas have no custom resources, and the operators' definitions are long. These
schemas are written by hand and have only the fields that are used here. They find a misspelt or
misplaced field, not a violation of every rule of an operator.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

_STRING: Final[Schema] = {"type": "string", "minLength": 1}
_DURATION: Final[Schema] = {"type": "string", "pattern": "^([0-9]+(ms|[smhdwy]))+$"}
_STRINGS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}


def _object(required: str = "", /, **properties: Schema) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required.split(),
        "properties": properties,
    }


def _list(of: Schema) -> Schema:
    return {"type": "array", "minItems": 1, "items": of}


_KEY_OF_SECRET = _object("name key", name=_STRING, key=_STRING)
_RELABELING = _object(
    action=_STRING,
    regex=_STRING,
    replacement=_STRING,
    separator=_STRING,
    sourceLabels=_list(_STRING),
    targetLabel=_STRING,
)
_SCRAPE: Final = {
    "port": _STRING,
    "path": _STRING,
    "scheme": {"enum": ["http", "https"]},
    "interval": _DURATION,
    "scrapeTimeout": _DURATION,
    "honorLabels": {"const": True},
    "tlsConfig": _object("ca", ca=_object("secret", secret=_KEY_OF_SECRET), serverName=_STRING),
    "authorization": _object("credentials", type=_STRING, credentials=_KEY_OF_SECRET),
    "relabelings": _list(_RELABELING),
    "metricRelabelings": _list(_RELABELING),
}
_SELECTOR = _object(
    matchLabels=_STRINGS,
    matchExpressions=_list(
        _object("key operator", key=_STRING, operator=_STRING, values=_list(_STRING))
    ),
)
_NAMESPACES = _object(any={"type": "boolean"}, matchNames=_list(_STRING))
_RULE = _object(
    "expr",
    alert=_STRING,
    record=_STRING,
    expr=_STRING,
    **{"for": _DURATION, "keep_firing_for": _DURATION},
    labels=_STRINGS,
    annotations=_STRINGS,
)
_COUNT: Final[Schema] = {"type": "integer", "minimum": 1}
_JOB = _object("spec", spec={"type": "object"})
_REPLICAS = _object(
    "replicas template",
    replicas=_COUNT,
    restartPolicy={"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
    template={"type": "object"},
)


def _resource(api: str, kind: str, spec: Schema) -> Schema:
    metadata = _object(
        "name namespace",
        name=_STRING,
        namespace=_STRING,
        labels=_STRINGS,
        annotations=_STRINGS,
    )
    return _object(
        "apiVersion kind metadata spec",
        apiVersion={"const": api},
        kind={"const": kind},
        metadata=metadata,
        spec=spec,
    )


_SPECS: Final = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _object(
        "selector endpoints",
        selector=_SELECTOR,
        namespaceSelector=_NAMESPACES,
        endpoints=_list(_object("port", **_SCRAPE)),
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): _object(
        "selector podMetricsEndpoints",
        selector=_SELECTOR,
        namespaceSelector=_NAMESPACES,
        podMetricsEndpoints=_list(_object("port", **_SCRAPE)),
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): _object(
        "groups",
        groups=_list(
            _object("name rules", name=_STRING, interval=_DURATION, rules=_list(_RULE)),
        ),
    ),
    ("cert-manager.io/v1", "Certificate"): _object(
        "secretName issuerRef",
        secretName=_STRING,
        commonName={"type": "string", "minLength": 1, "maxLength": 64},
        dnsNames=_list(_STRING),
        ipAddresses=_list(_STRING),
        usages=_list({"enum": ["server auth", "client auth"]}),
        duration=_DURATION,
        renewBefore=_DURATION,
        privateKey=_object(
            algorithm={"enum": ["RSA", "ECDSA", "Ed25519"]},
            rotationPolicy={"enum": ["Always", "Never"]},
        ),
        issuerRef=_object("name", name=_STRING, kind=_STRING, group=_STRING),
    ),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): _object(
        "replicatedJobs",
        failurePolicy=_object(maxRestarts=_COUNT),
        replicatedJobs=_list(
            _object("name template", name=_STRING, replicas=_COUNT, template=_JOB)
        ),
    ),
    ("kubeflow.org/v1", "PyTorchJob"): _object(
        "pytorchReplicaSpecs",
        nprocPerNode=_STRING,
        elasticPolicy=_object(
            rdzvBackend={"enum": ["c10d", "etcd", "etcd-v2"]},
            minReplicas=_COUNT,
            maxReplicas=_COUNT,
        ),
        pytorchReplicaSpecs=_object(Master=_REPLICAS, Worker=_REPLICAS),
    ),
}
SCHEMAS: Final = {key: _resource(*key, spec) for key, spec in _SPECS.items()}
