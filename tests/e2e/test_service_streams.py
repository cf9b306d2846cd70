"""The real service process and real gRPC streams: what is refused, counted, kept and asked."""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import socket
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import numpy as np
import pytest

from frd.model import NodeNs, RankInfo, RankState, RankStatus
from frd.v1 import stream_pb2 as pb
from frd.wire.codec import encode_agent
from frd.wire.messages import (
    MAX_MESSAGE_BYTES,
    Ack,
    Declare,
    Part,
    RankDecl,
    Refusal,
    Request,
    ResponsePart,
    Resync,
    Statuses,
)
from tests.world.daemons import frd, run_program, serve_command, until
from tests.world.streams import WORLD, Peer, Service, both_nodes, entries, peer, serving, stall

T = TypeVar("T")


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Starts real service processes, all on one data directory."""
    with ExitStack() as stack:
        yield lambda *flags: stack.enter_context(serving(tmp_path / "data", *flags))


# -- bad input -----------------------------------------------------------------------------------


def unequal_columns() -> bytes:
    message = pb.AgentMessage.FromString(encode_agent(entries(1, 0, 4)))
    message.entries.flags = message.entries.flags[:3]
    return message.SerializeToString()


def beyond_the_world() -> bytes:
    rank = RankDecl(2, 0, RankInfo(WORLD, WORLD, "n", "b", 1))
    return encode_agent(Declare(ranks=(rank,)))


MANY_STATUSES = pb.StatusBatch(statuses=[pb.Status()] * 500_000)
"""A MiB: without a limit of items, the service would need seconds for it."""

BAD: dict[str, tuple[Callable[[], list[bytes]], str, str]] = {
    "unknown index": (
        lambda: [encode_agent(replace(entries(1, 0, 4), group=np.array([0, 0, 9, 0])))],
        "entries.group",
        "unknown_index",
    ),
    "unequal columns": (lambda: [unequal_columns()], "entries.flags", "length"),
    "rank beyond the world": (lambda: [beyond_the_world()], "declare.ranks.rank", "range"),
    "very many empty statuses": (
        lambda: [pb.AgentMessage(statuses=MANY_STATUSES).SerializeToString()],
        "statuses",
        "too_large",
    ),
    "random bytes": (lambda: [random.Random(1).randbytes(1000)], "message", "parse"),
    "larger than allowed": (lambda: [bytes(MAX_MESSAGE_BYTES + 1)], "message", "too_large"),
}


async def refused(service: Service, messages: list[bytes]) -> Refusal:
    """Introduce an agent, send `messages`, and return the refusal, which is the status too."""
    async with peer(service, session="bad", job="bad") as bad:
        await bad.introduce()
        for message in messages:
            await bad.call.write(message)
        refusal: Refusal = await bad.receive_a(Refusal)
        assert await bad.call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await bad.call.details() == refusal.message
    return refusal


async def counted(service: Service, series: str, value: float) -> None:
    await asyncio.to_thread(until, lambda: service.metric(series) == value)


async def test_bad_input_ends_its_own_stream_only(serve: Callable[..., Service]) -> None:
    """Bad input of each kind is refused naming its field and counted; a good stream goes on."""
    service = serve()
    async with peer(service) as good:
        await good.introduce()
        revision = 1
        for name, (messages, field, reason) in BAD.items():
            series = f'frd_ingest_refused_total{{reason="{reason}"}}'
            before = service.metric(series)
            refusal = await refused(service, messages())
            assert refusal.reason == reason, name
            assert refusal.message.startswith(f"{field}: "), name
            await good.send(entries(revision, revision - 1, 10))
            revision += 10
            assert (await good.receive_a(Ack)).revisions == {0: revision - 1}
            await counted(service, series, before + 1)


async def test_a_message_too_large_for_grpc(serve: Callable[..., Service]) -> None:
    """A message far beyond the limit is refused before it is buffered, and counted as aborted."""
    service = serve()
    async with peer(service) as large:
        await large.introduce()
        await large.call.write(bytes(8 * MAX_MESSAGE_BYTES))
        assert await large.call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in (await large.call.details() or "")
    series = 'frd_ingest_refused_total{reason="aborted"}'
    until(lambda: service.metric(series) == 1)


# -- jobs without room -----------------------------------------------------------------------------


async def test_a_job_without_room_is_blind(serve: Callable[..., Service], tmp_path: Path) -> None:
    """A job more than there is room for: its stream goes on, `frd findings` and `frd status` say
    that it is not watched, exit 4, and so does the metric of FrdBlind; when the other job has
    ended and is forgotten, it is watched."""
    config = tmp_path / "frd.toml"
    config.write_text("[policy]\nmax_attempts = 1\n")
    service = serve("--config", config)

    def findings(*arguments: str) -> tuple[int, str]:
        ran = frd("findings", "--http", service.http, *arguments)
        return ran.returncode, ran.stderr

    why = "blind: late: 2 ranks are not watched: attempts: 1 run already:"
    async with peer(service, 0, "a", "first") as first, peer(service, 0, "b", "late") as late:
        await first.introduce()
        await late.introduce()
        await late.send(entries(1, 0, 10))
        assert (await late.receive_a(Ack)).revisions == {0: 10}
        await counted(service, 'frd_refused_ranks{job="late"}', 2)
        code, text = findings()
        assert (code, why in text) == (4, True), text
        assert findings("--job", "late")[0] == 4
        assert why in frd("status", "--http", service.http).stderr
        over = (RankStatus(i, RankState.FINISHED, NodeNs(time.time_ns())) for i in range(2))
        await first.send(Statuses(tuple(over)))
        await late.receive_a(Resync)
        await late.send(entries(11, 10, 10))
        known = partial(service.get, "/api/v1/jobs")
        await asyncio.to_thread(until, lambda: {one["job"] for one in known()["jobs"]} == {"late"})
        assert why not in findings()[1]


# -- counting ------------------------------------------------------------------------------------


# -- findings ------------------------------------------------------------------------------------


async def stalled(service: Service, since: int, condition: Callable[[], T]) -> T:
    """`stall`, during which both agents answer requests."""
    async with both_nodes(service) as peers:
        answering = [asyncio.create_task(answer(agent)) for agent in peers]
        found = await stall(peers, since, condition)
        for task in answering:
            task.cancel()
        return found


STACK = b"""Thread 0x00007f0000000000 (most recent call first):
  File "/home/u/\xff/train.py", line 88 in load_batch
  File "/home/u/train.py", line 10 in <module>
