"""All keys of the configuration."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import BeforeValidator, Field
from pydantic_settings import SettingsConfigDict

from frd.config.sections import (
    AuthFiles,
    ClusterOptions,
    LogOptions,
    NotifyTarget,
    PeerLimits,
    StoreLimits,
    TlsFiles,
)
from frd.config_loader import Settings
from frd.engine.policy import Count, Policy

ENV_PREFIX: Final = "FRD_"
ENV_DELIMITER: Final = "__"


def _default_data_dir() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    # The XDG specification requires to ignore a relative path.
    base = Path(state) if os.path.isabs(state) else Path.home() / ".local/state"
    return base / "frd"


def _listed(value: object) -> object:
    """A single table counts as a list of one."""
    return [value] if isinstance(value, Mapping) else value


class Config(Settings):
    """The configuration of `frd serve`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_DELIMITER,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
    )

    grpc: str = "127.0.0.1:9373"
    """Where agents connect."""
    http: str = "127.0.0.1:9374"
    """Where metrics, the API, the CLI and browsers connect."""
    public_url: str = ""
    """Where people open the service, such as ``https://frd.example``: for links in messages of
    ``notify`` and the address of the page in the log; the address of ``http`` when empty."""
    alertmanager_url: str = ""
    """Where people open Alertmanager, to link a finding to its form for silences."""
    web: bool = True
    """Serve the page for browsers at ``/``."""
    data_dir: Path = Field(default_factory=_default_data_dir)
    """Findings, journal and dumps: ``$XDG_STATE_HOME/frd``, else ``~/.local/state/frd``."""
    expected_agents: Mapping[str, Count] = Field(default_factory=dict)
    """Number of agents by job; of other jobs the service expects the agents that it has seen."""
    insecure: bool = False
    """Listen beyond loopback without TLS or without authentication."""
    notify: Annotated[tuple[NotifyTarget, ...], BeforeValidator(_listed)] = ()
    """Webhooks, a ``[[notify]]`` each; a single ``[notify]`` is accepted."""
    policy: Policy = Policy()
    tls: TlsFiles = TlsFiles()
    auth: AuthFiles = AuthFiles()
    limits: PeerLimits = PeerLimits()
    store: StoreLimits = StoreLimits()
    cluster: ClusterOptions = ClusterOptions()
    log: LogOptions = LogOptions()

    @property
    def member(self) -> str:
        """The name of this replica."""
        return self.cluster.member or socket.gethostname()


LIVE_KEYS = ("policy", "store", "log", "expected_agents", "notify")
"""Keys and sections that a running service applies after SIGHUP."""


def keys() -> list[str]:
    """Every dotted key that a file, the environment or a flag may set."""
    found: list[str] = []
    for name, info in Config.model_fields.items():
        section = info.annotation
        parts = fields(section) if is_dataclass(section) else ()
        found += [f"{name}.{part.name}" for part in parts] or [name]
    return found


def changed_keys(old: Config, new: Config) -> list[str]:
    """The dotted keys whose values differ."""
    return [key for key in keys() if _value(old, key) != _value(new, key)]


def _value(config: Config, key: str) -> object:
    value: object = config
    for part in key.split("."):
        value = getattr(value, part)
    return value
