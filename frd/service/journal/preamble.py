"""What a reader must know to begin in the middle of a log: the live streams, as they declared
themselves, how their times are aligned, and the learned pauses."""

from __future__ import annotations

from collections.abc import Iterator

from frd.store.records import Record, RecordKind


class Preamble:
    """Sees all records of a log in order."""

    def __init__(self) -> None:
        self._live: dict[int, list[Record]] = {}
        self._aligned: dict[int, Record] = {}
        """The last alignment of each stream."""
        self._learned: Record | None = None

    @property
    def streams(self) -> frozenset[int]:
        """Live streams."""
        return frozenset(self._live)

    def see(self, record: Record, *, declares: bool) -> None:
        """`declares`: later records of its stream depend on it."""
        if declares:
            self._live.setdefault(record.stream, []).append(record)
        elif record.kind is RecordKind.ALIGNED:
            self._aligned[record.stream] = record
        elif record.kind is RecordKind.LEARNED:
            self._learned = record
        elif record.kind is RecordKind.CLOSED:
            self._live.pop(record.stream, None)
            self._aligned.pop(record.stream, None)

    def forget_streams(self) -> None:
        """The log has lost them."""
        self._live.clear()
        self._aligned.clear()

    def records(self) -> Iterator[Record]:
        """Those of what is live, without START."""
        if self._learned is not None:
            yield self._learned
        for records in self._live.values():
            yield from records
        yield from self._aligned.values()
