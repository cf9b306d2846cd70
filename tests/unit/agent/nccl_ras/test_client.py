"""Questions to a RAS service on a real socket, and to other programs; where the agent connects for
a rank, and where it does not."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from frd.errors import ServiceUnavailable
from frd.wire.ras import decode_ras
from frd_agent.nccl_ras import client as module
from frd_agent.nccl_ras.address import is_here, place_of
from frd_agent.nccl_ras.client import RasClient
from tests.world.ras_server import RasServer, moved, recorded, serving_ras

PIDS = {671: 1, 674: 2, 677: 3, 678: 4}
LAGGING = moved("lagging", PIDS)


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
        return await RasClient(self.results, self.proc).ask(7, own_pid, timeout_s)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_a_question_and_its_answer(node: Node) -> None:
    """Only status is asked for, in JSON, and the communicator of the rank comes back."""
    with serving_ras(RasServer(LAGGING)) as ras:
        report = decode_ras(await node.listens(ras.address).ask())
    (one,) = report.communicators
    assert one.hash == "63e59fe8c2f77187"
    assert ras.heard == [["CLIENT PROTOCOL 2", "TIMEOUT 3", "SET FORMAT json", "VERBOSE STATUS"]]
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
    "said", [b"ERROR: Unknown command SET FORMAT json\n", b"ERROR: Invalid format json\n"]
)
async def test_an_older_release(node: Node, said: bytes) -> None:
    """It has no JSON, and is not asked for a status."""
    with (
        serving_ras(RasServer(LAGGING, says={"SET FORMAT json": said})) as ras,
        pytest.raises(ServiceUnavailable, match="newer NCCL"),
    ):
        await node.listens(ras.address).ask()
    assert ras.heard[0][-1] == "SET FORMAT json"


@pytest.mark.parametrize("greeting", [b"-ERR unknown\r\n", b"HTTP/1.1 400\r\n\r\n", b"x" * 99_999])
async def test_another_program(node: Node, greeting: bytes) -> None:
    """It gets the greeting and no command."""
    with (
        serving_ras(RasServer(LAGGING, says={"CLIENT PROTOCOL 2": greeting})) as ras,
        pytest.raises(ServiceUnavailable, match="NCCL RAS"),
    ):
        await node.listens(ras.address).ask()
    assert ras.heard == [["CLIENT PROTOCOL 2"]]


@pytest.mark.parametrize("data", [LAGGING[:-100], b"", recorded("lagging")[:10]])
async def test_an_answer_that_ends_early(node: Node, data: bytes) -> None:
    """It is not used."""
    with (
        serving_ras(RasServer(data)) as ras,
        pytest.raises(ServiceUnavailable, match="cannot be read"),
    ):
        await node.listens(ras.address).ask()


async def test_an_answer_that_is_too_large(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading ends at the limit."""
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 100_000)
    with (
        serving_ras(RasServer(LAGGING + b" " * 100_000)) as ras,
        pytest.raises(ServiceUnavailable, match="exceeds 100000 bytes"),
    ):
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
        asking = RasClient(node.results, node.proc)
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
    asking, before = RasClient(node.results, node.proc), set(threading.enumerate())
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


def proc(folder: Path, environ: Mapping[str, str], net: str = NET) -> Path:
    """Process 7 with this environment, and the agent itself."""
    for pid, its_net in (("7", net), ("self", NET)):
        (folder / pid / "ns").mkdir(parents=True)
        os.symlink(its_net, folder / pid / "ns" / "net")
    pairs = [f"{name}={value}".encode() for name, value in environ.items()]
    (folder / "7" / "environ").write_bytes(b"\0".join(pairs) + b"\0")
    return folder


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
def test_an_address_of_this_machine(tmp_path: Path, given: str | None, place: str) -> None:
    """From the rank's environment, else NCCL's default."""
    environ = {"HOME": "/", **({} if given is None else {"NCCL_RAS_ADDR": given})}
    assert str(place_of(7, proc(tmp_path, environ))) == place


@pytest.mark.parametrize(
    "given",
    [
        "198.51.100.7:28028",
        "[2001:db8::1]:28028",
        "example.invalid:28028",
        "28028",
        "a:b:c",
        "x:1e9",
    ],
)
def test_an_address_elsewhere_is_refused(tmp_path: Path, given: str) -> None:
    """A job cannot make the agent connect to another machine, nor look up a name."""
    with pytest.raises(ServiceUnavailable, match="NCCL_RAS_ADDR"):
        place_of(7, proc(tmp_path, {"NCCL_RAS_ADDR": given}))


def test_ras_that_is_switched_off(tmp_path: Path) -> None:
    """Nothing is connected to: what listens there would be of another job."""
    with pytest.raises(ServiceUnavailable, match="switches it off"):
        place_of(7, proc(tmp_path, {"NCCL_RAS_ENABLE": "0"}))


def test_another_network_namespace(tmp_path: Path) -> None:
    """The rank's localhost is not that of the agent."""
    with pytest.raises(ServiceUnavailable, match="network namespace"):
        place_of(7, proc(tmp_path, {}, net="net:[4026532008]"))


def test_a_process_that_cannot_be_read(tmp_path: Path) -> None:
    """No right, gone, or in another pid namespace: NCCL's default."""
    assert str(place_of(8, tmp_path)) == str(place_of(None)) == "127.0.0.1:28028"


def test_addresses_of_this_host() -> None:
    """Names, and addresses that are reserved for documentation, are not."""
    hosts = ["127.0.0.1", "::1", "198.51.100.7", "localhost", "", "x" * 300]
    assert [is_here(host) for host in hosts] == [True, True, False, False, False, False]


@pytest.mark.parametrize("host", ["fe80::1%\0a", "fe80::1%\ud800", "fe80::1%" + "x" * 300])
def test_an_interface_that_is_none(host: str) -> None:
    """The socket module refuses such names with different exceptions: it is no address of this
    host."""
    assert not is_here(host)
