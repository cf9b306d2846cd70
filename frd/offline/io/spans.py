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
from frd.model import Int64s, UInt8s
from frd.offline.io.analysis import IoAnalysis, RankIo
from frd.offline.io.reading import PieceReader
from frd.offline.io.source import Source

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
    tid: Int64s
    kind: UInt8s
    cat: Sequence[str]
    name: Sequence[str]
    file: Sequence[str | None]
    start_ns: Int64s
    """Since the epoch, on the aligned clock, as is `end_ns`."""
    end_ns: Int64s
    nbytes: Int64s
    epoch: Int64s
    """-1 for none."""
    step: Int64s

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, rows: Int64s) -> Spans:
        at = rows.tolist()
        return replace(
            self,
            tid=self.tid[rows],
            kind=self.kind[rows],
            cat=[self.cat[one] for one in at],
            name=[self.name[one] for one in at],
            file=[self.file[one] for one in at],
            start_ns=self.start_ns[rows],
            end_ns=self.end_ns[rows],
            nbytes=self.nbytes[rows],
            epoch=self.epoch[rows],
            step=self.step[rows],
        )

    def columns(self) -> list[list[object]]:
        """Values in the order of `COLUMNS`, None where there is none."""
        count = len(self)
        return [
            [self.rank] * count,
            [self.host] * count,
            [self.pid] * count,
            self.tid.tolist(),
            list(self.cat),
            list(self.name),
            list(self.file),
            self.start_ns.tolist(),
            self.end_ns.tolist(),
            self.nbytes.tolist(),
            *([None if n < 0 else n for n in c.tolist()] for c in (self.epoch, self.step)),
        ]


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
    texts = _Texts(reader.calls, partial(io.identities.text, piece.file.path))
    for block in reader.blocks():
        texts.update()
        for pid in np.unique(block.pid).tolist():
            if pid in sources:
                rows = np.flatnonzero(block.pid == pid)
                number, source = sources[pid]
                yield (
                    number,
                    _spans(block, rows, texts, source, ranks[number].rank, hosts[pid]),
                )


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


def _spans(
    block: Block,
    rows: Int64s,
    texts: _Texts,
    source: Source,
    rank: int | None,
    host: str,
) -> Spans:
    start = block.start[rows]
    return Spans(
        rank=rank,
        host=host,
        pid=source.pid,
        tid=block.tid[rows],
        kind=block.kind[rows],
        cat=[texts.cats[at] for at in block.cat[rows].tolist()],
        name=[texts.names[at] for at in block.name[rows].tolist()],
        file=[texts.files[at] if at >= 0 else None for at in block.file[rows].tolist()],
        start_ns=source.aligned(start),
        end_ns=source.aligned(start + block.dur[rows]),
        nbytes=block.nbytes[rows],
        epoch=block.epoch[rows],
        step=block.step[rows],
    )
