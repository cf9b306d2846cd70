"""Where the RAS service of a rank listens, and whether the agent may connect there.

A job chooses its environment, so it must not choose where the agent connects: only to this machine.
No name is resolved but localhost. RAS of another network namespace is out of reach, and what
listens at the same port here is of another job.

Reading an environment takes the lock on the process's address space, which a process in trouble may
hold for ever: call `place_of` on an `inspection.reading.memory.Helper`.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import Final

from frd.address import join_address, split_address
from frd.errors import ConfigError, ServiceUnavailable
from frd_agent.proc import content, namespace_of

DEFAULT: Final = "localhost:28028"
_ADDRESS: Final = b"NCCL_RAS_ADDR"
_SWITCH: Final = b"NCCL_RAS_ENABLE"
_MAX_BYTES: Final = 4 * 1024 * 1024
"""More than the kernel takes as arguments and environment by default."""
_ANY_PORT: Final = 9
"""The agent connects a datagram socket to this port and sends nothing through it."""


@dataclass(frozen=True, slots=True)
class Place:
    """A local address of this machine."""

    host: str
    port: int

    def __str__(self) -> str:
        return join_address(self.host, self.port)


def place_of(pid: int | None) -> Place:
    """Where RAS listens for the process `pid`; None: a process that /proc does not show.

    Raises:
        ServiceUnavailable: nowhere, or not where the agent connects; the message says why.
    """
    environment = b"" if pid is None else content(f"{pid}/environ", _MAX_BYTES)
    variables = dict(line.split(b"=", 1) for line in environment.split(b"\0") if b"=" in line)
    if variables.get(_SWITCH, b"").strip() == b"0":
        raise ServiceUnavailable("NCCL RAS: NCCL_RAS_ENABLE=0 switches it off")
    networks = {namespace_of(one, "net") for one in (pid or "self", "self")}
    if len(networks - {0}) > 1:  # 0: the agent has no right to know
        raise ServiceUnavailable(
            "NCCL RAS: the rank is in another network namespace: run the agent in that of its pod"
        )
    given = variables.get(_ADDRESS, b"").decode("utf-8", "replace").strip() or DEFAULT
    try:
        host, port = split_address(given)
    except ConfigError as error:
        raise ServiceUnavailable(f"NCCL RAS: NCCL_RAS_ADDR: {error}") from None
    return Place(_local(host), port)


def is_here(host: str) -> bool:
    """Whether this is an address of this machine; names are not."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or _is_own(str(address), address.version)


def _local(host: str) -> str:
    """The address to connect to.

    Raises:
        ServiceUnavailable: `host` is not an address of this machine.
    """
    if host.lower() == "localhost":
        return "127.0.0.1"
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1" if host == "0.0.0.0" else "::1"
    if is_here(host):
        return host
    raise ServiceUnavailable(
        f"NCCL RAS: NCCL_RAS_ADDR: {host[:100]!r}: not localhost and no address of this machine: "
        "the agent does not connect elsewhere"
    )


def _is_own(address: str, version: int) -> bool:
    """The kernel would reach the address from that same address. A datagram socket that connects
    sends nothing."""
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, _ANY_PORT))
            own: str = probe.getsockname()[0]
            return own.partition("%")[0] == address.partition("%")[0]  # an interface may follow
    except (OSError, ValueError, TypeError):  # the interface may have any characters
        return False
