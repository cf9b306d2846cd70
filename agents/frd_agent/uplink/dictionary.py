"""The agent's numbers for attempts, ranks, groups, signatures and series, and a stream's indexes.

The numbers never change, so rows and watermarks can wait for any stream. Signatures are cut to the
limits of the wire here, once per signature instead of once per row.

A stream declares a thing, and gives it an index, when an event first refers to it. It therefore
never declares things that have ended. If a stream reaches the service's limit on declarations, the
agent opens another stream.

An event goes out in pieces that the service accepts as messages. What has rows is built with few
enough; the size of the rest depends on names and texts, so it is encoded to find out, and halved
until it fits. One status, declaration, event or sample of a series always fits: the dictionary
shortens what would not.
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
    RankPhases,
    RankStatus,
    SeriesInfo,
    Signature,
    WatermarkColumns,
)
from frd.wire.columns import pack_ranks
from frd.wire.limits import LIMITS, MAX_MEMBERS, fits
from frd.wire.messages import (
    MAX_MESSAGE_BYTES,
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

_MAX_TENSORS: Final = LIMITS["declare.signatures.input_sizes"].each
"""Limit per signature; the tensors of all sub-ops of a coalesced collective count."""
_FEW_TENSORS: Final = 64
"""So many always fit into a message, whatever their sizes and types."""
_MAX_DIMENSIONS: Final = LIMITS["declare.signatures.input_sizes.dims"].each
_MAX_NAMES: Final = LIMITS["declare.ranks.backends"].each
_MAX_RUN_BYTES: Final = MAX_MESSAGE_BYTES // 2
"""Of a group's members on the wire; names and what else a message has are far less."""
_D = TypeVar("_D")
MAX_SIGNATURES: Final = 60_000
"""Below the service's bound of 65,536 per stream."""
MAX_SERIES: Final = 60_000
"""Below the service's bound, as above."""
MAX_SIGNATURE_BYTES: Final = 32 * 1024 * 1024
"""Well below the service's bound on all that a stream declares."""
_ITEMS_A_MESSAGE: Final = 500

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
    ChannelColumns: {"rank": "ranks", "group": "groups", "signature": "signatures"},
    RankStatus: {"rank": "ranks"},
    RankPhases: {"rank": "ranks"},
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
_NESTED: Final[dict[type, tuple[str, ...]]] = {
    Watermarks: ("columns",),
    Statuses: ("statuses", "phases"),
    MemoryEvents: ("events",),
    SeriesDecl: ("info",),
}
"""The fields with a value, or a tuple of values, that has more references."""

_V = TypeVar("_V", bound="DataclassInstance")


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

    def forming_attempt(self, key: AttemptKey, world_size: int, run: str) -> int:
        """Of processes without groups: their environment may name another world than they make, so
        it does not decide which of two jobs keeps the name."""
        return self._number(self.attempts, AttemptDecl, key, world_size, run)

    def rank(self, attempt: int, info: RankInfo) -> int:
        """A new number: every process of a rank has its own."""
        backends, devices = info.backends[:_MAX_NAMES], info.devices[:_MAX_NAMES]
        fitted = replace(info, backends=backends, devices=devices)
        self.ranks.append(RankDecl(len(self.ranks), attempt, fitted))
        return len(self.ranks) - 1

    def attempt_of(self, rank: int) -> int:
        return self.ranks[rank].attempt_index

    def who(self, rank: int) -> tuple[str, int]:
        """Job and global rank, for people."""
        return self.attempts[self.attempt_of(rank)].key.job, self.ranks[rank].info.rank

    def group(self, attempt: int, info: GroupInfo) -> int:
        return self._number(self.groups, GroupDecl, attempt, _fitted_group(info))

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


def _fitted(signature: Signature) -> Signature:
    """The signature within the limits of the wire; equal signatures stay equal on all ranks."""
    tensors = _MAX_TENSORS
    while True:
        fitted = replace(
            signature,
            input_sizes=_fitted_sizes(signature.input_sizes[:tensors]),
            output_sizes=_fitted_sizes(signature.output_sizes[:tensors]),
            input_dtypes=signature.input_dtypes[:tensors],
            output_dtypes=signature.output_dtypes[:tensors],
        )
        shapes = max(len(fitted.input_sizes), len(fitted.output_sizes))
        longest = max(shapes, len(fitted.input_dtypes), len(fitted.output_dtypes))
        if longest <= _FEW_TENSORS or fits(Declare(signatures=(SignatureDecl(0, fitted),))):
            return fitted
        tensors = longest // 2


