"""The RPCs of frd, taken from the descriptor, with bytes on both sides.

gRPC passes messages on as bytes; `frd.wire` parses and checks them, so that an invalid message is
reported by its field instead of gRPC dropping the stream. Channel options are here because both
ends must agree on them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from frd.v1 import stream_pb2 as pb
from frd.wire.fields import text
from frd.wire.messages import MAX_MESSAGE_BYTES

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["Collector"]
_STREAM: Final = "Stream"
_CLOCK: Final = "Clock"
JOB_KEY: Final = "frd-job-bin"
"""Metadata of both calls: the job of the stream, in UTF-8. Absent: the agent knows no rank yet."""

# gRPC drops a larger message together with its stream and reports the reason only to the sender;
# the margin lets `frd.wire` see, name and count those that are merely a batch too large.
_SIZES: Final = (
    ("grpc.max_receive_message_length", 2 * MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", 2 * MAX_MESSAGE_BYTES),
)
# Probing for bandwidth answers nearly every small message with a ping, which is half of what quiet
# streams cost. A window that holds some batches serves as well, and bounds what waits unread.
_WINDOWS: Final = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 512 * 1024),
)
_PING_AFTER_MS: Final = 4_000
"""A peer pings after this long without data. A machine that dies sends no end of its connections,
and is noticed `_PONG_MS` after the ping."""
_PONG_MS: Final = 3_000
_KEEPALIVE: Final = (
    ("grpc.keepalive_time_ms", _PING_AFTER_MS),
    ("grpc.keepalive_timeout_ms", _PONG_MS),
    # gRPC waits for the answer to a ping for ping_timeout_ms, by default a minute, also if its
    # keepalive time-out is shorter: seen with 1.85 (tests/e2e/test_keepalive.py).
    ("grpc.http2.ping_timeout_ms", _PONG_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
CHANNEL_OPTIONS: Final = (
    *_SIZES,
    *_WINDOWS,
    *_KEEPALIVE,
    # No proxy of the environment: it would see an unencrypted token, even one for this machine.
    ("grpc.enable_http_proxy", 0),
)
SERVER_OPTIONS: Final = (
    *_SIZES,
    *_WINDOWS,
    # Only a silent agent is pinged, whose machine is dead or whose rows would be late anyway.
    *_KEEPALIVE,
    # Below `_PING_AFTER_MS`, or the service treats the pings as an attack and hangs up.
    ("grpc.http2.min_ping_interval_without_data_ms", 3_000),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # A connection without a stream is never authenticated, so it is closed.
    ("grpc.max_connection_idle_ms", 30_000),
    # A port that another service uses is an error at start; it must not be shared silently.
    ("grpc.so_reuseport", 0),
)

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
StreamHandler: TypeAlias = Callable[[AsyncIterator[bytes], Context], Awaitable[None]]
"""Reads with ``await context.read()``, writes with ``await context.write(data)``."""
StreamCall: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"


def collector(stream: StreamHandler, clock: StreamHandler | None = None) -> grpc.GenericRpcHandler:
    """A handler for `grpc.aio.Server.add_generic_rpc_handlers`: `stream` serves the rows of
    agents, `clock` their pings; without `clock` the service reports that RPC as unimplemented."""
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: grpc.stream_stream_rpc_method_handler(serve)
        for name, serve in ((_STREAM, stream), (_CLOCK, clock))
        if serve is not None
    }
    return grpc.method_handlers_generic_handler(_SERVICE.full_name, handlers)


def open_stream(channel: grpc.aio.Channel, **options: Any) -> StreamCall:
    """A call on `channel`: ``await call.write(data)``, ``await call.read()``.

    `options` are those of a grpc.aio multi-callable: metadata, credentials, wait_for_ready.
    """
    return channel.stream_stream(_path(_STREAM))(**options)


def open_clock(channel: grpc.aio.Channel, **options: Any) -> StreamCall:
    """As `open_stream`, for pings."""
    return channel.stream_stream(_path(_CLOCK))(**options)


def job_metadata(job: str | None) -> tuple[tuple[str, bytes], ...]:
    """The metadata of a stream of `job`: its name as the messages have it."""
    return () if job is None else ((JOB_KEY, text(job).encode()),)


def job_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str | None:
    """The inverse of `job_metadata`; None if they name no job, or no UTF-8."""
    for key, value in metadata or ():
        if key == JOB_KEY:
            try:
                return value.decode() if isinstance(value, bytes) else value
            except UnicodeDecodeError:
                return None
    return None


def _path(method: str) -> str:
    return f"/{_SERVICE.full_name}/{_SERVICE.methods_by_name[method].name}"
