"""Columns of many lines: the fast ways give what the exact one gives, whatever the lines."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frd.dftracer.block import Block, Calls
from frd.dftracer.reader import BlockReader
from frd.dftracer.scan import scan
from tests.world.io_traces import DIALECTS, Call, Writer, digest, training
from tests.world.seeds import ALL

SEVERAL = 200
"""Lines of one form: enough for the fastest way."""


def rows(block: Block, calls: Calls) -> list[tuple[Any, ...]]:
    """One tuple a span, with texts in place of indexes; the order is not promised."""
    texts = {key: [*getattr(calls, f"{key}s"), None] for key in ("name", "cat", "file")}
    columns = [
        [str(texts[key][at]) for at in getattr(block, key)]
        if key in texts
        else getattr(block, key).tolist()
        for key in ("start", "dur", "name", "cat", "kind", "pid", "tid", "file", "nbytes", "failed")
    ]
    return sorted(zip(*columns, block.epoch.tolist(), block.step.tolist(), strict=True))


def both(data: bytes) -> tuple[Block, Block]:
    """Read as usual, and line by line; the same."""
    usual, exact = BlockReader(), BlockReader()
    fast, slow = usual.read(data), exact._exact(data)
    assert rows(fast, usual.calls) == rows(slow, exact.calls)
    assert set(fast.metadata) == set(slow.metadata)
    same = ("host", "broken", "aggregated", "stepped", "first_broken")
    assert [getattr(fast, key) for key in same] == [getattr(slow, key) for key in same]
    return fast, slow


def text(dialect: str, calls: list[Call]) -> bytes:
    return "\n".join([*Writer(dialect, pid=70_123).lines(calls), ""]).encode()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_fast_ways_read_what_the_exact_one_reads(dialect: str) -> None:
    """A long training of every dialect; all but v0 are mostly read as bytes."""
    data = text(dialect, training(1, steps=SEVERAL))
    fast, _ = both(data)
    scanned = scan(data, Calls())
    if dialect == "v0":
        assert scanned is None
    else:
        assert scanned is not None
        assert len(scanned[0]["start"]) > 0.9 * len(fast)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_names_and_files_stay_known_from_block_to_block(dialect: str) -> None:
    """A trace in blocks, of which each but the first finds its names and files in the tables."""
    lines = text(dialect, training(1, steps=SEVERAL)).splitlines(keepends=True)
    usual, exact = BlockReader(), BlockReader()
    for at in range(0, len(lines), len(lines) // 4):
        block = b"".join(lines[at : at + len(lines) // 4])
        fast, slow = usual.read(block), exact._exact(block)
        assert rows(fast, usual.calls) == rows(slow, exact.calls)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"ret":7,', '"ret":-1,'),
        ('"ret":7,', '"ret":12345678901234,'),
        ('"ret":7,', '"ret":12345678901234567,'),
        ('"ret":7,', '"ret":7.5,'),
        ('"ret":7,', '"ret": 7,'),
        ('"ret":7,', '"ret":"7",'),
        ('"ret":7,', ""),
        ('"dur":3', '"dur":18446744073709551000'),
        ('"dur":3', '"dur":'),
        ('"dur":3,', ""),
        ('"ph":1', '"ph":2'),
        ('"name":"read"', '"name":"a_call_with_a_very_long_name_indeed_it_has"'),
        ('"name":"read"', '"name":"a_call_with_a_longish_name"'),
        ('"name":"read"', '"name":"a,b"'),
        ('"name":"read"', '"name":"r\\"d"'),
        ('"name":"read"', '"name":""'),
        ('"name":"read"', '"name":"fread"'),
        ('"name":"read"', '"name":"fork"'),
        ('"cat":"POSIX"', '"cat":"dftracer"'),
        ('"cat":"POSIX"', '"cat":"compute"'),
        ('"type":3,', ""),
        ("}}", "}"),
        ("}}", '},"more":1}'),
        ("}}", ',"step":4,"epoch":2,"name":"x"}}'),
        ('"fhash":"', '"fhash":"x'),
        ('{"id":', '{"ID":'),
        ('"args":{', '"args":[{'),
        ('"ret":7', '"ret":{"id":9,"name":"read"}'),
        ('"ret":7', '"x":{"a":1,"ret":50,"b":2},"y":1'),
        ('"ret":7', '"note":"{","ret":7'),
        ('"ret":7', '"note":"a"c","ret":7'),
        ('"ret":7', '"note":"a\\qc","ret":7'),
        ('"ret":7', '"note":"a"b,"ret":7'),
        ('"ret":7', '"note":"a"{b","ret":7'),
        ('"name":"read"', '"name":"r"d"'),
        ('"fhash":"', '"fhash":"\\udc80'),
        ("\n", ",\n"),
        ("\n", "\r\n"),
        ("\n", ""),
    ],
)
def test_odd_lines_among_usual_ones(old: str, new: str) -> None:
    """One change to all lines, or to some of them: the same spans, the same broken lines."""
    lines = text("v2.2", [Call("read", 10 * n, 3, file="/d", ret=7) for n in range(SEVERAL)])
    both(lines.replace(old.encode(), new.encode()))
    parts = lines.split(b"\n")
    for number in range(3, len(parts), 17):
        changed = (parts[number] + b"\n").replace(old.encode(), new.encode())
        parts[number] = changed.removesuffix(b"\n")
    both(b"\n".join(parts))


@pytest.mark.parametrize("count", [10, SEVERAL])
def test_a_quote_in_an_argument_loses_no_span(count: int) -> None:
    """DFTracer writes a note such as `a"c` unescaped: few lines and many are read alike, and none
    is broken."""
    calls = [
        Call("forward", 10 * n, 3, "compute", args={"note": "aQc", "epoch": 1, "step": n})
        for n in range(count)
    ]
    fast, _ = both(text("v2.2", calls).replace(b"aQc", b'a"c'))
    assert (len(fast), fast.broken) == (count, 0)
    assert fast.epoch.tolist() == [1] * count
    assert sorted(fast.step.tolist()) == list(range(count))


def test_arguments_of_arguments_are_not_read() -> None:
    """Objects in arguments, among lines that were cut so that braces are as many as usual."""
    lines = text("v2.2", [Call("read", 10 * n, 3, file="/d", ret=7) for n in range(SEVERAL)])
    nested = lines.replace(b'"ret":7', b'"x":{"a":1,"ret":50,"b":2},"y":1')
    fast, _ = both(nested)
    assert (len(fast), fast.nbytes.sum()) == (SEVERAL, 0)
    cut = b'"type":3,"pid":7}}\n' * SEVERAL
    mixed, _ = both(nested + lines + cut)
    assert (mixed.nbytes.sum(), mixed.broken) == (7 * SEVERAL, SEVERAL)


def test_many_definitions_hide_no_span() -> None:
    """As many definitions, of fewer fields than a call has, as calls."""
    calls = text("v2.2", [Call("read", 10 * n, 3, file="/d", ret=7) for n in range(SEVERAL)])
    facts = "".join(
        f'{{"id":{n},"name":"PR","cat":"dftracer","type":1,"pid":7,"tid":7,"ph":4,'
        f'"args":{{"name":"fact","value":"{n}"}}}}\n'
        for n in range(SEVERAL)
    )
    fast, _ = both(facts.encode() + calls)
    assert (len(fast), len(fast.metadata)) == (SEVERAL, SEVERAL + 2)


def test_sums_do_not_overflow() -> None:
    """Items of a huge size, and results of 16 digits: at most 4 TiB a call, never negative."""
    items = [
        Call("fread", 1, 3, "STDIO", ret=1 << 60, args={"size": 1024}),
        Call("fread", 1, 3, "STDIO", ret=3, args={"size": 1 << 31}),
        Call("read", 1, 3, ret=(1 << 63) - 1),
    ]
    fast, _ = both(text("v2.2", items))
    assert sorted(fast.nbytes.tolist()) == [3 << 31, 1 << 42, 1 << 42]
    many = [Call("read", 10 * n, 3, file="/d", ret=9_999_999_999_999_999) for n in range(SEVERAL)]
    fast, _ = both(text("v2.2", many))
    assert fast.nbytes.sum() == SEVERAL << 42


def test_blanks_after_a_colon() -> None:
    """A trace that another tool has formatted still names its host."""
    data = text("v2.2", [Call("read", 1, 3, ret=7)]).replace(b'":', b'": ')
    fast, _ = both(data)
    assert fast.host == digest("node1")


@settings(max_examples=100 if ALL else 50)
@given(st.integers(0, 1 << 30))
def test_cut_anywhere_nothing_is_invented(seed: int) -> None:
    """Bytes lost in the middle, as when a long line loses its newline, and at the end."""
    dice = random.Random(seed)
    data = text(dice.choice(DIALECTS), training(seed, steps=15) * 3)
    for _ in range(3):
        at = dice.randrange(len(data))
        data = data[:at] + data[at + dice.randrange(300) :]
    usual, exact = BlockReader(), BlockReader()
    fast, slow = usual.read(data), exact._exact(data)
    assert fast.broken <= slow.broken
    lost = len(slow) - len(fast)
    assert -3 <= lost <= 0  # a cut in a text that is not needed may leave a line usable
