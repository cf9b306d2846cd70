"""What is checked when a replica starts, so that a wrong cluster fails then and not during a fault.

Whether the servers sync every write to the disk (``sync_interval: always``) is no property of a
stream and not visible to an ordinary account. The answer is in the servers' ``VARZ``, which the
system account may export to the account of the replicas (docs/cluster.md). Without that the answer
is *unknown*, which counts as no.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js.api import StreamConfig

from frd.cluster.cells import CELLS
from frd.cluster.nats.connection import Absent, Access, Connection, Refused, Unanswered
from frd.cluster.nats.registry import get_value, put_value
from frd.cluster.nats.streams import COMPARED, MAX_PAYLOAD, registry_stream
from frd.cluster.registry import Conflict, RegistryUnavailable
from frd.config import ClusterOptions
from frd.decodable import decodable
from frd.errors import ClusterError

T = TypeVar("T")
OLDEST: Final = (2, 12)
"""Compare-and-set in clusters was not reliable before 2.9.21 and was mended again in 2.11; tests
run with 2.12 and later."""
FORMAT: Final = 2
"""1 had a log of rows for each cell, in other streams."""
PATIENCE_S: Final = 15.0
"""An election takes 4 to 9 s."""
_VARZ: Final = "$SYS.REQ.SERVER.PING.VARZ"
_NOT_ENABLED: Final = (10076, 10039)
_TOO_FEW: Final = (10005, 10074)
_NO_SPACE: Final = (10047, 10023, 10028)
_log = logging.getLogger(__name__)


@decodable
class _Meta(msgspec.Struct):
    """Value of the key ``meta``."""

    format: int
    cells: int


async def check_servers(access: Access) -> None:
    """Look at each server by itself; servers that do not answer are left out.

    Raises:
        ClusterError: none answers, or one of those that do cannot be used.
    """
    found = await asyncio.gather(*(_probe(access, server) for server in access.servers))
    servers = ", ".join(access.servers)
    if all(jetstream is None for jetstream in found):
        raise ClusterError(f"cluster.servers: {servers}: no NATS server answers: start them")
    if not any(found):
        raise ClusterError(f"cluster.servers: {servers}: without JetStream: enable it")


async def _probe(access: Access, server: str) -> bool | None:
    """Whether the server has JetStream; None: it does not answer."""
    client = Client()
    options = access.options() | {"max_reconnect_attempts": 1, "allow_reconnect": False}
    try:
        await asyncio.wait_for(client.connect(server, **options), 3)
        _check_server(server, client)
        return bool(client._server_info.get("jetstream"))  # the library shows it nowhere else
    except (nats.errors.Error, TimeoutError, OSError, ValueError) as error:
        if any(word in str(error).lower() for word in ("authorization", "authentication")):
            raise ClusterError(
                f"cluster.user_file: {server}: the server refuses these credentials: "
                "set cluster.user_file or cluster.credentials_file"
            ) from None
        if "tls" in str(error).lower() or "ssl" in type(error).__name__.lower():
            raise ClusterError(
                f"cluster.tls_ca_file: {server}: no TLS connection: {type(error).__name__}: "
                "check cluster.tls_* and the servers' certificates"
            ) from None
        return None
    finally:
        with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
            await asyncio.wait_for(client.close(), 2)


def _check_server(server: str, client: Client) -> None:
    version = client.connected_server_version
    if (version.major, version.minor) < OLDEST:
        raise ClusterError(
            f"cluster.servers: {server}: version {version.major}.{version.minor}: "
            f"install nats-server {OLDEST[0]}.{OLDEST[1]} or later, because compare-and-set in "
            "clusters is not reliable before"
        )
    if client.max_payload < MAX_PAYLOAD:
        raise ClusterError(
            f"cluster.servers: {server}: max_payload {client.max_payload}: "
            f"set it to at least {MAX_PAYLOAD}"
        )


async def check_stream(
    connection: Connection, options: ClusterOptions, patience_s: float = PATIENCE_S
) -> None:
    """Create the stream if it does not exist; compare it if it does, after its format: a stream of
    another release may have other limits. Servers that are starting have `patience_s` time.

    Raises:
        ClusterError
    """
    wanted = registry_stream(options)
    assert wanted.name
    name = wanted.name

    async def look() -> StreamConfig:
        try:
            return (await connection.ask(lambda js: js.stream_info(name))).config
        except Absent:
            pass
        return (await connection.ask(lambda js: js.add_stream(wanted), 10)).config

    found = await _patiently(look, patience_s, options)
    await _check_meta(connection, options)
    for attribute, label in COMPARED.items():
        is_, should = getattr(found, attribute), getattr(wanted, attribute)
        if is_ != should:
            raise ClusterError(
                f"{_KEYS.get(attribute, 'cluster.name')}: stream {name}: {label} is {is_}, not "
                f"{should}: change the stream with the nats tool, or the configuration"
            )


_KEYS: Final = {"num_replicas": "cluster.replicas"}


async def _check_meta(connection: Connection, options: ClusterOptions) -> None:
    """Format and number of cells are for the life of a cluster.

    Raises:
        ClusterError: the cluster has others.
    """
    name = options.name
    stream, subject = f"KV_{name}", f"$KV.{name}.meta"
    ours = msgspec.json.encode(_Meta(FORMAT, CELLS))

    async def read() -> bytes:
        entry = await get_value(connection, stream, subject)
        if entry is not None:
            return entry.value
        try:
            await put_value(connection, stream, subject, ours, 0)
        except Conflict:
            raise RegistryUnavailable("another replica begins, too") from None
        return ours

    value = await _patiently(read, PATIENCE_S, options)
    try:
        meta = msgspec.json.decode(value, type=_Meta)
    except msgspec.MsgspecError:
        meta = _Meta(0, 0)
    if meta == _Meta(FORMAT, CELLS):
        return
    if meta == _Meta(1, CELLS):
        what = (
            f"stop all replicas, delete the streams {stream}, {name}-F and {name}-J00 to "
            f"{name}-J63 with the nats tool, and start, or use another name"
        )
    else:
        what = "use another name, or the release that made it"
    raise ClusterError(
        f"cluster.name: {name}: a cluster of format {meta.format} with {meta.cells} cells, not "
        f"{FORMAT} and {CELLS}: {what}"
    )


async def check_durable(connection: Connection, options: ClusterOptions) -> bool:
    """Whether all servers with JetStream sync each write; warns if not, or if that is unknown."""
    answers = await _ask_all(connection.client)
    configs = [config for answer in answers if (config := _jetstream(answer)) is not None]
    if any(not config.get("sync_always") for config in configs):
        _log.warning(
            "cluster.servers: sync_interval: not always: a power failure may lose confirmed "
            "records: set jetstream { sync_interval: always }"
        )
        return False
    if len(configs) >= options.replicas:
        return True
    _log.warning(
        "cluster.servers: unknown whether the NATS servers sync each write: set jetstream "
        "{ sync_interval: always }, and export %s to frd's account",
        _VARZ,
    )
    return False


async def _ask_all(client: Client) -> list[bytes]:
    """Answers to `_VARZ` of all servers; none if this account may not ask."""
    answers: list[bytes] = []
    with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        await client.publish(_VARZ, b"", inbox)
        while True:  # servers answer one by one; a pause ends it
            message = await subscription.next_msg(timeout=1.0)
            if not message.data:
                break
            answers.append(message.data)
        await subscription.unsubscribe()
    return answers


def _jetstream(answer: bytes) -> dict[str, object] | None:
    """JetStream's settings in a server's answer; None: the server has none."""
    with contextlib.suppress(msgspec.MsgspecError, KeyError, TypeError, AttributeError):
        config = msgspec.json.decode(answer)["data"]["jetstream"]["config"]
        return config if isinstance(config, dict) else None
    return None


async def _patiently(
    request: Callable[[], Awaitable[T]], patience_s: float, options: ClusterOptions
) -> T:
    """Repeat `request` while it is not answered, as during an election."""
    deadline = asyncio.get_running_loop().time() + patience_s
    while True:
        try:
            return await request()
        except (Unanswered, Refused, RegistryUnavailable) as error:
            code = error.code if isinstance(error, Unanswered) else 0
            over = asyncio.get_running_loop().time() > deadline
            if over or code in _NOT_ENABLED:
                raise _explained(error, code, options) from None
            await asyncio.sleep(0.2)


def _explained(error: Exception, code: int, options: ClusterOptions) -> ClusterError:
    stream = f"stream KV_{options.name}"
    if code in _NOT_ENABLED:
        return ClusterError("cluster.servers: JetStream is not enabled for this account: enable it")
    if code in _TOO_FEW:
        return ClusterError(
            f"cluster.replicas: {options.replicas}: too few NATS servers with JetStream for "
            f"{stream}: start them, or set it to 1"
        )
    if code in _NO_SPACE:
        return ClusterError(
            f"cluster.servers: the NATS servers have no space for {stream}: raise max_file_store"
        )
    return ClusterError(
        f"cluster.servers: JetStream does not answer: {error}: check that most of its servers run"
    )
