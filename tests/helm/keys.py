"""The keys of frd's own configuration as the chart's schema knows them.

They are in `values.schema.json` under ``$defs``, so that Helm refuses a misspelt key by its name
before any pod starts. ``python -m tests.helm.keys`` generates them from the code, and the alerts
whose rules can be changed from the rule files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from frd import config
from frd_agent.config import Config as AgentConfig

CHART = Path(__file__).parents[2] / "helm/frd"
SCHEMA = CHART / "values.schema.json"
CHARTS_OWN = {"grpc", "http", "data_dir", "tls", "auth", "insecure"}
"""What the chart sets itself, in the service's file."""
CHARTS_OWN_OF_CLUSTER = {"member", "advertise_grpc", "advertise_http"}
"""What it sets itself in the section `cluster`."""
CHARTS_FLAGS = {"service", "run_dir", "dump_dir", "metrics", "job", "node", "insecure"}
"""The same for the agent, in addition to all keys that begin with tls or token."""
_NOISE = ("title", "default", "description")


def service_keys() -> dict[str, Any]:
    """The schema of `config`."""
    schema = _plain(config.Config.model_json_schema(), CHARTS_OWN)
    resolved: dict[str, Any] = _resolved(schema, schema.pop("$defs"))
    for key in CHARTS_OWN_OF_CLUSTER:
        del resolved["properties"]["cluster"]["properties"][key]
    return resolved


def agent_keys() -> dict[str, Any]:
    """The schema of `agent.config`."""
    schema = _plain(AgentConfig.model_json_schema(), CHARTS_FLAGS)
    for key in list(schema["properties"]):
        if key.startswith(("tls", "token")):
            del schema["properties"][key]
    return schema


def alerts() -> dict[str, Any]:
    """The schema of `prometheusRule.alerts`: each rule by its alert's name and its severity."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((CHART / "rules").glob("*.yaml")):
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]:
            for rule in group["rules"]:
                severities = found.setdefault(rule["alert"], {})
                severities[rule["labels"]["severity"]] = {"$ref": "#/$defs/rule"}
    return _closed({name: _closed(severities) for name, severities in found.items()})


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _plain(schema: dict[str, Any], without: set[str]) -> dict[str, Any]:
    kept = {key: part for key, part in schema.items() if key not in _NOISE}
    kept["properties"] = {
        key: part for key, part in schema["properties"].items() if key not in without
    }
    quiet: dict[str, Any] = _quiet(kept)
    return quiet


def _quiet(part: Any) -> Any:
    """Without what pydantic says for people; a property may well be called `title`."""
    match part:
        case {"properties": {**properties}}:
            rest = {key: _quiet(value) for key, value in part.items() if key not in _NOISE}
            return rest | {"properties": {key: _quiet(of) for key, of in properties.items()}}
        case dict():
            return {key: _quiet(value) for key, value in part.items() if key not in _NOISE}
        case list():
            return [_quiet(value) for value in part]
        case _:
            return part


def _resolved(part: Any, definitions: dict[str, Any]) -> Any:
    match part:
        case {"$ref": str(reference)}:
            return _resolved(definitions[reference.rpartition("/")[2]], definitions)
        case dict():
            return {key: _resolved(value, definitions) for key, value in part.items()}
        case list():
            return [_resolved(value, definitions) for value in part]
        case _:
            return part


def schema() -> dict[str, Any]:
    """The chart's schema with the keys as the code has them now."""
    written: dict[str, Any] = json.loads(SCHEMA.read_text("utf-8"))
    written["$defs"] |= {
        "alerts": alerts(),
        "service": service_keys(),
        "agent": agent_keys(),
    }
    return written


def text() -> str:
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(text(), "utf-8")
