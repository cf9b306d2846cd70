"""All spans of the traces with ranks, paths and aligned times, for files and timelines.

The traces are read once more, because hashes and ranks are known only after all of them have been
read: so a hundred million spans are written without being in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from frd.dftracer.block import Block, Calls
from frd.forms import encodable
from frd.model import Int64s
from frd.offline.io.analysis import IoAnalysis, RankIo
from frd.offline.io.discovery import PieceReader
from frd.offline.io.part import Source

COLUMNS: Final = {
    "rank": "int",
    "host": "str",
    "pid": "int",
    "tid": "int",
    "cat": "str",
    "name": "str",
    "file": "str",
    "start_ns": "int",
    "end_ns": "int",
    "bytes": "int",
    "epoch": "int",
    "step": "int",
}
"""Name to type of the columns of spans, as `frd.offline.output.tables` has them."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Some spans of one process of one trace, in the order of their ends."""

    rank: int | None
    host: str
    pid: int
    block: Block
    """Times are in the unit of the trace."""
    start_ns: Int64s
    """Since the epoch, on the aligned clock, as is `end_ns`."""
    end_ns: Int64s
    texts: _Texts

    def __len__(self) -> int:
        return len(self.block)

    @property
    def durations(self) -> Int64s:
        return self.end_ns - self.start_ns

    def take(self, rows: Int64s) -> Spans:
        times = self.start_ns[rows], self.end_ns[rows]
        return replace(self, block=self.block.take(rows), start_ns=times[0], end_ns=times[1])

    def name(self, row: int) -> str:
        return self.texts.names[int(self.block.name[row])]

    def cat(self, row: int) -> str:
        return self.texts.cats[int(self.block.cat[row])]

    def file(self, row: int) -> str | None:
        return self.texts.files[at] if (at := int(self.block.file[row])) >= 0 else None

    def columns(self) -> list[list[object]]:
        """Values in the order of `COLUMNS`, None where there is none."""
        block, count = self.block, len(self)
        return [
            [self.rank] * count,
            [self.host] * count,
            [self.pid] * count,
            block.tid.tolist(),
            *([text(row) for row in range(count)] for text in (self.cat, self.name, self.file)),
            self.start_ns.tolist(),
            self.end_ns.tolist(),
            block.nbytes.tolist(),
            *([None if n < 0 else n for n in c.tolist()] for c in (block.epoch, block.step)),
        ]


def longest(durations: Int64s, most: int) -> Int64s:
    """Rows of the longest spans, in order; of equally long ones the first."""
    return np.sort(np.argsort(-durations, kind="stable")[:most])


def spans_of(io: IoAnalysis) -> Iterator[Spans]:
    """All spans, in the order of ranks; those of several ranks in one trace come together."""
    return (spans for _, spans in spans_by_rank(io, io.ranks))


def spans_by_rank(io: IoAnalysis, ranks: Sequence[RankIo]) -> Iterator[tuple[int, Spans]]:
    """Spans of some ranks, each with the index of its rank in `ranks`.

    A piece of a trace is read once, however many processes and ranks it has.
    """
    wanted: dict[int, dict[int, tuple[int, Source]]] = {}
    for number, one in enumerate(ranks):
        for source in one.sources:
            wanted.setdefault(source.part, {})[source.pid] = number, source
    for part, sources in wanted.items():
        yield from _of_piece(io, ranks, part, sources)


def _of_piece(
    io: IoAnalysis, ranks: Sequence[RankIo], part: int, sources: Mapping[int, tuple[int, Source]]
) -> Iterator[tuple[int, Spans]]:
    """`sources` are by pid."""
    piece = io.facts[part].piece
    reader = PieceReader(piece)
    hosts = {pid: encodable(io.identities.process(piece.file.path, pid).host) for pid in sources}
    texts = _Texts(reader.calls, partial(io.identities.files.text, piece.file.path))
    for block in reader.blocks():
        texts.update()
        for pid in np.unique(block.pid).tolist():
            if pid in sources:
                rows = np.flatnonzero(block.pid == pid)
                mine = block.take(rows)
                number, source = sources[pid]
                times = source.aligned(mine.start), source.aligned(mine.start + mine.dur)
                yield number, Spans(ranks[number].rank, hosts[pid], pid, mine, *times, texts)


class _Texts:
    """Texts by the indexes of a reader, each resolved once."""

    def __init__(self, calls: Calls, path_of: Callable[[str], str]) -> None:
        self._calls, self._path_of = calls, path_of
        self.names: list[str] = []
        self.cats: list[str] = []
        self.files: list[str | None] = []

    def update(self) -> None:
        self.names += list(self._calls.names)[len(self.names) :]
        self.cats += list(self._calls.cats)[len(self.cats) :]
        new = list(self._calls.files)[len(self.files) :]
        self.files += [self._path_of(key) if key else None for key in new]
