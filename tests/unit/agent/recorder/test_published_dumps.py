"""Dumps that a tap publishes in a file, read in place of a worker server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from frd.model import NodeNs, NodeRawNs
from frd_agent.node_time import ClockReading
from frd_agent.recorder.published_dumps import PublishedDumps, ServerAndDumps
from frd_agent.recorder.worker_server import HandlerFailed, Handlers, NothingNew
from frd_agent.tap import Files
from tests.world.run_dir import TOKEN

AT = 1_700_000_000_000_000_000
ASKED = ClockReading(NodeRawNs(90), NodeNs(AT + 60), 1)
DUMP = '{"version": "2.10", "entries": []}'


def dumps(folder: Path) -> PublishedDumps:
    return PublishedDumps(folder / f"{TOKEN}.dumps", lambda wall: NodeRawNs(wall - AT + 30))


def publish(folder: Path, at_ns: int = AT, **recorders: str) -> None:
    """As a tap writes it."""
    (folder / f"{TOKEN}.shm").unlink(missing_ok=True)
    Files(str(folder), TOKEN).write_dumps(at_ns, recorders)


def test_what_a_tap_writes_is_read(tmp_path: Path) -> None:
    """Each recorder by its handler's name, as old as the tap says."""
    publish(tmp_path, fr_trace_json=DUMP, dump_nccl_trace_json='{"version": "2.4"}')
    known = dumps(tmp_path)
    assert known.is_due()
    known.connected()
    assert asyncio.run(known.names()) == ("fr_trace_json", "dump_nccl_trace_json")
    assert json.loads(asyncio.run(known.ask("fr_trace_json"))) == json.loads(DUMP)
    assert known.taken_at(ASKED) == ClockReading(NodeRawNs(30), NodeNs(AT), 1)
    assert not known.is_due()
    publish(tmp_path, AT + 5, fr_trace_json=DUMP)
    assert known.is_due()
    known.connected()
    assert asyncio.run(known.names()) == ("fr_trace_json",)
    assert known.taken_at(ASKED).raw_ns == 35


def test_a_dump_that_says_too_little_is_read_again(tmp_path: Path) -> None:
    """As for the membership of a group that comes a moment later; not for ever."""
    publish(tmp_path, fr_trace_json=DUMP)
    known, readings = dumps(tmp_path), 0
    while known.is_due(again=True):
        known.connected()
        readings += 1
    assert readings == 8


def test_its_time_survives_a_step_of_the_clock(tmp_path: Path) -> None:
    """A file is timed when it is first seen, as stamps of phases are, and never later than now."""
    publish(tmp_path, fr_trace_json=DUMP)
    raw = [30]
    known = PublishedDumps(tmp_path / f"{TOKEN}.dumps", lambda _: NodeRawNs(raw[0]))
    known.connected()
    first = known.taken_at(ASKED)
    raw[0] = 3_600_000
    assert known.taken_at(ASKED) == first
    publish(tmp_path, AT + 1, fr_trace_json=DUMP)
    known.connected()
    assert known.taken_at(ASKED).raw_ns == ASKED.raw_ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[" * 50_000,
        json.dumps({"schema": 1, "token": "0" * 12, "at_ns": 1, "recorders": {}}),
    ],
)
def test_a_bad_file_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    """Torn, foreign or of another rank."""
    path = tmp_path / f"{TOKEN}.dumps"
    path.write_text(text)
    known = dumps(tmp_path)
    known.connected()
    with pytest.raises(HandlerFailed, match=str(path)):
        asyncio.run(known.names())


def test_a_rank_that_has_not_rested(tmp_path: Path) -> None:
    """There is no file yet."""
    known = dumps(tmp_path)
    assert not known.is_due(again=True)
    known.connected()
    with pytest.raises(HandlerFailed, match="have not rested yet"):
        asyncio.run(known.ask("fr_trace_json"))


class _Server(Handlers):
    """Gives NCCL's recorder only, as that of torch 2.9 does."""

    async def names(self) -> tuple[str, ...]:
        return ("dump_nccl_trace_json",)

    async def ask(self, name: str, **_: object) -> bytes:
        return name.encode()


def test_a_server_that_lacks_a_recorder(tmp_path: Path) -> None:
    """NCCL's recorder comes from the server and is as new as the request; Gloo's from the file, as
    old as that says, and not before there is one, nor again and again."""
    known = ServerAndDumps(_Server(tmp_path / "none"), dumps(tmp_path))

    async def read(name: str) -> tuple[bytes, ClockReading]:
        async with known.connected():
            assert await known.names() == ("dump_nccl_trace_json", "fr_trace_json")
            return await known.ask(name), known.taken_at(ASKED)

    with pytest.raises(NothingNew):
        asyncio.run(read("fr_trace_json"))
    assert asyncio.run(read("dump_nccl_trace_json")) == (b"dump_nccl_trace_json", ASKED)
    publish(tmp_path, fr_trace_json=DUMP)
    data, taken_at = asyncio.run(read("fr_trace_json"))
    assert (json.loads(data), taken_at.raw_ns) == (json.loads(DUMP), 30)
    assert asyncio.run(read("dump_nccl_trace_json"))[1] == ASKED
    readings = 1
    with contextlib.suppress(NothingNew):
        while readings < 20:
            asyncio.run(read("fr_trace_json"))
            readings += 1
    assert readings == 8
