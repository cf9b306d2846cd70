"""Checks that involve several keys, or more than a type can say."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final
from urllib.parse import SplitResult, urlsplit

from frd.address import is_loopback, split_address, without_scheme
from frd.config.settings import ClusterOptions, Config, NotifyTarget, TlsFiles
from frd.config_loader import NOT_SHOWN
from frd.errors import ConfigError

_MAX_NOTIFY_TARGETS: Final = 16
_PAGERDUTY: Final = "https://events.pagerduty.com/v2/enqueue"
_ORIGIN: Final = re.compile(
    r"(?P<origin>https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:(?P<port>[0-9]{1,5}))?)"
    r"(?P<rest>$|[/?#].*)",
    re.ASCII | re.IGNORECASE | re.DOTALL,
)
"""A URL's scheme, host and port, without a user name, and what follows them."""


def checked(config: Config) -> Config:
    """`config`, with addresses and names in their usual form.

    Raises:
        ConfigError: it begins with the name of a key.
    """
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
    return config.model_copy(
        update={
            "data_dir": config.data_dir.expanduser(),
            "notify": _checked_targets(config.notify),
            "public_url": _checked_link("public_url", config.public_url, ""),
            "alertmanager_url": _checked_link(
                "alertmanager_url", config.alertmanager_url, r"(/[\w.~-]+)*"
            ),
        }
    )


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


def _checked_link(key: str, url: str, path: str) -> str:
    """``scheme://host[:port]`` and a path of the form `path`, without a slash at the end; empty:
    not set."""
    if not url:
        return ""
    if "@" in url:
        raise ConfigError(f"{key}: {NOT_SHOWN}: holds a user name: leave it out")
    found = _ORIGIN.match(url.strip())
    if found is None or int(found["port"] or 1) not in range(1, 65_536):
        raise ConfigError(f"{key}: {url!r}: write http:// or https:// and a host")
    rest = found["rest"].removesuffix("/")
    if re.fullmatch(path, rest, re.ASCII) is None:
        why = "has more than a path" if path else "the page needs all paths of its host"
        raise ConfigError(f"{key}: {url!r}: {why}: write {found['origin']}")
    return found["origin"].lower() + rest


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
            _, scheme = without_scheme(given, 0)
            if scheme:
                raise ConfigError(f"address: {given!r}: write HOST:PORT, without {scheme}://")
            if given and not split_address(given)[1]:
                raise ConfigError(f"address: {given!r}: port 0: write HOST:PORT")
        except ConfigError as error:
            raise ConfigError(str(error).replace("address", f"cluster.{key}", 1)) from None


def _checked_targets(targets: tuple[NotifyTarget, ...]) -> tuple[NotifyTarget, ...]:
    """Each with a name; unnamed targets get their position."""
    if len(targets) > _MAX_NOTIFY_TARGETS:
        raise ConfigError(f"notify: {len(targets)} targets: at most {_MAX_NOTIFY_TARGETS}")
    named = tuple(
        replace(target, name=target.name or str(at), url=_default_url(target))
        for at, target in enumerate(targets, start=1)
    )
    for at, target in enumerate(named):
        key, is_pagerduty = f"notify.{at}", target.format == "pagerduty"
        if is_pagerduty and target.routing_key_file is None:
            raise ConfigError(f"{key}.routing_key_file: not set: format pagerduty needs it")
        if not is_pagerduty and target.routing_key_file is not None:
            raise ConfigError(f"{key}.routing_key_file: set: only format pagerduty has one")
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


def _default_url(target: NotifyTarget) -> str:
    is_set = target.url or target.url_file is not None or target.format != "pagerduty"
    return target.url if is_set else _PAGERDUTY


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
