"""Laws of the journal: damage never turns into records that were not written."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from frd.errors import StoreError
from frd.model import YEAR_2200_NS, AlignedNs
from frd.store.journal import Journal, JournalLimits, read, segments
from frd.store.records import Record, RecordKind
from tests.world.seeds import examples

BATCHES = st.lists(
    st.lists(
        st.builds(
            Record,
            kind=st.sampled_from(RecordKind),
            at=st.integers(0, YEAR_2200_NS - 1).map(AlignedNs),
            stream=st.integers(0, 2**62 - 1),
            payload=st.binary(max_size=200),
        ),
        max_size=4,
    ),
    max_size=6,
)


def written(folder: Path, batches: list[list[Record]], segment_bytes: int) -> None:
    journal = Journal(
        folder,
        settings=b"{}",
        preamble=lambda: [Record(RecordKind.OPENED, AlignedNs(0), 1, b"")],
        begun_at=AlignedNs(0),
        limits=JournalLimits(segment_bytes, total_bytes=1_000_000),
    )
    for batch in batches:
        journal.append(batch)
    assert journal.dropped == 0
    journal.close()


def salvaged(path: Path) -> list[Record]:
    """All records that reading gives before it ends or fails with a clear error."""
    got: list[Record] = []
    with contextlib.suppress(StoreError):
        for record in read(path, lambda _: None):
            got.append(record)  # noqa: PERF402 (the records before the error count)
    return got


@given(batches=BATCHES, segment_bytes=st.integers(50, 2000))
@examples(50)
def test_reading_gives_what_was_written(batches: list[list[Record]], segment_bytes: int) -> None:
    """Any records, in segments of any size, come back unchanged and in order."""
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder), batches, segment_bytes)
        got = list(read(Path(folder), lambda _: None))
    assert got[2:] == [record for batch in batches for record in batch]


@given(batches=BATCHES, data=st.data())
@examples(150)
def test_damage_gives_a_clean_prefix(batches: list[list[Record]], data: st.DataObject) -> None:
    """A segment cut anywhere, or with any bit flipped, gives a prefix of what was written."""
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder), batches, segment_bytes=100_000)
        (path,) = segments(Path(folder))
        whole = salvaged(path)
        content = bytearray(path.read_bytes())
        if data.draw(st.booleans(), label="truncate"):
            del content[data.draw(st.integers(0, len(content)), label="length") :]
        else:
            bit = data.draw(st.integers(0, len(content) * 8 - 1), label="bit")
            content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        got = salvaged(path)
    assert got == whole[: len(got)]
