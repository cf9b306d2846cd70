"""The service's configuration: defaults < TOML file < FRD_* environment < flags.

Each key is defined once. Its type carries its bounds, and pydantic checks every source against it.
Every mistake is found at start and raised as one `ConfigError` that begins with the key's name. No
other module reads a configuration file, the environment or a flag.

In the environment, two underscores separate section and key: ``FRD_POLICY__STALL_AFTER_S``. Other
``FRD_*`` variables (of the tap, the agent, Kubernetes' service links) are ignored.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import SplitResult, urlsplit

from annotated_types import Ge, Le
from pydantic import BeforeValidator, Field
from pydantic_settings import SettingsConfigDict

from frd import config_loader
from frd.address import is_loopback, split_address, without_scheme
from frd.config_loader import NOT_SHOWN, Settings, unknown
from frd.engine.policy import Count, Policy, Seconds
from frd.errors import ConfigError

_ENV_PREFIX = "FRD_"
_ENV_DELIMITER = "__"


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
    """Prefix of the names of all streams, so that several clusters can use the same servers."""
    member: str = ""
    """Name of this replica, different for each; the host's name when empty."""
    advertise_grpc: str = ""
    """HOST:PORT at which agents reach this replica; ``grpc`` with the host's name when empty."""
    advertise_http: str = ""
    """The same for HTTP, at which the other replicas reach it; links in messages of ``notify`` have
    it, too."""
    replicas: Annotated[int, Ge(1), Le(5)] = 3
    """Copies of each record, on as many NATS servers."""
    log_bytes: Count = 1024 * 1024 * 1024
    """Size of the log of one cell; there are 64."""
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
    durable: bool = False
    """The NATS servers are known to run with ``sync_interval: always``. Needed only if frd's
    account may not ask them."""


NotifyEvent: TypeAlias = Literal["opened", "critical", "suspect", "closed"]


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
    format: Literal["json", "slack"] = "json"
    on: tuple[NotifyEvent, ...] = ("opened", "critical", "suspect", "closed")
    min_severity: Literal["warning", "critical"] = "warning"
    headers_file: Path | None = None
    """Request headers, ``Name: value`` a line; read again for every message."""
    runbook_url: str = ""
    """Where links to runbooks lead; the service's own HTTP address when empty."""
    timeout_s: Seconds = 10.0
    """For connecting, and for each read and write."""


_MAX_NOTIFY_TARGETS = 16


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
        env_prefix=_ENV_PREFIX,
        env_nested_delimiter=_ENV_DELIMITER,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
    )

    grpc: str = "127.0.0.1:9373"
    """Where agents connect."""
    http: str = "127.0.0.1:9374"
    """Where metrics, the API and the CLI connect."""
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


def load(path: Path | None = None, flags: Mapping[str, Any] | None = None) -> Config:
    """The effective configuration.

    `flags` maps dotted keys (``policy.stall_after_s``) to values; None means: not given.

    Raises:
        ConfigError: the file cannot be read, a key is unknown or a value cannot be used.
    """
    _refuse_unknown_variables(os.environ)
    given = config_loader.load(Config, path, flags, known=_near_keys, is_secret=_is_secret)
    return _checked(given)


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


def keys() -> list[str]:
    """Every dotted key that a file, the environment or a flag may set."""
    found: list[str] = []
    for name, info in Config.model_fields.items():
        section = info.annotation
        parts = fields(section) if is_dataclass(section) else ()
        found += [f"{name}.{part.name}" for part in parts] or [name]
    return found


def _line(key: str, value: object) -> str:
    if value is None:
        return f"# {key}: not set"
    if value == NOT_SHOWN:
        return f"# {key}: {NOT_SHOWN}"
    return f"{_toml_key(key)} = {_toml(value)}"


def changed_keys(old: Config, new: Config) -> list[str]:
    """The dotted keys whose values differ."""
    return [key for key in keys() if _value(old, key) != _value(new, key)]


def _value(config: Config, key: str) -> object:
    value: object = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def json_schema() -> dict[str, Any]:
    """JSON Schema of the file, for the chart."""
    return Config.model_json_schema()


def _toml_key(key: str) -> str:
    return key if key.replace("_", "").isalnum() and key.isascii() else json.dumps(key)


def _toml(value: object) -> str:
    # A JSON number or string is a TOML one, but for DEL, which JSON leaves as it is.
    return json.dumps(value).replace("\x7f", "\\u007f")


# -- sources -----------------------------------------------------------------------------------


def _refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    known = set(keys())
    for variable in sorted(environment):
        name = variable.upper().removeprefix(_ENV_PREFIX)
        if name == variable.upper() or _ENV_DELIMITER not in name:
            continue
        key = name.lower().replace(_ENV_DELIMITER, ".")
        if key.partition(".")[0] == "expected_agents":
            raise ConfigError(
                f"expected_agents: {variable}: case is lost in a variable's name: "
                f"set {_ENV_PREFIX}EXPECTED_AGENTS to a JSON object"
            )
        if key.partition(".")[0] == "notify":
            raise ConfigError(
                f"notify: {variable}: there may be several: "
                f"set {_ENV_PREFIX}NOTIFY to a JSON array of objects"
            )
        if key not in known:
            raise ConfigError(f"{unknown(key, keys())} (environment: {variable})")


