"""The agent's stream and its credential files, against a scripted service."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from frd.model import NodeNs, NodeRawNs
from frd.wire.messages import PROTOCOL, Hello
from frd_agent.counters import Counters
from frd_agent.memory import Samples
from frd_agent.uplink.current_state import CurrentState
from frd_agent.uplink.dictionary import Dictionary
from frd_agent.uplink.dispatch import Dispatch
from frd_agent.uplink.endpoint import Connection, Endpoint
from frd_agent.uplink.outbox import Outbox
from frd_agent.uplink.route import Backoff
from frd_agent.uplink.stream import Stream
from tests.world.collector import Collector, serving
from tests.world.daemons import async_until


async def no_pings(_: Connection) -> None:
    pass


def stream_to(endpoint: Endpoint, stats: Counters, backoff: Backoff) -> Stream:
    dictionary, outbox = Dictionary(), Outbox(100, 10_000)
    current, samples = CurrentState(dictionary.attempt_of), Samples(1, dictionary.series_number)
    return Stream(
        service=endpoint,
        job="train",
        hello=lambda: Hello(PROTOCOL, "0", "node", "boot", "session", NodeNs(1), NodeRawNs(1)),
        dispatch=Dispatch(dictionary, outbox, current, samples, lambda: []),
        outbox=outbox,
        stats=stats,
        on_request=lambda request: None,
        stamp=lambda event: event,
        side_task=no_pings,
        _backoff=backoff,
    )


async def test_a_credential_file_that_cannot_be_read_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The token file is mounted late: one warning names it, and the agent connects when the file
    is there, with its token."""
    caplog.set_level(logging.INFO)
    token, stats, service = tmp_path / "token", Counters(), Collector()
    tries = 0

    def count(low: float, high: float) -> float:
        nonlocal tries
        tries += 1
        return 0.001

    endpoint = Endpoint((service.address,), token_file=token)
    stream = stream_to(endpoint, stats, Backoff(count))
    async with serving(service):
        running = asyncio.create_task(stream.run())
        await async_until(lambda: tries > 3, "several tries")
        assert not stream.connected
        assert not service.hellos
        token.write_text("secret\n")
        await async_until(lambda: stream.connected, "the connection")
        assert service.context is not None
        metadata = dict(service.context.invocation_metadata() or ())
        assert metadata["authorization"] == "Bearer secret"
        stream.close()
        await running
    warnings = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert warnings == [
        f"service {service.address}: not reachable: token_file: {token}: "
        "No such file or directory: name a file that can be read: "
        "the agent keeps trying, and keeps 0 rows until then"
    ]
