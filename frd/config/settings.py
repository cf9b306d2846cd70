"""All keys of the configuration, with their bounds and defaults.

From them follow limits, those that are 0 in the configuration, by the memory of the service; and
where others find its HTTP server. Agents and other replicas use the service's own address. People
may have to use another one, behind an Ingress or a proxy, which only `public_url` says.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from annotated_types import Ge, Le
from pydantic import BeforeValidator, Field
from pydantic_settings import SettingsConfigDict

from frd.address import ALL_ADDRESSES, split_address
from frd.config_loader import NOT_SHOWN, Settings
from frd.engine.policy import Count, Policy, Seconds
from frd.engine.room import OBJECT_BYTES

ENV_PREFIX: Final = "FRD_"
ENV_DELIMITER: Final = "__"
_CGROUP: Final = ("memory.max", "memory/memory.limit_in_bytes")


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Bounds of the data directory; the oldest items are deleted first."""

    journal_bytes: Count = 256 * 1024 * 1024
    """Size of the journal, for `frd replay`."""
    journal_retention_s: Annotated[float, Ge(0)] = 0.0
    """Age at which journal records are deleted; 0: only when the journal is full."""
    dump_count: Annotated[int, Ge(0)] = 32
    """Number of dumps, taken when a finding opens or on demand; with 0, findings take none."""
    dump_bytes: Count = 1024 * 1024 * 1024
    """Size of all dumps together."""
    finding_retention_s: Seconds = 30 * 86_400.0
    """Age at which a closed finding is deleted."""
    finding_count: Count = 100_000
    """Number of findings; open findings are never deleted."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files, read again when they change. Without a certificate nothing is encrypted."""

    cert_file: Path | None = None
    """The service's certificate chain, for gRPC and HTTP."""
    key_file: Path | None = None
    client_ca_file: Path | None = None
    """Agents must present a certificate of this CA."""
    http_client_ca_file: Path | None = None
    """HTTP clients must present one, too. Kubernetes' probes have none, and fail then."""


@dataclass(frozen=True, slots=True)
class AuthFiles:
    """Authentication of peers without client certificates."""

    token_file: Path | None = None
    """One bearer token a line, with its permissions; see docs/security.md. Read again when it
    changes. If not set, no token is required."""


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Limits of one peer address."""

    streams_per_peer: Count = 4_096
    """Concurrent gRPC streams of one host; an agent has two for each of its jobs."""
    objects_per_peer: Annotated[int, Ge(0)] = 0
    """What the open streams of one host declare, in objects of about 128 bytes; 0: a quarter of
    the memory that the service may use. Raise it where many agents share an address (a proxy);
    one stream may declare a million."""
    http_connections_per_peer: Count = 256
    stream_bytes_per_s: Count = 64 * 1024 * 1024
    """A stream that sends more is throttled, after a burst of twice as much."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Level and format of the service's log on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


def _separated(value: object) -> object:
    """A string counts as a list, separated by commas: the environment has only strings."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.split(",") if part.strip()]


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Several replicas of the service, coordinated by NATS JetStream; see docs/cluster.md."""

    servers: Annotated[tuple[str, ...], BeforeValidator(_separated)] = ()
    """URLs of the NATS servers, ``nats://HOST:PORT`` or ``tls://HOST:PORT``: a list, or one string
    with commas between. Empty: no cluster."""
    name: str = "frd"
    """Part of the name of the stream, so that several clusters can use the same servers."""
    member: str = ""
    """Name of this replica, different for each; the host's name when empty."""
    advertise_grpc: str = ""
    """HOST:PORT at which agents reach this replica; ``grpc`` with the host's name when empty."""
    advertise_http: str = ""
    """The same for HTTP, at which the other replicas reach it; links in messages of ``notify`` have
    it, too, unless ``public_url`` is set."""
    replicas: Annotated[int, Ge(1), Le(5)] = 3
    """Copies of what is stored, on as many NATS servers."""
    credentials_file: Path | None = None
    """NATS credentials (JWT and seed)."""
    user_file: Path | None = None
    """A file with ``USER:PASSWORD``, or a token, instead of credentials."""
    tls_ca_file: Path | None = None
    """Verify the NATS servers with this CA bundle (PEM)."""
    tls_cert_file: Path | None = None
    """Client certificate for NATS (PEM)."""
    tls_key_file: Path | None = None
    """Its private key (PEM)."""
    peers_ca_file: Path | None = None
    """Verify the HTTP API of the other replicas with this CA bundle (PEM), if they use TLS."""


NotifyEvent: TypeAlias = Literal["opened", "critical", "suspect", "acknowledged", "closed"]


@dataclass(frozen=True, slots=True)
class NotifyTarget:
    """A webhook that receives findings; see docs/configuration.md."""

    name: str = ""
    """For metrics and the log; the position in the file when empty."""
    url: str = field(default="", repr=False)
    """Where to POST. The URL of a chat's webhook is a secret, because it alone permits writing: it
    appears in no log, error or output."""
    url_file: Path | None = None
    """A file whose first line is the URL; read again for every message."""
    format: Literal["json", "slack", "teams", "pagerduty"] = "json"
    routing_key_file: Path | None = None
    """A file with the integration key of PagerDuty; read again for every message."""
    on: tuple[NotifyEvent, ...] = ("opened", "critical", "suspect", "acknowledged", "closed")
    min_severity: Literal["warning", "critical"] = "warning"
    headers_file: Path | None = None
    """Request headers, ``Name: value`` a line; read again for every message."""
    runbook_url: str = ""
    """Where links to runbooks lead; when empty, ``public_url`` or the service's own HTTP
    address."""
    timeout_s: Seconds = 10.0
    """For connecting, and for each read and write."""


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


def own_url(config: Config, bound: str = "") -> str:
    """``scheme://host:port`` of the service itself, as far as it knows.

    `bound`: the address at which HTTP listens, once it does.
    """
    scheme = "http" if config.tls.cert_file is None else "https"
    return f"{scheme}://{own_address(config, bound)}"


def own_address(config: Config, bound: str = "") -> str:
    return config.cluster.advertise_http or reachable(bound or config.http)


def public_url(config: Config, bound: str = "") -> str:
    """Where people open the service in a browser; `bound` as of `own_url`."""
    return config.public_url or own_url(config, bound)


def reachable(address: str) -> str:
    """The address with the name of this host if it listens on all addresses."""
    host, port = split_address(address)
    return f"{socket.gethostname()}:{port}" if host in ALL_ADDRESSES else address


def with_room(config: Config, cgroup: Path = Path("/sys/fs/cgroup")) -> Config:
    """The configuration in force: half of the memory is for what the engine holds, a quarter for
    the declarations of one peer. In a container `cgroup` has its limit."""
    objects, policy, limits = _memory_bytes(cgroup) // OBJECT_BYTES, config.policy, config.limits
    most, of_peer = policy.max_objects or objects // 2, limits.objects_per_peer or objects // 4
    update = {
        "policy": replace(policy, max_objects=most),
        "limits": replace(limits, objects_per_peer=of_peer),
    }
    return config.model_copy(update=update)


def _memory_bytes(cgroup: Path) -> int:
    known = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in _CGROUP:
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
            known.append(int((cgroup / name).read_text()))
    return min(known)


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