# -- checks ------------------------------------------------------------------------------------


def _is_secret(key: tuple[int | str, ...]) -> bool:
    return key[:1] == ("notify",) and (len(key) < 3 or key[2] == "url")


def _near_keys(key: str) -> list[str]:
    section = key.rpartition(".")[0]
    if section.startswith("notify."):
        return [f"{section}.{part.name}" for part in fields(NotifyTarget)]
    return keys()


def _checked(config: Config) -> Config:
    """Checks that involve several keys."""
    grpc = _listening(config, "grpc", config.grpc, 9373)
    http = _listening(config, "http", config.http, 9374)
    config = config.model_copy(update={"grpc": grpc, "http": http})
    floor, ceiling = config.policy.stall_after_s, config.policy.stall_after_max_s
    if floor > ceiling:
        raise ConfigError(
            f"policy.stall_after_s: {floor:g}: "
            f"must not exceed policy.stall_after_max_s ({ceiling:g})"
        )
    _check_tls(config.tls)
    _check_exposure(config)
    _check_advertised(config.cluster)
    targets = _checked_targets(config.notify)
    return config.model_copy(update={"data_dir": config.data_dir.expanduser(), "notify": targets})


def _listening(config: Config, key: str, given: str, default_port: int) -> str:
    """HOST:PORT of an address to listen on, which may be written as a URL."""
    try:
        address, scheme = without_scheme(given, default_port)
        split_address(address)
    except ConfigError as error:
        raise ConfigError(str(error).replace("address", key, 1)) from None
    if scheme == "https" and config.tls.cert_file is None:
        raise ConfigError(f"{key}: {given}: needs a certificate: set tls.cert_file")
    if scheme == "http" and config.tls.cert_file is not None:
        raise ConfigError(f"{key}: {given}: tls.cert_file is set: write https://")
    return address


def _check_tls(tls: TlsFiles) -> None:
    for key, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
        if getattr(tls, key) is not None and getattr(tls, other) is None:
            raise ConfigError(f"tls.{other}: not set: tls.{key} needs it")
    for key in ("client_ca_file", "http_client_ca_file"):
        if getattr(tls, key) is not None and tls.cert_file is None:
            raise ConfigError(f"tls.cert_file: not set: tls.{key} needs it")


def _check_exposure(config: Config) -> None:
    """An address beyond loopback requires TLS and authentication."""
    tls, token_file = config.tls, config.auth.token_file
    for key, ca_key in (("grpc", "client_ca_file"), ("http", "http_client_ca_file")):
        address = getattr(config, key)
        if config.insecure or is_loopback(split_address(address)[0]):
            continue
        known = token_file is not None or getattr(tls, ca_key) is not None
        if tls.cert_file is None or not known:
            missing = "TLS" if tls.cert_file is None else "authentication"
            raise ConfigError(
                f"{key}: {address}: reachable from the network without {missing}: set "
                f"tls.cert_file, tls.key_file and auth.token_file (or tls.{ca_key}), listen on "
                "127.0.0.1, or accept it with --insecure"
            )


def _check_advertised(cluster: ClusterOptions) -> None:
    for key in ("advertise_grpc", "advertise_http"):
        given: str = getattr(cluster, key)
        try:
            if given and not split_address(given)[1]:
                raise ConfigError(f"address: {given!r}: port 0: write HOST:PORT")
        except ConfigError as error:
            raise ConfigError(str(error).replace("address", f"cluster.{key}", 1)) from None


def _checked_targets(targets: tuple[NotifyTarget, ...]) -> tuple[NotifyTarget, ...]:
    """Each with a name; unnamed targets get their position."""
    if len(targets) > _MAX_NOTIFY_TARGETS:
        raise ConfigError(f"notify: {len(targets)} targets: at most {_MAX_NOTIFY_TARGETS}")
    named = tuple(
        replace(target, name=target.name or str(at)) for at, target in enumerate(targets, start=1)
    )
    for at, target in enumerate(named):
        key = f"notify.{at}"
        if (target.url != "") == (target.url_file is not None):
            raise ConfigError(f"{key}.url: set either url or url_file")
        if target.url:
            checked_url(f"{key}.url", target.url)
        if not target.on:
            raise ConfigError(f"{key}.on: []: name at least one event")
        if target.name in (other.name for other in named[:at]):
            raise ConfigError(f"{key}.name: {target.name!r}: another target has this name")
        if target.runbook_url and not target.runbook_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"{key}.runbook_url: {target.runbook_url!r}: write http:// or https://"
            )
    return named


def checked_url(key: str, url: str) -> SplitResult:
    """The parts of a URL to POST to.

    Raises:
        ConfigError: not a URL. The message does not contain the URL, which is a secret.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ConfigError(f"{key}: {NOT_SHOWN}: not a URL") from None
    if not (url.isascii() and url.isprintable()) or " " in url:
        raise ConfigError(f"{key}: {NOT_SHOWN}: write it without spaces, in ASCII")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{key}: {NOT_SHOWN}: must begin with http:// or https:// and a host")
    if "@" in parts.netloc:
        raise ConfigError(f"{key}: {NOT_SHOWN}: holds a user name: use headers_file instead")
    return parts
