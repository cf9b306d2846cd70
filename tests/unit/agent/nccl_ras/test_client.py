"""Questions to a RAS service on a real socket, and to other programs; where the agent connects for
a rank, and where it does not."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from frd.errors import ServiceUnavailable
from frd.wire.waits import MAX_OPS, MemberState, decode_ras
from frd_agent.nccl_ras import client as module
from frd_agent.nccl_ras.client import RasClient, is_here, place_of, read_answer
from tests.world.ras_server import RasServer, moved, recorded, serving_ras
from tests.world.seeds import ALL

PIDS = {671: 1, 674: 2, 677: 3, 678: 4}
LAGGING = moved("lagging", PIDS)
COMMANDS = ["CLIENT PROTOCOL 2", "TIMEOUT 3", "SET FORMAT json", "VERBOSE STATUS"]


class Node:
    """The client, and a process 7 whose environment names the address."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder
        self.results: Counter[str] = Counter()

    def listens(self, address: str) -> Node:
        (self.proc / "7").mkdir()
        (self.proc / "7" / "environ").write_bytes(b"NCCL_RAS_ADDR=" + address.encode())
        return self

    async def ask(self, own_pid: int = 3, timeout_s: float = 5.0) -> bytes:
        return await RasClient(self.results).ask(7, own_pid, timeout_s)


@pytest.fixture
def node(proc_files: Path) -> Node:
    return Node(proc_files)


async def test_a_question_and_its_answer(node: Node) -> None:
    """Only status is asked for, in JSON, and the communicator of the rank comes back."""
    with serving_ras(RasServer(LAGGING)) as ras:
        report = decode_ras(await node.listens(ras.address).ask())
    (one,) = report.communicators
    assert one.hash == "63e59fe8c2f77187"
    assert ras.heard == [COMMANDS]
    assert node.results == {"answered": 1}


async def test_another_job_answers_first(node: Node) -> None:
    """Both listen at one port: the client connects again, up to three times in all."""
    other = recorded("lagging")
    with serving_ras(RasServer(other, LAGGING)) as ras:
        assert decode_ras(await node.listens(ras.address).ask()).communicators
        assert len(ras.heard) == 2
        ras.answers = [other]
        with pytest.raises(ServiceUnavailable, match="does not know the rank"):
            await node.ask()
        assert len(ras.heard) == 5
    assert node.results == {"answered": 1, "failed": 1}


@pytest.mark.parametrize(
    ("says", "last", "why"),
    [
        ({"SET FORMAT json": b"ERROR: Unknown command SET FORMAT json\n"}, 2, "newer NCCL"),
        ({"SET FORMAT json": b"ERROR: Invalid format json\n"}, 2, "newer NCCL"),
        ({"CLIENT PROTOCOL 2": b"-ERR unknown\r\n"}, 0, "NCCL RAS"),
        ({"CLIENT PROTOCOL 2": b"HTTP/1.1 400\r\n\r\n"}, 0, "NCCL RAS"),
        ({"CLIENT PROTOCOL 2": b"x" * 99_999}, 0, "NCCL RAS"),
    ],
)
async def test_an_older_release_and_other_programs(
    node: Node, says: dict[str, bytes], last: int, why: str
) -> None:
    """A release without JSON is not asked for a status; another program gets the greeting and no
    command."""
    with (
        serving_ras(RasServer(LAGGING, says=says)) as ras,
        pytest.raises(ServiceUnavailable, match=why),
    ):
        await node.listens(ras.address).ask()
    assert ras.heard == [COMMANDS[: last + 1]]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (LAGGING[:-100], "cannot be read"),
        (b"", "cannot be read"),
        (recorded("lagging")[:10], "cannot be read"),
        (LAGGING + b" " * 100_000, "exceeds 100000 bytes"),
    ],
    ids=["cut", "empty", "only its begin", "too large"],
)
async def test_an_answer_that_ends_early_or_late(
    node: Node, monkeypatch: pytest.MonkeyPatch, data: bytes, why: str
) -> None:
    """It is not used; reading ends at the limit."""
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 100_000)
    with serving_ras(RasServer(data)) as ras, pytest.raises(ServiceUnavailable, match=why):
        await node.listens(ras.address).ask()


