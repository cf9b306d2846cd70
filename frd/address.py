"""HOST:PORT, the one way in which frd writes where something listens, and the pages there.

Pure text: nothing here resolves a name or opens a socket.
"""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import quote

from frd.errors import ConfigError

ALL_ADDRESSES: Final = ("0.0.0.0", "::")


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``; port 0: any free port.

    Raises:
        ConfigError: when `text` is not of that form.
    """
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"address: {text!r}: write an IPv6 address in brackets, [::1]:9374")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise ConfigError(f"address: {text!r}: write HOST:PORT, for example 127.0.0.1:9374")
    return host, int(port)


def without_scheme(text: str, default_port: int) -> tuple[str, str]:
    """``HOST:PORT`` of what may be a URL, and the URL's scheme: ``http``, ``https`` or empty.

    People paste what a browser or a manifest shows. A URL without a port means `default_port`.

    Raises:
        ConfigError: another scheme, or a URL with a path, a query or a user.
    """
    given = text.strip()
    scheme, separator, rest = given.partition("://")
    if not separator:
        return given, ""
    if scheme.lower() not in ("http", "https"):
        raise ConfigError(f"address: {text!r}: unknown scheme: write HOST:PORT")
    address = rest.removesuffix("/")
    if not address or any(mark in address for mark in "/?#@"):
        raise ConfigError(f"address: {text!r}: more than an address: write HOST:PORT")
    has_port = ":" in address.rpartition("]")[2]
    return address if has_port else f"{address}:{default_port}", scheme.lower()


def join_address(host: str, port: int) -> str:
    """The inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Only this machine can reach `host`. A name other than localhost could be anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def finding_page(base: str, finding_id: str) -> str:
    """The page of a finding, for a browser; `base` is the service's URL, without a slash."""
    return f"{base}/findings/{quote(finding_id, safe='')}"


def silence_url(alertmanager: str, finding_id: str) -> str:
    """Alertmanager's form for a silence of all alerts of a finding, filled in."""
    return f"{alertmanager}/#/silences/new?filter=%7Bfinding%3D%22{quote(finding_id)}%22%7D"
