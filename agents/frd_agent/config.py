"""The agent's configuration: defaults < TOML file < FRD_AGENT_* environment < flags.

Every mistake is found here, before anything starts, and raised as an error that begins with the
key's name. No other module reads a configuration file, the environment or a flag.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from frd import config_loader
from frd.address import is_loopback, split_address, without_scheme
from frd.config_loader import Settings, unknown
from frd.credentials import read_credential
from frd.errors import ConfigError
from frd_agent import tap
from frd_agent.uplink.route import Endpoint

_PREFIX = "FRD_AGENT_"
LIVE_KEYS = (
    *("service", "tls", "tls_ca_file", "tls_cert_file", "tls_key_file", "token_file", "insecure"),
    *("poll_s", "log_level", "log_format"),
)
"""Keys that a running agent applies after SIGHUP."""
_SERVICE_LINK = re.compile(rf"{_PREFIX}(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\w+)?)")

_LOG_FIELDS = "job, rank, local_rank, node"
_LOG_PATH = re.compile(rf"/([^{{}}\0]|{{({_LOG_FIELDS.replace(', ', '|')})}})*")

_Absolute = Annotated[Path, AfterValidator(lambda path: Path(os.path.abspath(path)))]
"""One path for the check of its parts and for every use."""


class Config(Settings):
    """All keys are flat; the flags of `frd-agent run` set the first ones."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, extra="forbid", frozen=True, str_strip_whitespace=True
    )

    service: str = "127.0.0.1:9373"
    """Where the service listens, HOST:PORT; several, separated by commas, are replicas of one."""
    tls: bool = False
    """Use TLS; `tls_ca_file` and `tls_cert_file` also switch it on."""
    tls_ca_file: Path | None = None
    """Verify the service with this CA bundle (PEM)."""
    tls_cert_file: Path | None = None
    """Client certificate (PEM)."""
    tls_key_file: Path | None = None
    """Client private key (PEM)."""
    token_file: Path | None = None
    """File whose first word is the bearer token sent to the service."""
    insecure: bool = False
    """Send the token unencrypted beyond this machine, and follow redirects out of it."""
    run_dir: _Absolute = Field(default_factory=lambda: Path(tap.run_dir(os.environ)))
    """Where the taps of this node publish."""
    dump_dir: Path | None = None
    """Where torch writes dump files, in addition to ``<run_dir>/dumps``."""
    metrics: str = "127.0.0.1:9375"
    """Where /metrics listens, HOST:PORT, or ``off``."""
    node: Annotated[str, Field(max_length=256)] = ""
    """Name of this node; empty: the host's name."""
    job: Annotated[str, Field(min_length=1, max_length=1024)] = "dumps"
    """Name of the job of ranks that are known from dump files only."""
    poll_s: Annotated[float, Field(gt=0.01, le=10)] = 0.25
    """How often the taps' counters are looked at."""
    outbox_bytes: Annotated[int, Field(ge=65_536)] = 16 * 1024 * 1024
    """Transitions kept for a service that does not acknowledge, of 41 bytes each; jobs share them
    equally."""
    memory_hz: Annotated[float, Field(ge=0, le=100)] = 10.0
    """How often memory is sampled while a rank makes progress; 0 switches it off."""
    log_path: Annotated[str, Field(max_length=1024)] = ""
    """Where ranks log, if not to the file that is their stderr: ``/logs/{job}/{rank}.err``. May
    have job, rank, local_rank and node in braces."""
    ras: bool = True
    """Ask NCCL's RAS service on this machine for a second opinion when the service wants one."""
    outlive_ranks_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """After SIGTERM or SIGINT, stay for up to this many seconds while ranks of this node live, and
    report how they end; 0: end immediately. For an agent that is stopped together with its ranks,
    as in a Slurm job or a pod. A second signal ends the agent."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file: set both or neither")
        for key in ("tls_ca_file", "tls_cert_file", "tls_key_file", "token_file"):
            read_credential(key, getattr(self, key))
        endpoint = self.endpoint()
        far = [one for one in endpoint.addresses if not is_loopback(split_address(one)[0])]
        if self.token_file is not None and not endpoint.tls and far and not self.insecure:
            raise ValueError(
                f"token_file: the token would be sent unencrypted to {far[0]}: set tls_ca_file or "
                "tls = true, or accept it with insecure = true"
            )
        return self

    def endpoint(self) -> Endpoint:
        """How to reach the service."""
        return Endpoint(
            tuple(self.service.split(",")),
            self.tls or self.tls_ca_file is not None or self.tls_cert_file is not None,
            self.tls_ca_file,
            self.tls_cert_file,
            self.tls_key_file,
            self.token_file,
            self.insecure,
        )

    @model_validator(mode="before")
    @classmethod
    def _without_scheme(cls, given: Any) -> Any:
        """``https://`` in front of an address of the service asks for TLS, ``http://`` for none."""
        if not isinstance(given, dict) or not isinstance(given.get("service"), str):
            return given
        addresses, schemes = [], set()
        for part in given["service"].split(","):
            try:
                address, scheme = without_scheme(part, 9373)
            except ConfigError as error:
                raise ValueError(f"service: {error}") from None
            addresses.append(address)
            schemes.add(scheme)
            if scheme == "http" and (given.get("tls") or given.get("tls_ca_file")):
                raise ValueError(f"service: http://{address}: TLS is asked for too: write https://")
        if {"http", "https"} <= schemes:
            raise ValueError(
                f"service: {given['service']}: http:// and https:// exclude each other"
            )
        tls = {"tls": True} if "https" in schemes else {}
        return {**given, "service": ",".join(addresses), **tls}

    @field_validator("log_path")
    @classmethod
    def _is_path(cls, value: str) -> str:
        if value and not _LOG_PATH.fullmatch(value):
            raise ValueError(f"{value}: write an absolute path; in braces {_LOG_FIELDS}")
        return value

    @field_validator("service")
    @classmethod
    def _are_addresses(cls, value: str) -> str:
        for address in value.split(","):
            split_address(address)
        return value

    @field_validator("metrics")
    @classmethod
    def _is_address_or_off(cls, value: str) -> str:
        if value == "off":
            return value
        address, scheme = without_scheme(value, 9375)
        if scheme == "https":
            raise ValueError("the agent's /metrics speaks no TLS: write http:// or HOST:PORT")
        split_address(address)
        return address


def load(path: Path | None = None, flags: Mapping[str, Any] | None = None) -> Config:
    """The effective configuration; a flag that is None was not given.

    Raises:
        ConfigError: the file cannot be read, a key is unknown or a value cannot be used.
    """
    _refuse_unknown_variables()
    return config_loader.load(Config, path, flags, known=lambda key: _KEYS)


def _refuse_unknown_variables() -> None:
    """A mistyped key is an error; what Kubernetes sets for a service of our name is not."""
    for name in os.environ:
        key = name.upper().removeprefix(_PREFIX).lower()
        is_ours = name.upper().startswith(_PREFIX) and not _SERVICE_LINK.fullmatch(name.upper())
        if is_ours and key not in _KEYS:
            raise ConfigError(f"{unknown(key, _KEYS)} (environment: {name})")


_KEYS = tuple(Config.model_fields)