async def test_no_answer_in_time(node: Node) -> None:
    """Something accepts connections and says nothing, or nothing listens at all."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ServiceUnavailable, match=r"no answer within 0\.1 s"):
            await node.listens(address).ask(timeout_s=0.1)
    with pytest.raises(ServiceUnavailable, match=r"127\.0\.0\.1"):
        await node.ask()
    assert node.results == {"failed": 2}


async def test_a_question_has_its_whole_time_after_it_has_waited(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three questions to a service that says nothing: the second takes its own time limit after the
    first, and the third ends with the time of the request."""
    monkeypatch.setattr(module, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        node.listens(f"127.0.0.1:{silent.getsockname()[1]}")
        asking = RasClient(node.results)
        questions = [asking.ask(7, 3, timeout_s) for timeout_s in (5.0, 5.0, 0.1)]
        said = await asyncio.gather(*questions, return_exceptions=True)
    assert [str(one) for one in said] == [
        "NCCL RAS: no answer within 0.2 s",
        "NCCL RAS: no answer within 0.2 s",
        "NCCL RAS: other questions took 0.1 s",
    ]
    assert node.results == {"failed": 3}


@pytest.mark.timeout(30)
async def test_an_environment_that_cannot_be_read(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel does not return from reading it, as from a pipe without a writer: questions fail,
    one thread waits, and the event loop goes on. Later the environment can be read again."""
    monkeypatch.setattr(module, "READ_S", 0.5)
    environ = node.proc / "7" / "environ"
    environ.parent.mkdir()
    os.mkfifo(environ)
    asking, before = RasClient(node.results), set(threading.enumerate())
    for _ in range(3):
        with pytest.raises(ServiceUnavailable, match=r"process 7, .* cannot be read within 0\.5 s"):
            await asking.ask(7, 3, 5.0)
    started = set(threading.enumerate()) - before
    readers = [one for one in started if one.name == "frd-environ-of"]
    assert (len(readers), node.results) == (1, {"failed": 3})
    with environ.open("wb"):
        environ.unlink()
    with serving_ras(RasServer(LAGGING)) as ras:
        environ.write_bytes(b"NCCL_RAS_ADDR=" + ras.address.encode())
        while asking._helper.hangs:
            await asyncio.sleep(0.01)
        assert decode_ras(await asking.ask(7, 3, 5.0)).communicators


async def test_an_unforeseen_error(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged and counted, and the service gets an answer."""
    monkeypatch.setattr(module, "read_answer", lambda *_: 1 // 0)
    with (
        serving_ras(RasServer(LAGGING)) as ras,
        pytest.raises(ServiceUnavailable, match="ZeroDivisionError: see the log of the agent"),
    ):
        await node.listens(ras.address).ask()
    assert node.results == {"failed": 1}
    assert "ZeroDivisionError" in caplog.text


# -- addresses -----------------------------------------------------------------------------------


NET = "net:[4026531840]"


def write_proc(folder: Path, environ: Mapping[str, str], net: str = NET) -> None:
    """Process 7 with this environment, and the agent itself."""
    for pid, its_net in (("7", net), ("self", NET)):
        (folder / pid / "ns").mkdir(parents=True)
        os.symlink(its_net, folder / pid / "ns" / "net")
    pairs = [f"{name}={value}".encode() for name, value in environ.items()]
    (folder / "7" / "environ").write_bytes(b"\0".join(pairs) + b"\0")


@pytest.mark.parametrize(
    ("given", "place"),
    [
        (None, "127.0.0.1:28028"),
        ("", "127.0.0.1:28028"),
        ("localhost:28029", "127.0.0.1:28029"),
        ("127.0.0.2:28029", "127.0.0.2:28029"),
        ("[::1]:28029", "[::1]:28029"),
        ("0.0.0.0:28029", "127.0.0.1:28029"),
    ],
)
def test_an_address_of_this_machine(proc_files: Path, given: str | None, place: str) -> None:
    """From the rank's environment, else NCCL's default."""
    environ = {"HOME": "/", **({} if given is None else {"NCCL_RAS_ADDR": given})}
    write_proc(proc_files, environ)
    assert str(place_of(7)) == place


ELSEWHERE = (
    *("198.51.100.7:28028", "[2001:db8::1]:28028", "example.invalid:28028"),
    *("28028", "a:b:c", "x:1e9"),
)


@pytest.mark.parametrize(
    ("environ", "net", "why"),
    [
        *(({"NCCL_RAS_ADDR": given}, NET, "NCCL_RAS_ADDR") for given in ELSEWHERE),
        ({"NCCL_RAS_ENABLE": "0"}, NET, "switches it off"),
        ({}, "net:[4026532008]", "network namespace"),
    ],
)
def test_an_address_that_is_refused(
    proc_files: Path, environ: dict[str, str], net: str, why: str
) -> None:
    """A job cannot make the agent connect to another machine, nor look up a name. With RAS switched
    off, what listens is of another job, and so it is in another network namespace."""
    write_proc(proc_files, environ, net=net)
    with pytest.raises(ServiceUnavailable, match=why):
        place_of(7)


@pytest.mark.usefixtures("proc_files")
def test_a_process_that_cannot_be_read() -> None:
    """No right, gone, or in another pid namespace: NCCL's default."""
    assert str(place_of(8)) == str(place_of(None)) == "127.0.0.1:28028"


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        *(("127.0.0.1", True), ("::1", True), ("198.51.100.7", False), ("localhost", False)),
        *(("", False), ("x" * 300, False)),
        *((f"fe80::1%{interface}", False) for interface in ("\0a", "\ud800", "x" * 300)),
    ],
)
def test_addresses_of_this_host(host: str, ours: bool) -> None:
    """Names, and addresses that are reserved for documentation, are not; nor are interfaces whose
    names the socket module refuses, each with another exception."""
    assert is_here(host) is ours


# -- recorded answers of RAS, and what is no answer ------------------------------------------------


def here(host: str) -> bool:
    return host == "192.0.2.2"


def test_a_rank_that_lags() -> None:
    """Rank 1 of four has launched one all_reduce less; the communicators of two ranks are not those
    of process 677."""
    (one,) = read_answer(recorded("lagging"), 677, here).communicators
    assert (one.hash, one.size) == ("63e59fe8c2f77187", 4)
    at = one.ops.index("AllReduce")
    assert [member.counts[at] for member in one.members] == [32, 31, 32, 32]
    assert [member.pid for member in one.members] == [671, 674, 677, 678]
    assert {member.state for member in one.members} == {0}
    assert len(read_answer(recorded("lagging"), 671, here).communicators) == 3


@pytest.mark.parametrize(("name", "rank"), [("killed", 2), ("stopped", 3)])
def test_a_rank_that_does_not_respond(name: str, rank: int) -> None:
    """It is a member without counts; a question about its own process finds it, too."""
    for pid in (671, {2: 677, 3: 678}[rank]):
        (one,) = [c for c in read_answer(recorded(name), pid, here).communicators if c.size == 4]
        (missing,) = [member for member in one.members if member.state]
        assert (missing.rank, missing.counts) == (rank, ())
        assert missing.state == MemberState.MISSING | MemberState.UNRESPONSIVE


@pytest.mark.parametrize(("pid", "host"), [(4711, "192.0.2.2"), (677, "192.0.2.3")])
def test_an_answer_of_another_job(pid: int, host: str) -> None:
    """Another process, or the same number on another host: nothing is left of it."""
    assert read_answer(recorded("lagging"), pid, lambda one: one == host).communicators == ()


def changed(**keys: Any) -> bytes:
    """The recorded answer with other keys of a rank."""
    document = json.loads(recorded("lagging"))
    document["communicators"][1]["ranks"][0] |= keys
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        recorded("lagging")[:2000],
        b"Job summary\n===========\n",
        b"[" * 100_000,
        b'{"communicators": {}}',
        b'{"communicators": [{"hash": "0xfg", "size": 2}]}',
        b'{"communicators": [{"hash": "0x\\u001b[2J", "size": 2}]}',
        changed(rank=-1),
        changed(rank=1 << 40),
        changed(pid="671"),
        changed(host="fe80::1%\0a"),
        changed(host="é"),
        changed(host="1" * 257),
        changed(collective_counts={"AllReduce": -1}),
        changed(collective_counts={"\x1b[2J": 1}),
        changed(collective_counts=[]),
        changed(collective_counts={f"Op{number}": 1 for number in range(65)}),
        changed(status={"async_error": 1 << 20}),
        "\ud800".encode("utf-8", "surrogatepass"),
    ],
    ids=range(19),
)
def test_what_is_no_answer(data: bytes) -> None:
    """Cut off, text, too deep, numbers out of range, names with control characters."""
    with pytest.raises(ServiceUnavailable, match="cannot be read"):
        read_answer(data, 671, here)


