"""Sockets of a process: the address at the other end, from the tables of its network namespace.

/proc/<pid>/net/tcp shows every TCP socket of the namespace with its inode. A unix socket shows its
path at most, never its peer; the two ends of a socket pair get successive inodes, which is a hint
and no proof.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frd_agent.proc import PROC

_CONNECTING: Final = "02"
_LISTENING: Final = "0A"
_TABLES: Final = ("tcp", "tcp6", "udp", "udp6")
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


def inode_of(link: str) -> int:
    """Of ``socket:[77]`` or ``pipe:[77]``; 0 if it is something else."""
    inode = link.rpartition("[")[2].rstrip("]")
    return int(inode) if inode.isdecimal() else 0


def peer_of(pid: int, inode: int, proc: Path = PROC) -> Peer | None:
    """None if the tables do not show the socket, as of a socket pair or another kind of socket."""
    for table in _TABLES:
        for row in _rows(f"{proc}/{pid}/net/{table}"):
            if int(row[9]) == inode:
                local, remote, state = row[1], row[2], row[3]
                if _port(remote) == 0:
                    return Peer("", state)
                return Peer(_address(remote), state, _other_end(pid, table, local, remote, proc))
    return _unix_peer(pid, inode, proc)


def _rows(path: str) -> Iterator[list[str]]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            next(file, "")
            for count, line in enumerate(file):
                fields = line.split()
                if len(fields) > 9 and fields[9].isdecimal():
                    yield fields
                if count > _MAX_ROWS:
                    return
    except OSError:
        return


def _other_end(pid: int, table: str, local: str, remote: str, proc: Path) -> int:
    for row in _rows(f"{proc}/{pid}/net/{table}"):
        if (row[1], row[2]) == (remote, local):
            return int(row[9])
    return 0


def _unix_peer(pid: int, inode: int, proc: Path) -> Peer | None:
    try:
        with open(f"{proc}/{pid}/net/unix", encoding="utf-8", errors="replace") as file:
            for line in file:
                fields = line.split(None, 7)
                if len(fields) > 6 and fields[6] == str(inode):
                    path = fields[7].strip() if len(fields) > 7 else ""
                    state = _LISTENING if int(fields[3], 16) & 1 << 16 else ""
                    return Peer(f"unix {path}" if path else "", state, is_unix=True)
    except (OSError, ValueError):
        pass
    return None


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
