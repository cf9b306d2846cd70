"""Where the agent connects for a rank, and where it does not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from frd.errors import ServiceUnavailable
from frd_agent.nccl_ras.address import is_here, place_of

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