def test_keys_of_a_later_release() -> None:
    """They are ignored; keys that are missing are empty."""
    data = changed(gpu_name="H200", status={"state": "fine"})
    assert len(read_answer(data, 671, here).communicators) == 3


def test_more_ranks_than_a_report_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is refused before they are copied."""
    monkeypatch.setattr("frd_agent.nccl_ras.client.MAX_MEMBERS", 7)
    with pytest.raises(ServiceUnavailable, match="8 ranks: over 7"):
        read_answer(recorded("lagging"), 671, here)
    assert read_answer(recorded("lagging"), 677, here).communicators


def answer_of(ranks: Iterable[str]) -> bytes:
    """The answer about one communicator of process 1, with this JSON of its ranks."""
    one = f'{{"hash": "0x1", "size": 1000000, "ranks": [{",".join(ranks)}]}}'
    return f'{{"communicators": [{one}]}}'.encode()


def rank_with(number: int, ops: Iterable[str]) -> str:
    counts = ",".join(f'"{op}":{number}' for op in ops)
    return f'{{"rank":{number},"pid":1,"collective_counts":{{{counts}}}}}'


MB = 1024 * 1024
HOSTILE = {
    "other ops in each rank": answer_of(rank_with(n, [f"op{n}"]) for n in range(4_000)),
    "many ops in one rank": answer_of([rank_with(1, (f"op{n}" for n in range(100_000)))]),
    "one rank has all ops": answer_of(
        [rank_with(0, (f"op{n}" for n in range(64)))]
        + [rank_with(n, ["op63"]) for n in range(1, 60_000)]
    ),
    "small ranks": answer_of(['{"rank":0,"pid":1}'] * 250_000),
    "small communicators": b'{"communicators":[%s]}'
    % b",".join([b'{"hash":"0x1","size":1}'] * 250_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_answers_that_would_take_much_memory(name: str) -> None:
    """They are refused before objects are made of them."""
    data = HOSTILE[name]
    tracemalloc.start()
    try:
        with pytest.raises(ServiceUnavailable, match=r"its answer has .*: over"):
            read_answer(data, 1, lambda _: True)
        assert tracemalloc.get_traced_memory()[1] < 16 * MB
    finally:
        tracemalloc.stop()


def test_the_largest_answer_that_is_accepted() -> None:
    """Short names of many operations take few bytes of JSON."""
    ranks = 15_000 if ALL else 3_000
    ops = [f"{chr(65 + n // 26)}{chr(65 + n % 26)}" for n in range(MAX_OPS)]
    data = answer_of(rank_with(number, ops) for number in range(ranks))
    tracemalloc.start()
    try:
        (one,) = read_answer(data, 1, lambda _: True).communicators
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(one.members), one.members[-1].counts) == (ranks, (ranks - 1,) * MAX_OPS)
    assert peak < 64 * MB * ranks // 15_000
