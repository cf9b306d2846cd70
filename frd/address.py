"""HOST:PORT, the one way in which frd writes where something listens.

Pure text: nothing here resolves a name or opens a socket.
"""

from __future__ import annotations

import ipaddress

from frd.errors import ConfigError


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``; port 0 means: any free one.

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


def join_address(host: str, port: int) -> str:
    """The inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Only this machine can reach `host`. A name other than localhost could be anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
