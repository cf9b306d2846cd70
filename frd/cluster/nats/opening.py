"""Opening a cluster: credentials, the checks of a start, and the parts that the service uses."""

from __future__ import annotations

import importlib.util
import re
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from frd.cluster.cluster import Cluster
from frd.cluster.heartbeats import HeartbeatLease
from frd.cluster.lease import Replica
from frd.cluster.nats.cells import JetStreamCells
from frd.cluster.nats.checks import check_durable, check_servers, check_stream
from frd.cluster.nats.connection import Access, Connection, Unanswered
from frd.cluster.nats.registry import JetStreamRegistry
from frd.cluster.registry import Entry, Registry
from frd.cluster.thread import LoopThread
from frd.config import ClusterOptions
from frd.errors import ClusterError

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
_MEMBER: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_HEARTBEAT_REQUEST_S: Final = 1.0
"""A heartbeat tries another server after that: others count six heartbeats, 3 s."""


async def connect(
    options: ClusterOptions, member: str, grpc: str, http: str, version: str
) -> Cluster:
    """Check the servers, create what is missing, and connect; heartbeats begin with `Lease.start`.

    `member` is the name of this replica, `grpc` (HOST:PORT) and `http` (a URL) are its addresses.

    Raises:
        ClusterError: names the key of ``[cluster]`` and what to do.
    """
    if not _NAME.fullmatch(options.name):
        raise ClusterError(f"cluster.name: {options.name!r}: use letters, digits, - and _ (32)")
    if not _MEMBER.fullmatch(member):
        raise ClusterError(f"cluster.member: {member!r}: use letters, digits, -, _ and single dots")
    opened = access(options, member)
    thread = LoopThread("frd-cluster")
    # Values of cells must not delay heartbeats, which have their own connection.
    registry, data = Connection(opened, _HEARTBEAT_REQUEST_S), Connection(opened)

    async def close() -> None:
        for connection in (registry, data):
            await thread.call(connection.close())
        await thread.stop()

    try:
        await thread.call(check_servers(opened))
        for connection in (registry, data):
            await thread.call(connection.open())
        await thread.call(check_stream(data, options))
        durable = await thread.call(check_durable(data, options))
    except Unanswered as error:
        await close()
        raise ClusterError(f"cluster.servers: no connection: {error}: check the servers") from None
    except BaseException:
        await close()
        raise

    keys = JetStreamRegistry(registry, options.name)
    return Cluster(
        keys=_Keys(thread, JetStreamRegistry(data, options.name)),
        lease=HeartbeatLease(thread, keys, Replica(member, grpc, http, version), durable=durable),
        values=JetStreamCells(thread, data, options.name),
        close=close,
    )


class _Keys:
    """`frd.cluster.registry.Keys` for the service's event loop."""

    def __init__(self, thread: LoopThread, registry: Registry) -> None:
        self._thread = thread
        self._registry = registry

    async def get(self, key: str) -> Entry | None:
        return await self._thread.call(self._registry.get(key))

    async def put(self, key: str, value: bytes, revision: int) -> int:
        return await self._thread.call(self._registry.put(key, value, revision))


# -- credentials, from files that the configuration names -----------------------------------------


def access(options: ClusterOptions, member: str) -> Access:
    """
    Raises:
        ClusterError: a file cannot be read or used; the message has nothing of what is in it.
    """
    for server in options.servers:
        if urlsplit(server).username is not None:
            raise ClusterError(
                "cluster.servers: an address with a user: name a file in cluster.user_file"
            )
    user, password, token = _user(options)
    return Access(
        servers=options.servers,
        name=f"frd {options.name} {member}",
        user=user,
        password=password,
        token=token,
        credentials_file=_credentials(options),
        tls=_tls(options),
    )


def _user(options: ClusterOptions) -> tuple[str | None, str | None, str | None]:
    if options.user_file is None:
        return None, None, None
    line = _text("cluster.user_file", options.user_file).partition("\n")[0].strip()
    if not line:
        raise ClusterError(f"cluster.user_file: {options.user_file}: empty: write USER:PASSWORD")
    user, colon, password = line.partition(":")
    return (user, password, None) if colon else (None, None, line)


def _credentials(options: ClusterOptions) -> str | None:
    path = options.credentials_file
    if path is None:
        return None
    key = "cluster.credentials_file"
    text = _text(key, path)
    if "BEGIN NATS USER JWT" not in text or "BEGIN USER NKEY SEED" not in text:
        raise ClusterError(f"{key}: {path}: no NATS credentials: write JWT and seed, as nsc does")
    if importlib.util.find_spec("nkeys") is None:
        raise ClusterError(f"{key}: {path}: the module nkeys is missing: pip install nkeys")
    return str(path)


def _tls(options: ClusterOptions) -> ssl.SSLContext | None:
    wanted = any(server.startswith("tls://") for server in options.servers)
    if not (wanted or options.tls_ca_file or options.tls_cert_file):
        return None
    context = ssl.create_default_context()
    if path := options.tls_ca_file:
        _text("cluster.tls_ca_file", path)
        try:
            context = ssl.create_default_context(cafile=path)
        except (ssl.SSLError, ValueError):
            raise ClusterError(f"cluster.tls_ca_file: {path}: no certificates in PEM") from None
    if path := options.tls_cert_file:
        _text("cluster.tls_cert_file", path)
        if options.tls_key_file is not None:
            _text("cluster.tls_key_file", options.tls_key_file)
        try:
            context.load_cert_chain(path, options.tls_key_file)
        except (ssl.SSLError, ValueError):
            raise ClusterError(
                f"cluster.tls_cert_file: {path}: not usable with cluster.tls_key_file: "
                "name the PEM files of one pair"
            ) from None
    return context


def _text(key: str, path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError as error:
        raise ClusterError(f"{key}: {path}: {error.strerror}: make it readable") from None
