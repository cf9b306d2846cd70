"""The service's configuration: defaults < TOML file < FRD_* environment < flags.

Each key is defined once. Its type carries its bounds, and pydantic checks every source against it.
Every mistake is found at start and raised as one `ConfigError` that begins with the key's name. No
other module reads a configuration file, the environment or a flag.

In the environment, two underscores separate section and key: ``FRD_POLICY__STALL_AFTER_S``. Other
``FRD_*`` variables (of the tap, the agent, Kubernetes' service links) are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from frd import config_loader
from frd.config.checks import checked
from frd.config.settings import (
    ENV_DELIMITER,
    ENV_PREFIX,
    ClusterOptions,
    Config,
    NotifyEvent,
    NotifyTarget,
    TlsFiles,
    as_dict,
    as_toml,
    keys,
    own_url,
    public_url,
)
from frd.config_loader import unknown
from frd.errors import ConfigError

__all__ = [
    "ClusterOptions",
    "Config",
    "NotifyEvent",
    "NotifyTarget",
    "TlsFiles",
    "as_dict",
    "as_toml",
    "keys",
    "load",
    "own_url",
    "public_url",
]


def load(path: Path | None = None, flags: Mapping[str, Any] | None = None) -> Config:
    """The effective configuration.

    `flags` maps dotted keys (``policy.stall_after_s``) to values; None means: not given.

    Raises:
        ConfigError: the file cannot be read, a key is unknown or a value cannot be used.
    """
    _refuse_unknown_variables(os.environ)
    given = config_loader.load(Config, path, flags, known=_near_keys, is_secret=_is_secret)
    return checked(given)


def _refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    known = set(keys())
    for variable in sorted(environment):
        name = variable.upper().removeprefix(ENV_PREFIX)
        if name == variable.upper() or ENV_DELIMITER not in name:
            continue
        key = name.lower().replace(ENV_DELIMITER, ".")
        if key.partition(".")[0] == "expected_agents":
            raise ConfigError(
                f"expected_agents: {variable}: case is lost in a variable's name: "
                f"set {ENV_PREFIX}EXPECTED_AGENTS to a JSON object"
            )
        if key.partition(".")[0] == "notify":
            raise ConfigError(
                f"notify: {variable}: there may be several: "
                f"set {ENV_PREFIX}NOTIFY to a JSON array of objects"
            )
        if key not in known:
            raise ConfigError(f"{unknown(key, keys())} (environment: {variable})")


def _is_secret(key: tuple[int | str, ...]) -> bool:
    return key[:1] == ("notify",) and (len(key) < 3 or key[2] == "url")


def _near_keys(key: str) -> list[str]:
    section = key.rpartition(".")[0]
    if section.startswith("notify."):
        return [f"{section}.{part.name}" for part in fields(NotifyTarget)]
    return keys()
