"""Recorded answers of RAS, and what is no answer."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest

from frd.errors import ServiceUnavailable
from frd.wire.waits import MAX_OPS, MemberState
from frd_agent.nccl_ras.answer import read_answer
from tests.world.ras_server import recorded
from tests.world.seeds import ALL


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
    monkeypatch.setattr("frd_agent.nccl_ras.answer.MAX_MEMBERS", 7)
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
