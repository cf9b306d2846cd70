"""Sockets of a process: the address at the other end, from the tables of its network namespace.

/proc/<pid>/net/tcp shows every TCP socket of the namespace with its inode. A unix socket shows its
path at most, never its peer; the two ends of a socket pair get successive inodes, which is a hint
and no proof.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Final, NamedTuple

from frd_agent.proc import path_of

_CONNECTING: Final = "02"
_LISTENING: Final = "0A"
_TABLES: Final = ("tcp", "tcp6", "udp", "udp6")
_UNIX: Final = re.compile(
    r"[0-9a-f]+: +[0-9A-F]+ +[0-9A-F]+ +(?P<flags>[0-9A-F]+) +[0-9A-F]+ +[0-9A-F]+ +"
    r"(?P<inode>\d+) ?(?P<path>.*)",
    re.DOTALL,
)
_MAX_ROWS: Final = 200_000


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a socket."""

    address: str
    """``10.0.0.3:80``, ``[::1]:80``, ``unix /run/x.sock``; empty if it is not connected."""
    state: str = ""
    inode: int = 0
    """Of the socket at the other end, if it is in the same namespace; 0 if not."""
    is_unix: bool = False
    """The table of unix sockets shows no peers: `address` is its own, which a server has."""
    is_served: bool = False
    """The connection came to a port of this end on which a socket listens."""

    @property
    def is_connecting(self) -> bool:
        return self.state == _CONNECTING

    @property
    def is_listening(self) -> bool:
        return self.state == _LISTENING

    @property
    def is_own(self) -> bool:
        """The address is that of this end."""
        return self.is_unix and bool(self.address)


class Sockets:
    """The tables of the network namespace of one process, each read at most once."""

    def __init__(self, pid: int) -> None:
        self._folder = f"{pid}/net"

    def peer_of(self, inode: int) -> Peer | None:
        """None if the tables do not show the socket, as of another kind of socket."""
        if (row := self._by_inode.get(inode)) is None:
            return self._unix.get(inode)
        if _port(row.remote) == 0:
            return Peer("", row.state)
        other = self._by_ends.get((row.table, row.remote, row.local), 0)
        is_served = _port(row.local) in self._listening
        return Peer(_address(row.remote), row.state, other, is_served=is_served)

    @cached_property
    def _by_inode(self) -> dict[int, _Row]:
        rows = [row for table in _TABLES for row in _rows(self._folder, table)]
        return {row.inode: row for row in reversed(rows)}

    @cached_property
    def _by_ends(self) -> dict[tuple[str, str, str], int]:
        rows = reversed(self._by_inode.values())
        return {(row.table, row.local, row.remote): row.inode for row in rows}

    @cached_property
    def _listening(self) -> set[int]:
        """Ports. The kernel gives none of them to a connection that goes out."""
        return {_port(row.local) for row in self._by_inode.values() if row.state == _LISTENING}

    @cached_property
    def _unix(self) -> dict[int, Peer]:
        found = {}
        for line in _lines(f"{self._folder}/unix"):
            row = _UNIX.match(line)  # a path may hold a newline, so a line may be the rest of one
            if row is not None:
                path = row["path"].rstrip("\n")
                state = _LISTENING if int(row["flags"], 16) & 1 << 16 else ""
                address = f"unix {path}" if path else ""
                found[int(row["inode"])] = Peer(address, state, is_unix=True)
        return found


class _Row(NamedTuple):
    table: str
    local: str
    remote: str
    state: str
    inode: int


def _rows(folder: str, table: str) -> Iterator[_Row]:
    for line in _lines(f"{folder}/{table}"):
        fields = line.split()
        if len(fields) > 9 and fields[9].isdecimal():
            yield _Row(table, fields[1], fields[2], fields[3], int(fields[9]))


def _lines(path: str) -> Iterator[str]:
    """Without the title."""
    try:
        with open(path_of(path), encoding="utf-8", errors="replace", newline="\n") as file:
            yield from islice(file, 1, _MAX_ROWS)
    except OSError:
        return


def _port(field: str) -> int:
    return int(field.rpartition(":")[2], 16)


def _address(field: str) -> str:
    """``0100007F:0050`` is 127.0.0.1:80: 32-bit words in the order of this machine."""
    words = bytes.fromhex(field.partition(":")[0])
    if sys.byteorder == "little":
        words = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    host = ipaddress.ip_address(words)
    if isinstance(host, ipaddress.IPv6Address):
        if (inner := host.ipv4_mapped) is None:
            return f"[{host}]:{_port(field)}"
        host = inner
    return f"{host}:{_port(field)}"
