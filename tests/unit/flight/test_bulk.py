"""Reading all entries together gives what reading one after another gives, and does it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frd.errors import DumpError
from frd.flight.batches import closing_rows
from frd.flight.bulk import parse_columns
from frd.flight.decode import parse
from frd.flight.pickles import lockstep
from frd.flight.pickles.layout import Kind, Layout, Step, layout_of
from frd.flight.pickles.lockstep import Walk, read
from frd.flight.trace import Dictionaries, FileColumns, columns_of
from tests.world.dump_files import FRAMES, T0, Runs, as_json, as_torch, document, entry, spelled_out
from tests.world.entries import Ring

TRACES = Path(__file__).parents[4] / "shared" / "traces"
COUNT = 200


def both(data: bytes) -> FileColumns:
    """Read together, and compared with one after another."""
    together, in_turn = Dictionaries(), Dictionaries()
    columns = parse_columns(data, together, source="rank 3")
    expected = columns_of(parse(data, source="rank 3"), in_turn)
    assert spelled_out(columns, together) == spelled_out(expected, in_turn)
    return columns


def apart(data: bytes) -> list[int]:
    """Entries that were not in step."""
    found = lockstep.read(data, "rank 3")
    assert found is not None
    return [int(at) for at in found.apart]


def various(at: int) -> dict[str, Any]:
    """Entries of every shape, the first ones spelling out what later ones refer to."""
    return [
        entry(at, profiling_name="nccl:send 0->3", is_p2p=True, p2p_seq_id=at, frames=FRAMES[1:]),
        entry(at, input_sizes=[[70_000], []], state="scheduled", retired=False, frames=[]),
        entry(at, time_discovered_completed_ns=None, state="started", thread_name="other"),
        entry(at, record_id=at + 70_000, collective_seq_id=at * 3_000_000_000, timeout_ms=-1),
        entry(at, process_group=("1", "TP"), pg_id=1, time_discovered_started_ns=T0 + at),
    ][at % 5]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([various(at) for at in range(COUNT)], id="various"),
        pytest.param([entry(at, frames=...) for at in range(COUNT)], id="no stacks"),
        pytest.param([entry(at, record_id=at + 65_436) for at in range(COUNT)], id="wider numbers"),
        pytest.param(
            [
                entry(at, thread_name=..., thread_id=..., timeout_ms=..., is_p2p=..., pg_id=...)
                for at in range(COUNT)
            ],
            id="older format",
        ),
        pytest.param([{"input_sizes": 0} | entry(at) for at in range(COUNT)], id="another order"),
        pytest.param(
            [entry(at, input_sizes=[[at % 7, 2]] * (at % 9)) for at in range(COUNT)],
            id="many shapes",
        ),
        pytest.param(
            [entry(at, input_sizes=[[1]] * (300 if at % 3 == 2 else 1)) for at in range(COUNT)],
            id="shapes too long to look at",
        ),
    ],
)
def test_together_is_as_one_after_another(rows: list[dict[str, Any]]) -> None:
    """Whatever the entries hold, both ways give the same columns."""
    data = as_torch(document(rows))
    both(data)
    assert apart(data)[0] == 0
    assert apart(data)[-1] == COUNT - 1


def test_nearly_all_entries_are_in_step() -> None:
    """Only what spells something out, and the last entry, is read one after another, also where
    hundreds of strings before the entries make references take five bytes."""
    assert apart(as_torch(document([entry(at) for at in range(COUNT)]))) == [0, COUNT - 1]
    rows = [various(at) for at in range(COUNT)]
    assert apart(as_torch(document(rows))) == [0, 1, 2, 4, COUNT - 1]
    config = {
        str(at): {"name": str(at), "desc": f"pp{at}", "ranks": f"[{at}, 900]"} for at in range(300)
    }
    data = as_torch(document(rows, pg_config=config))
    assert len(both(data).groups) == 300
    assert len(apart(data)) == 5


def test_a_flag_that_is_neither_is_none() -> None:
    """One byte in place of the flag that says whether an entry is over: an empty tuple."""
    data = as_torch(document([entry(at) for at in range(COUNT)]))
    layout = layout_of(data)
    assert layout is not None
    (token,) = [step.token for step in layout.steps if step.name == "retired"]
    flag = data.index(token + b"\x88", len(data) // 2) + len(token)
    (warning,) = both(data[:flag] + b")" + data[flag + 1 :]).warnings
    assert "retired" in warning


def test_an_entry_that_says_more_than_the_first_is_read_by_itself() -> None:
    """What follows the last known key might say anything, and change any of it."""
    rows = [entry(at, **({"later": at} if at == 77 else {})) for at in range(COUNT)]
    assert apart(as_torch(document(rows))) == [0, 77, COUNT - 1]


def test_what_only_sums_up_to_the_same_is_not_the_same() -> None:
    """Stacks are distinguished by sums over their bytes first: two that were made to collide
    are."""
    mask = (1 << 64) - 1
    factors = [pow(0x9E3779B97F4A7C15, at + 1, 1 << 64) for at in range(2)]
    words = np.array([[1, 2], [1 + factors[1] & mask, 2 - factors[0] & mask]], np.uint64)
    data = words.tobytes()
    walk = Walk(data, Layout(0, [Step("record_id", Kind.NUMBER, b"h\x01")]))
    found = walk.alike(np.array([0, 16, 0]), np.array([16, 32, 16]))
    assert [found.values[at] for at in found.index.tolist()] == [data[:16], None, data[:16]]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 63, 64, 65, 66])
def test_rings_of_any_size(count: int) -> None:
    """Whether a ring is worth reading in step changes nothing in what is read."""
    assert len(both(as_torch(document([entry(at) for at in range(count)])))) == count
    assert len(both(as_torch(document([various(at) for at in range(count)])))) == count


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        pytest.param({"record_id": -5}, "record_id", id="negative"),
        pytest.param({"profiling_name": 7}, "profiling_name", id="no text"),
        pytest.param({"collective_seq_id": ...}, "collective_seq_id", id="absent"),
        pytest.param({"state": "over", "time_discovered_completed_ns": 0}, "state", id="no state"),
    ],
)
def test_a_bad_entry_is_named(odd: dict[str, Any], reason: str) -> None:
    """One bad entry among good ones is left out, and the warning names its place and field."""
    rows = [entry(at, **(odd if at == 77 else {})) for at in range(COUNT)]
    columns = both(as_torch(document(rows)))
    assert len(columns) == COUNT - 1
    (warning,) = columns.warnings
    assert warning.startswith("entry 77: ")
    assert reason in warning
    assert [hole.before for hole in columns.holes] == [77]


@pytest.mark.parametrize(
    "odd",
    [
        {"input_sizes": "big"},
        {"frames": [{"name": "f"}]},
        {"time_created_ns": (1 << 63) - 1},
        {"state": 7},
        {"state": None},
        {"state": "COMPLETED"},
    ],
)
def test_a_damaged_entry_stays_and_its_signature_says_nothing(odd: dict[str, Any]) -> None:
    """One damaged field among good entries is unknown, and the warning names its place."""
    rows = [entry(at, **(odd if at == 77 else {})) for at in range(COUNT)]
    columns = both(as_torch(document(rows)))
    assert len(columns) == COUNT
    (name,) = odd
    assert columns.warnings == (f"entry 77: {name}: not readable, taken as unknown",)
    assert np.flatnonzero(columns.rows()["damaged"]).tolist() == [77]


def test_python_pickles_and_json_are_read_in_turn() -> None:
    """A file of another layout than PyTorch's is read, too, also if it only gives the key of the
    entries no number."""
    rows = document([various(at) for at in range(COUNT)])
    assert lockstep.read(pickle.dumps(rows, 2), "x") is None
    assert len(both(pickle.dumps(rows, 2))) == len(both(as_json(rows))) == COUNT
    head, tail = as_torch(rows).split(b"entriesq", 1)
    data = head + b"entries" + tail[1:]
    assert lockstep.read(data, "x") is None
    assert len(both(data)) == COUNT


def test_code_between_the_entries_does_not_run(tmp_path: Path) -> None:
    """A call hidden among entries in step is refused at any position."""
    data = as_torch(document([entry(at) for at in range(COUNT)]))
    call = pickle.dumps(Runs(tmp_path / "trap"), 2)[2:-1] + b"0"
    key = data.index(b"u}(h")
    for at in (key + 1, data.index(b"](}(") + 2, data.rindex(b"u}(h") + 1, len(data) - 1):
        with pytest.raises(DumpError, match="hostile"):
            parse_columns(data[:at] + call + data[at:], Dictionaries(), source="rank 3")
    assert not (tmp_path / "trap").exists()


def test_half_a_file_is_an_error() -> None:
    """A file cut off anywhere is an error."""
    data = as_torch(document([various(at) for at in range(COUNT)]))
    for size in range(3, len(data), 997):
        with pytest.raises(DumpError):
            parse_columns(data[:size], Dictionaries(), source="rank 3")


def test_references_to_what_no_file_can_hold_cost_nothing() -> None:
    """A reference with a number in the billions is an error, not a table of billions."""
    data = as_torch(document([entry(at) for at in range(COUNT)]))
    state = data.index(b"X\x09\x00\x00\x00completedq") + 15
    reference = b"h" + data[state : state + 1]
    with pytest.raises(DumpError):
        parse_columns(
            data.replace(reference, b"j\xff\xff\xff\x7f"), Dictionaries(), source="rank 3"
        )


@pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces (../shared/traces) are not here")
def test_our_torch_pickles_are_torchs() -> None:
    """Real dumps, pickled again by what the tests and the bench use, are the same bytes."""
    for path in sorted(TRACES.glob("*/_dump_*")):
        data = path.read_bytes()
        assert as_torch(pickle.loads(data)) == data  # noqa: S301


# -- the entry that closes a batch of sends, marked as P2P or not ----------------------------------


SEND, END, REDUCE = "nccl:send 0->1", "nccl:coalesced", "nccl:all_reduce"


def row(at: int, name: str, seq: int, p2p_seq: int, pg_id: int = 0, **more: Any) -> Any:
    """Of a recorder that marks sends and receives as P2P, and not the end of their batch."""
    more |= {"profiling_name": name, "is_p2p": name not in (END, REDUCE)}
    return entry(at, collective_seq_id=seq, p2p_seq_id=p2p_seq, pg_id=pg_id, **more)


CASES = {
    "after its sends": (
        [row(0, REDUCE, 30, 0), row(1, SEND, 30, 1), row(2, END, 30, 1)],
        [False, True, True],
    ),
    "another group in between": (
        [row(0, SEND, 30, 1), row(1, REDUCE, 7, 0, pg_id=1), row(2, END, 30, 1)],
        [True, False, True],
    ),
    "of collectives": (
        [row(0, SEND, 30, 1), row(1, REDUCE, 31, 1), row(2, END, 31, 1)],
        [True, False, False],
    ),
    "of another batch": ([row(0, SEND, 30, 1), row(1, END, 30, 2)], [True, False]),
    "sends of another group": (
        [row(0, SEND, 30, 1, pg_id=1), row(1, END, 30, 1)],
        [True, False],
    ),
    "nothing before it": ([row(0, END, 30, 1)], [False]),
    "its sends are overwritten": (
        [row(7, REDUCE, 3, 0, pg_id=1), row(8, END, 30, 1), row(9, END, 30, 1)],
        [False, True, False],
    ),
}


def test_a_format_that_marks_no_sends() -> None:
    """A send is known by its name, so the entry after it closes a batch."""
    entries = [row(0, SEND, 0, 1), row(1, END, 0, 1), row(2, REDUCE, 1, 0), row(3, END, 1, 0)]
    dumped = document([{k: v for k, v in one.items() if k != "is_p2p"} for one in entries])
    found = parse(as_json(dumped), source="rank 0").entries
    assert [one.is_p2p for one in found] == [False, True, False, False]
    columns = parse_columns(as_torch(dumped), Dictionaries(), source="rank 0").rows()
    assert columns["is_p2p"].tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("case", CASES)
def test_the_end_of_a_batch(case: str) -> None:
    """It is P2P if the last entry of its group before it is a send of the same batch; entries and
    columns agree."""
    entries, wanted = CASES[case]
    dumped = document(entries)
    found = parse(as_json(dumped), source="rank 0").entries
    assert [one.is_p2p for one in found] == wanted
    for data in (as_json(dumped), as_torch(dumped)):
        columns = parse_columns(data, Dictionaries(), source="rank 0").rows()
        np.testing.assert_array_equal(columns["is_p2p"] != 0, wanted)


def test_a_batch_whose_sends_are_overwritten_while_it_is_read() -> None:
    """The agent reads a batch of two groups' traffic in parts: whatever the ring has lost by then,
    the end is never taken for a collective, and what it closes is over."""
    reduce = [row(at, REDUCE, at + 1, 0) for at in range(5)]
    batch = [
        row(5, SEND, 5, 1, state="scheduled", retired=False),
        row(6, REDUCE, 1, 0, pg_id=1, process_group=("1", "other")),
    ]
    end = row(7, END, 5, 1, state="scheduled", retired=False)
    others = [row(at, REDUCE, at, 0, pg_id=1, process_group=("1", "other")) for at in range(8, 20)]
    done = end | {"state": "completed", "retired": True}
    for dumps in (
        [[*reduce, *batch, end], [end, *others], [done, *others], others],
        [[*reduce, *batch], [batch[1], end, *others], [done, *others]],
        [[*reduce], [batch[1], done, *others]],
    ):
        ring, rows = Ring(), []
        for at, entries in enumerate(dumps):
            dump = parse(as_json(document(entries)), source="rank 0")
            rows += ring.read(*dump.entries, at=T0 + (at + 1) * 10**9).rows
        of_first = [one for one in rows if one[0] == rows[0][0]]
        assert [one[1] for one in of_first] == [1, 2, 3, 4, 5]
        assert ring.tracker.open.items == []


def test_many_batches_as_columns() -> None:
    """A dump that is long enough to be read in columns directly gives what its entries give."""
    entries = []
    for at in range(0, 240, 4):
        batch = at // 4 + 1
        entries += [
            row(at, REDUCE, batch, batch - 1),
            row(at + 1, SEND, batch, batch),
            row(at + 2, "nccl:recv 0<-1", batch, batch),
            row(at + 3, END, batch, batch),
        ]
    data = as_torch(document(entries))
    assert read(data, "rank 0") is not None
    columns = parse_columns(data, Dictionaries(), source="rank 0").rows()
    np.testing.assert_array_equal(columns["is_p2p"] != 0, [False, True, True, True] * 60)


def test_the_entry_that_closes_each_row() -> None:
    """Sends of two groups, each with its own end, and a coalesced collective."""
    is_end = np.array([0, 0, 1, 1, 0, 0, 1, 0], np.bool_)
    is_p2p = np.array([1, 1, 1, 1, 0, 0, 0, 0], np.bool_)
    pg_id = np.array([0, 1, 1, 0, 0, 0, 0, 0])
    number = np.array([5, 5, 5, 5, 8, 9, 9, 10])
    np.testing.assert_array_equal(
        closing_rows(is_end, is_p2p, pg_id, number), [3, 2, 2, 3, 4, 6, 6, 7]
    )
    none = np.zeros(3, np.bool_)
    np.testing.assert_array_equal(closing_rows(none, none, number[:3], number[:3]), [0, 1, 2])