def _fitted_sizes(sizes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple([max(size, 0) for size in shape[:_MAX_DIMENSIONS]]) for shape in sizes)


def _fitted_group(info: GroupInfo) -> GroupInfo:
    """A group that is too large for a message has unknown members, for all ranks."""
    if len(info.ranks) <= MAX_MEMBERS and 12 * len(info.ranks) <= _MAX_RUN_BYTES:
        return info
    is_small = len(info.ranks) <= MAX_MEMBERS and len(pack_ranks(info.ranks)) <= _MAX_RUN_BYTES
    return info if is_small else replace(info, ranks=())


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
        """The event in the stream's own indexes, after the declarations that it needs; all of it in
        pieces that the service accepts."""
        return [piece for one in self._with_declarations(event) for piece in pieces(one)]

    def _with_declarations(self, event: About) -> list[Declare | About]:
        missing: dict[_Kind, set[int]] = {kind: set() for kind in _KINDS}
        for kind, numbers in _references(event):
            missing[kind] |= self._indexes[kind].missing(numbers)
        if not any(missing.values()):
            return [self._translated(event)]
        for kind in reversed(_KINDS):
            for number in tuple(missing[kind]):  # the loop adds to the sets
                for other, numbers in _references(getattr(self._dictionary, kind)[number]):
                    missing[other] |= self._indexes[other].missing(numbers)
        declares = [
            declare for kind in _KINDS for declare in self._declare(kind, sorted(missing[kind]))
        ]
        return [*declares, self._translated(event)]

    def _declare(self, kind: _Kind, numbers: list[int]) -> Iterator[Declare]:
        """Declarations of things that the stream has not declared."""
        known, indexes = getattr(self._dictionary, kind), self._indexes[kind]
        if kind == "signatures":
            self._signature_bytes += sum(_bytes_of(known[number].signature) for number in numbers)
        for start in range(0, len(numbers), _ITEMS_A_MESSAGE):
            some = numbers[start : start + _ITEMS_A_MESSAGE]
            for number in some:
                indexes.add(number)
            content: Any = {kind: tuple([self._translated(known[number]) for number in some])}
            yield Declare(**content)

    def _translated(self, value: _V) -> _V:
        changes = {
            field: self._indexes[kind].of(getattr(value, field))
            for field, kind in _REFERENCES.get(type(value), {}).items()
        }
        for field in _NESTED.get(type(value), ()):
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
    for field in _NESTED.get(type(value), ()):
        inner = getattr(value, field)
        for part in inner if isinstance(inner, tuple) else (inner,):
            yield from _references(part)


def pieces(event: Any) -> Iterator[Any]:
    """Events of the same kind that say together what `event` says, in the same order."""
    if not isinstance(event, (Declare, Statuses, MemoryEvents, MemoryColumns)) or fits(event):
        yield event
        return
    for half in _moments(event) if isinstance(event, MemoryColumns) else _items(event):
        yield from pieces(half)


def _items(event: Declare | Statuses | MemoryEvents) -> Iterator[Any]:
    """Halves. What is no tuple comes in both, which changes nothing."""
    tuples = [name for name in event.__slots__ if isinstance(getattr(event, name), tuple)]
    name = max(tuples, key=lambda one: len(getattr(event, one)))
    items = getattr(event, name)
    middle = len(items) // 2
    for half in (items[:middle], items[middle:]):
        yield replace(event, **{name: half})


def _moments(columns: MemoryColumns) -> Iterator[MemoryColumns]:
    """Halves: the moments, or the series of a single moment."""
    count, moments = columns.values.shape
    halved = moments if moments > 1 else count
    for half in (slice(halved // 2), slice(halved // 2, None)):
        series, some = (slice(None), half) if moments > 1 else (half, slice(None))
        yield MemoryColumns(
            series=columns.series[series],
            capacity=columns.capacity[series],
            begin_ns=columns.begin_ns[some],
            end_ns=columns.end_ns[some],
            values=columns.values[series, some],
        )


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


def _bytes_of(s: Signature) -> int:
    """Upper bound of what it takes on the wire without the names of op and backend."""
    sizes = [4 + 10 * len(shape) for shape in (*s.input_sizes, *s.output_sizes)]
    return sum(sizes) + sum(4 + len(name) for name in (*s.input_dtypes, *s.output_dtypes))
