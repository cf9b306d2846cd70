"""Recorded answers of RAS, and what is no answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from frd.errors import ServiceUnavailable
from frd.wire.ras import MemberState
from frd_agent.nccl_ras.answer import read_answer
from tests.world.ras_server import recorded


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
        changed(collective_counts={"AllReduce": -1}),
        changed(collective_counts={"\x1b[2J": 1}),
        changed(status={"async_error": 1 << 20}),
        "\ud800".encode("utf-8", "surrogatepass"),
    ],
    ids=range(14),
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
    monkeypatch.setattr("frd_agent.nccl_ras.answer.MAX_MEMBERS", 7)
    with pytest.raises(ServiceUnavailable, match="8 ranks: over 7"):
        read_answer(recorded("lagging"), 671, here)
    assert read_answer(recorded("lagging"), 677, here).communicators
