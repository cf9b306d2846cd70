"""The entry that closes a batch of sends, marked as P2P or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from frd.flight.batches import closing_rows
from frd.flight.bulk import parse_columns
from frd.flight.decode import parse
from frd.flight.pickles.lockstep import read
from frd.flight.trace import Dictionaries
from tests.world.dump_files import T0, as_json, as_torch, document, entry
from tests.world.entries import Ring

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
