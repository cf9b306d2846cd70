"""The configuration as text."""

from __future__ import annotations

import json
from typing import Any

from frd.config.settings import Config
from frd.config_loader import NOT_SHOWN


def as_dict(config: Config) -> dict[str, Any]:
    """Plain values, in the order in which the keys are declared; secrets are not shown."""
    plain = config.model_dump(mode="json")
    for target in plain["notify"]:
        target["url"] = target["url"] and NOT_SHOWN
    return plain


def as_toml(config: Config) -> str:
    """A file that `load` reads back to the same configuration; secrets are left out."""
    plain = as_dict(config)
    targets = plain.pop("notify")
    lines = [f"{key} = {_toml(v)}" for key, v in plain.items() if not isinstance(v, dict)]
    for section, values in plain.items():
        if isinstance(values, dict):
            lines += ["", f"[{section}]"]
            lines += [_line(key, value) for key, value in values.items()]
    for target in targets:
        lines += ["", "[[notify]]", *(_line(key, value) for key, value in target.items())]
    return "\n".join(lines) + "\n"


def _line(key: str, value: object) -> str:
    if value is None:
        return f"# {key}: not set"
    if value == NOT_SHOWN:
        return f"# {key}: {NOT_SHOWN}"
    return f"{_toml_key(key)} = {_toml(value)}"


def _toml_key(key: str) -> str:
    return key if key.replace("_", "").isalnum() and key.isascii() else json.dumps(key)


def _toml(value: object) -> str:
    # A JSON number or string is a TOML one, but for DEL, which JSON leaves as it is.
    return json.dumps(value).replace("\x7f", "\\u007f")
