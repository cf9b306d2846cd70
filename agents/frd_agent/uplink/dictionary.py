"""Numbers for attempts, ranks, groups, signatures and series, and their indexes on a stream.

The agent's own numbers (`Dictionary`) never change, so rows and watermarks can wait for any stream.
A stream declares a thing, and gives it an index, when an event first refers to it
(`StreamIndexes`). It therefore never declares things that have ended. If a stream reaches the
service's limit on declarations, the agent opens another stream. Signatures are cut to the limits of
the wire here, once per signature instead of once per row.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from frd.model import (
    AttemptKey,
    ChannelColumns,
    EntryColumns,
    GroupInfo,
    MemoryColumns,
    MemoryEvent,
    RankInfo,
    RankStatus,
    SeriesInfo,
    Signature,
    WatermarkColumns,
)
from frd.wire.messages import (
    AttemptDecl,
    Declare,
    GroupDecl,
    MemoryEvents,
    RankDecl,
    ResponsePart,
    SeriesDecl,
    SignatureDecl,
    Statuses,
    Watermarks,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MAX_SIGNATURES: Final = 60_000
"""Below the service's bound of 65,536 per stream."""
MAX_SERIES: Final = 60_000
"""Below the service's bound, as above."""
_MAX_TENSORS: Final = 1_024
"""Limit per signature; the tensors of all sub-ops of a coalesced collective count."""
_MAX_DIMENSIONS: Final = 64
_ITEMS_A_MESSAGE: Final = 1_000
_BYTES_A_MESSAGE: Final = 4 * 1024 * 1024
MAX_SIGNATURE_BYTES: Final = 32 * 1024 * 1024
"""Well below the service's bound on all that a stream declares."""

About: TypeAlias = (
    EntryColumns
    | Watermarks
    | ChannelColumns
    | Statuses
    | MemoryColumns
    | MemoryEvents
    | ResponsePart
)
"""Events that refer to ranks, groups, signatures or series by number."""

_Kind: TypeAlias = Literal["attempts", "ranks", "groups", "signatures", "series"]
_KINDS: Final[tuple[_Kind, ...]] = ("attempts", "ranks", "groups", "signatures", "series")
"""What a stream declares, each after the kinds to which its declarations refer."""
_REFERENCES: Final[dict[type, dict[str, _Kind]]] = {
    EntryColumns: {"rank": "ranks", "group": "groups", "signature": "signatures"},
    Watermarks: {"attempt_index": "attempts"},
    WatermarkColumns: {"rank": "ranks", "group": "groups", "seen_rank": "ranks"},
    ChannelColumns: {"rank": "ranks", "group": "groups"},
    RankStatus: {"rank": "ranks"},
    MemoryColumns: {"series": "series"},
    MemoryEvent: {"rank": "ranks"},
    ResponsePart: {"rank_index": "ranks"},
    AttemptDecl: {"index": "attempts"},
    RankDecl: {"index": "ranks", "attempt_index": "attempts"},
    GroupDecl: {"index": "groups", "attempt_index": "attempts"},
    SignatureDecl: {"index": "signatures"},
    SeriesDecl: {"index": "series"},
    SeriesInfo: {"rank": "ranks"},
}
"""The fields that hold numbers, as plain integers or as columns, and what they number."""
_NESTED: Final[dict[type, str]] = {
    Watermarks: "columns",
    Statuses: "statuses",
    MemoryEvents: "events",
    SeriesDecl: "info",
}
"""The field with the value, or the tuple of values, that has more references."""

_V = TypeVar("_V", bound="DataclassInstance")
_D = TypeVar("_D")


