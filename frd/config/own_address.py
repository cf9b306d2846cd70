"""Where others find the HTTP server of a service with a given configuration.

Agents and other replicas use the service's own address. People may have to use another one, behind
an Ingress or a proxy, which only `public_url` says.
"""

from __future__ import annotations

import socket

from frd.address import ALL_ADDRESSES, split_address
from frd.config.settings import Config


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
