"""What a reader must know to begin in the middle of a journal.

The cells that are here, the live streams, as they declared themselves, how their times are aligned,
and the learned pauses.
"""

from __future__ import annotations

from collections.abc import Iterator

from frd.store.records import Record, RecordKind, cell_tag


class Preamble:
    """Sees all records of a journal in order."""

    def __init__(self) -> None:
        self._cells: dict[int, Record] = {}
        """START of each cell of a cluster, with its present settings, by tag."""
        self._learned: dict[int, Record] = {}
        """By the tag of the cell."""
        self._live: dict[int, list[Record]] = {}
        self._aligned: dict[int, Record] = {}
        """The last alignment of each stream."""

    def see(self, record: Record, *, declares: bool) -> None:
        """`declares`: later records of its stream depend on it."""
        if declares:
            self._live.setdefault(record.stream, []).append(record)
        elif record.kind is RecordKind.ALIGNED:
            self._aligned[record.stream] = record
        elif record.kind is RecordKind.LEARNED:
            self._learned[record.stream] = record
        elif record.kind is RecordKind.CLOSED:
            self._forget(record.stream)
        elif record.kind is RecordKind.LEFT:
            self._cells.pop(record.stream, None)
            self._learned.pop(record.stream, None)
            for stream, records in list(self._live.items()):
                if cell_tag(records[0]) == record.stream:
                    self._forget(stream)
        elif record.stream and record.kind in (RecordKind.START, RecordKind.SETTINGS):
            self._cells[record.stream] = Record(
                RecordKind.START, record.at, record.stream, record.payload
            )

    def records(self) -> Iterator[Record]:
        """Those of what is live, without START of the process."""
        yield from self._cells.values()
        yield from self._learned.values()
        for records in self._live.values():
            yield from records
        yield from self._aligned.values()

    def _forget(self, stream: int) -> None:
        self._live.pop(stream, None)
        self._aligned.pop(stream, None)
