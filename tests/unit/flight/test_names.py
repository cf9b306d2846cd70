"""Profiling names of every backend, known or not, and the signatures of entries."""

from __future__ import annotations

import pytest

from frd.flight.entry import Dump, Entry, Name, coalesced, parse_profiling_name
from frd.flight.trace import Dictionaries, columns_of
from frd.model import Signature


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("nccl:all_reduce", Name("nccl", "all_reduce")),
        ("gloo:all_to_all", Name("gloo", "all_to_all")),
        ("nccl:_all_gather_base", Name("nccl", "_all_gather_base")),
        ("nccl:ALLGATHER_coalesced", Name("nccl", "ALLGATHER_coalesced")),
        ("nccl:send 0->3", Name("nccl", "send", 0, 3, is_p2p_kind=True)),
        ("nccl:recv 3<-0", Name("nccl", "recv", 0, 3, is_p2p_kind=True)),
        ("nccl2:recv 1<-?", Name("nccl2", "recv", None, 1, is_p2p_kind=True)),
        ("ncclx:send", Name("ncclx", "send", is_p2p_kind=True)),
        ("my_backend:fused_thing", Name("my_backend", "fused_thing")),
        ("fake:op with words", Name("fake", "op with words")),
        ("a:b:c", Name("a", "b:c")),
        ("all_reduce", Name("", "all_reduce")),
        ("nccl:send 0->", Name("nccl", "send 0->")),
        ("nccl:", Name("nccl", "")),
        ("", Name("", "")),
    ],
)
def test_names(text: str, name: Name) -> None:
    """Known names come apart, unknown ones are kept whole."""
    assert parse_profiling_name(text) == name


def test_signature() -> None:
    """A signature is what the peers must agree with: no sequence, no time, no peer."""
    send = Entry(
        record_id=7,
        process_group=("39", "PIPELINE_MODEL_PARALLEL_GROUP"),
        profiling_name="nccl:send 0->1",
        collective_seq_id=29,
        input_sizes=((2048, 1, 5120),),
        output_sizes=((2048, 1, 5120),),
        input_dtypes=("BFloat16",),
        output_dtypes=("BFloat16",),
        time_created_ns=1,
    )
    into = Dictionaries()
    columns_of(Dump("2.10", entries=(send,)), into)
    assert into.signatures.items[0] == Signature(
        backend="nccl",
        op="send",
        input_sizes=((2048, 1, 5120),),
        output_sizes=((2048, 1, 5120),),
        input_dtypes=("BFloat16",),
        output_dtypes=("BFloat16",),
    )


def part(op: str, *sizes: int) -> Signature:
    shape = tuple((size,) for size in sizes)
    return Signature("nccl", op, shape, shape, ("Float",) * len(sizes), ("Float",) * len(sizes))


@pytest.mark.parametrize(
    ("parts", "op", "sizes"),
    [
        ([part("_broadcast_oop", 4), part("_broadcast_oop", 5), part("ALLGATHER_coalesced", 9)],
         "ALLGATHER_coalesced(_broadcast_oop x2)", ((4,), (5,))),
        ([part("all_reduce", 1), part("broadcast", 2), part("coalesced")],
         "coalesced(all_reduce,broadcast)", ((1,), (2,))),
        ([part("all_reduce", 1), part("all_reduce", 2)], "coalesced(all_reduce x2)", ((1,), (2,))),
        ([part("all_reduce", 1), part("coalesced")], "all_reduce", ((1,),)),
        ([part("REDUCE_SCATTER_coalesced", 7)], "REDUCE_SCATTER_coalesced", ((7,),)),
    ],
)  # fmt: skip
def test_ops_issued_as_one_are_told_as_one(
    parts: list[Signature], op: str, sizes: tuple[tuple[int, ...], ...]
) -> None:
    """The parts count; the entry that ends the series names it, or is alone where parts are not."""
    whole = coalesced(parts)
    assert (whole.op, whole.input_sizes) == (op, sizes)