class Dictionary:
    """The agent's own numbers, which events and declarations carry instead of stream indexes."""

    def __init__(self) -> None:
        self.attempts: list[AttemptDecl] = []
        self.ranks: list[RankDecl] = []
        self.groups: list[GroupDecl] = []
        self.signatures: dict[int, SignatureDecl] = {}
        self.series: list[SeriesDecl] = []
        self._numbers: dict[tuple[Hashable, ...], int] = {}
        self._worlds: dict[AttemptKey, int] = {}
        self._signature_of: dict[Signature, int] = {}
        self._next_signature = 0

    def attempt(self, key: AttemptKey, world_size: int, run: str = "") -> int:
        """Each run has its own attempts. Two jobs of the same name but of different world sizes get
        different names."""
        if self._worlds.setdefault(key, world_size) != world_size:
            key = replace(key, job=f"{key.job} (world size {world_size})")
        return self._number(self.attempts, AttemptDecl, key, world_size, run)

    def rank(self, attempt: int, info: RankInfo) -> int:
        """A new number: every process of a rank has its own."""
        self.ranks.append(RankDecl(len(self.ranks), attempt, info))
        return len(self.ranks) - 1

    def attempt_of(self, rank: int) -> int:
        return self.ranks[rank].attempt_index

    def who(self, rank: int) -> tuple[str, int]:
        """Job and global rank, for people."""
        return self.attempts[self.attempt_of(rank)].key.job, self.ranks[rank].info.rank

    def group(self, attempt: int, info: GroupInfo) -> int:
        return self._number(self.groups, GroupDecl, attempt, info)

    def signature(self, signature: Signature) -> int:
        index = self._signature_of.get(signature)
        if index is None:
            fitted = _fitted(signature)
            index = self._signature_of.setdefault(fitted, self._next_signature)
            if index == self._next_signature:
                self._next_signature += 1
                self.signatures[index] = SignatureDecl(index, fitted)
        return index

    def series_number(self, series: SeriesInfo) -> int:
        return self._number(self.series, SeriesDecl, series)

    def keep_signatures(self, used: Iterable[int]) -> None:
        """Forget all other signatures: a job whose shapes never repeat must not fill the memory."""
        self.signatures = {index: self.signatures[index] for index in set(used)}
        self._signature_of = {one.signature: one.index for one in self.signatures.values()}

    def _number(self, declared: list[_D], declare: Callable[..., _D], *content: Hashable) -> int:
        """Declarations are numbered in the order in which they come; equal ones share a number."""
        number = self._numbers.setdefault((declare, *content), len(declared))
        if number == len(declared):
            declared.append(declare(number, *content))
        return number


class StreamIndexes:
    """What one stream has declared, and by which indexes."""

    def __init__(self, dictionary: Dictionary) -> None:
        self._dictionary = dictionary
        self._indexes = {kind: _Indexes() for kind in _KINDS}
        self._signature_bytes = 0

    @property
    def full(self) -> bool:
        """The agent must open another stream soon."""
        return (
            len(self._indexes["signatures"]) >= MAX_SIGNATURES
            or len(self._indexes["series"]) >= MAX_SERIES
            or self._signature_bytes >= MAX_SIGNATURE_BYTES
        )

    def rank_of(self, stream_index: int) -> int | None:
        """The agent's number of the rank with this stream index; None if it is not declared."""
        return self._indexes["ranks"].number_of(stream_index)

    def translate(self, event: About) -> list[Declare | About]:
        """The event in the stream's own indexes, after the declarations that it needs."""
        missing: dict[_Kind, set[int]] = {kind: set() for kind in _KINDS}
        for kind, numbers in _references(event):
            missing[kind] |= self._indexes[kind].missing(numbers)
        if not any(missing.values()):
            return [self._translated(event)]
        for kind in reversed(_KINDS):
            for number in missing[kind]:
                for other, numbers in _references(getattr(self._dictionary, kind)[number]):
                    missing[other] |= self._indexes[other].missing(numbers)
        declares = [
            declare for kind in _KINDS for declare in self._declare(kind, sorted(missing[kind]))
        ]
        return [*declares, self._translated(event)]

    def _declare(self, kind: _Kind, numbers: list[int]) -> Iterator[Declare]:
        """Declarations of things that the stream has not declared, in messages that are not too
        large."""
        known, indexes = getattr(self._dictionary, kind), self._indexes[kind]
        sizes = {number: _bytes_of(known[number]) for number in numbers}
        if kind == "signatures":
            self._signature_bytes += sum(sizes.values())
        for piece in _pieces(sizes):
            for number in piece:
                indexes.add(number)
            content: Any = {kind: tuple([self._translated(known[number]) for number in piece])}
            yield Declare(**content)

    def _translated(self, value: _V) -> _V:
        changes = {
            field: self._indexes[kind].of(getattr(value, field))
            for field, kind in _REFERENCES.get(type(value), {}).items()
        }
        if field := _NESTED.get(type(value)):
            inner = getattr(value, field)
            if isinstance(inner, tuple):
                changes[field] = tuple(map(self._translated, inner))
            else:
                changes[field] = self._translated(inner)
        return replace(value, **changes)