"""


async def answer(agent: Peer) -> None:
    """The ranks of node 1 send a stack that is not UTF-8 and a dump in two parts; node 0 fails."""
    while True:
        request: Request = await agent.receive_a(Request, within_s=60)
        for index in request.rank_indexes:
            part = ResponsePart(request.request_id, index, Part.STACK, b"", True)
            if agent.node == 0:
                await agent.send(*(replace(part, part=p, error="no socket") for p in Part))
            else:
                await agent.send(
                    replace(part, data=STACK, source="py-spy"),
                    replace(part, part=Part.IDENTITY, data=b'{"pid": 102}'),
                    replace(part, part=Part.DUMP, data=b"one", last=False, source="fr_trace_json"),
                    replace(part, part=Part.DUMP, data=b"two", source="fr_trace_json"),
                )


def untar(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        files = {name: tar.extractfile(name) for name in tar.getnames()}
        return {name: file.read() for name, file in files.items() if file is not None}


def test_the_suspect_is_asked_where_it_is(serve: Callable[..., Service]) -> None:
    """A stall opens: the suspect's stack comes into the finding, and a dump of all it involves."""
    service = serve("--stall-after", "1")

    def complete() -> dict[str, Any]:
        found = service.get("/api/v1/findings?state=open")["findings"]
        whole = found and "dump" in found[0] and found[0]["suspects"][0]["stack"]
        return found[0] if whole else {}

    finding = asyncio.run(stalled(service, time.time_ns(), complete))
    assert finding["suspects"][0]["stack"][0] == "train.py:88 in load_batch"
    with urllib.request.urlopen(f"http://{service.http}/api/v1/dumps/{finding['dump']}") as tar:
        texts = untar(tar.read())
    assert texts["job/rank_2"] == b"onetwo"
    assert texts["job.meta/rank_2.stack.txt"] == STACK
    identity = json.loads(texts["job.meta/rank_2.json"])
    assert (identity["pid"], identity["source"]) == (102, "fr_trace_json")
    assert identity["clock_offset_s"] < 1
    summary = json.loads(texts["summary.json"])
    assert summary["answered"] == [2, 3]
    assert summary["failed"] == {"0": "no socket", "1": "no socket"}


# -- start --------------------------------------------------------------------------------------


def failure(data_dir: Path, *flags: str, **environment: str) -> tuple[int, str]:
    done = run_program(serve_command(data_dir, *flags), env={**os.environ, **environment})
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.returncode, done.stderr


def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    """A port in use, a data directory that is a file and an unknown key: one clear line each."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flag in ("grpc", "http"):
            code, line = failure(tmp_path / "data", f"--{flag}", address)
            assert code == 1
            assert line.startswith(f"frd: error: {flag}: {address}: address already in use")
    (tmp_path / "file").write_text("")
    code, line = failure(tmp_path / "file")
    assert code == 1
    assert line.startswith(f"frd: error: data directory: {tmp_path / 'file'}: ")
    code, line = failure(tmp_path / "data", FRD_POLICY__STALL_AFTER="3")
    assert code == 2
    assert line.startswith("frd: error: policy.stall_after: unknown key")


def test_one_data_directory_one_service(serve: Callable[..., Service], tmp_path: Path) -> None:
    """A second service in the same data directory is refused."""
    serve()
    code, line = failure(tmp_path / "data")
    assert code == 1
    assert "another frd serve uses it" in line