def _references(value: DataclassInstance) -> Iterator[tuple[_Kind, Any]]:
    """The numbers in `value`, and what they number."""
    for field, kind in _REFERENCES.get(type(value), {}).items():
        yield kind, getattr(value, field)
    inner = getattr(value, _NESTED.get(type(value), ""), ())
    for part in inner if isinstance(inner, tuple) else (inner,):
        yield from _references(part)


class _Indexes:
    """Dense stream indexes of numbers, in a table that translates columns without a loop."""

    def __init__(self) -> None:
        self._table = np.full(64, -1, np.int64)
        self._numbers: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: int) -> None:
        if number >= len(self._table):
            longer = np.full(max(2 * len(self._table), number + 1), -1, np.int64)
            longer[: len(self._table)] = self._table
            self._table = longer
        self._table[number] = len(self._numbers)
        self._numbers.append(number)

    def of(self, numbers: int | npt.NDArray[Any]) -> Any:
        """Indexes of a column, or of one number."""
        if isinstance(numbers, int):
            return int(self._table[numbers])
        return self._table[numbers].astype(np.uint32)

    def number_of(self, index: int) -> int | None:
        return self._numbers[index] if 0 <= index < len(self._numbers) else None

    def missing(self, numbers: int | npt.NDArray[Any]) -> set[int]:
        """Those of `numbers` that have no index."""
        size = len(self._table)
        if isinstance(numbers, int):
            return set() if numbers < size and self._table[numbers] >= 0 else {numbers}
        if not len(numbers) or (int(numbers.max()) < size and (self._table[numbers] >= 0).all()):
            return set()
        return {n for n in np.unique(numbers).tolist() if n >= size or self._table[n] < 0}


def _pieces(sizes: dict[int, int]) -> list[list[int]]:
    """Numbers in chunks that fit into one message each; `sizes` are bytes by number."""
    pieces: list[list[int]] = []
    room = 0
    for number, size in sizes.items():
        if not pieces or size > room or len(pieces[-1]) >= _ITEMS_A_MESSAGE:
            pieces.append([])
            room = _BYTES_A_MESSAGE
        pieces[-1].append(number)
        room -= size
    return pieces


def _bytes_of(declaration: Any) -> int:
    """Upper bound of what a declaration takes on the wire without names, which are short."""
    match declaration:
        case GroupDecl():
            return 12 * len(declaration.info.ranks)
        case SignatureDecl(_, s):
            sizes = [4 + 10 * len(shape) for shape in (*s.input_sizes, *s.output_sizes)]
            return sum(sizes) + sum(4 + len(name) for name in (*s.input_dtypes, *s.output_dtypes))
        case _:
            return 0


def _fitted(signature: Signature) -> Signature:
    """The signature within the limits of the wire; equal signatures stay equal on all ranks."""
    return replace(
        signature,
        input_sizes=_fitted_sizes(signature.input_sizes),
        output_sizes=_fitted_sizes(signature.output_sizes),
        input_dtypes=signature.input_dtypes[:_MAX_TENSORS],
        output_dtypes=signature.output_dtypes[:_MAX_TENSORS],
    )


def _fitted_sizes(sizes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple([max(size, 0) for size in shape[:_MAX_DIMENSIONS]]) for shape in sizes[:_MAX_TENSORS]
    )
