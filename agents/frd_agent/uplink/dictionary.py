"""Numbers for attempts, ranks, groups, signatures and series, and their indexes on a stream.

The agent's own numbers (`Dictionary`) never change, so rows and watermarks can wait for any stream.
A stream declares a thing, and gives it an index, when an event first refers to it
(`StreamIndexes`). It therefore never declares things that have ended. If a stream reaches the
service's limit on declarations, the agent opens another stream. Signatures are cut to the limits of
the wire here, once per signature instead of once per row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeAlias, TypeVar, assert_never

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
    UInt32s,
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

MAX_SIGNATURES: Final = 60_000
"""Below the service's bound of 65,536 per stream."""
MAX_SERIES: Final = 60_000
"""Below the service's bound, as above."""
MAX_WORLD_SIZE: Final = 1 << 20
"""The service's own bound."""
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


_P = ParamSpec("_P")
_D = TypeVar("_D")
_OfAttempt = TypeVar("_OfAttempt", RankDecl, GroupDecl)
_OfRank = TypeVar("_OfRank", RankStatus, MemoryEvent, SeriesInfo)


class _Numbers(Generic[_P, _D]):
    """Declarations, numbered in the order in which they come; equal ones share a number."""

    def __init__(self, declaration: Callable[Concatenate[int, _P], _D]) -> None:
        self.declarations: list[_D] = []
        self._declaration = declaration
        self._number_of: dict[tuple[Any, ...], int] = {}

    def of(self, *content: _P.args, **named: _P.kwargs) -> int:
        assert not named
        number = self._number_of.setdefault(content, len(self.declarations))
        if number == len(self.declarations):
            self.declarations.append(self._declaration(number, *content, **named))
        return number


class Dictionary:
    """The agent's own numbers, which events and declarations carry instead of stream indexes."""

    def __init__(self) -> None:
        self._attempts = _Numbers(AttemptDecl)
        self._groups = _Numbers(GroupDecl)
        self._series = _Numbers(SeriesDecl)
        self.attempts = self._attempts.declarations
        self.ranks: list[RankDecl] = []
        self.groups = self._groups.declarations
        self.signatures: dict[int, Signature] = {}
        self.series = self._series.declarations
        self._worlds: dict[AttemptKey, int] = {}
        self._signature_of: dict[Signature, int] = {}
        self._next_signature = 0

    def attempt(self, key: AttemptKey, world_size: int, run: str = "") -> int:
        """Each run has its own attempts. Two jobs of the same name but of different world sizes get
        different names."""
        if self._worlds.setdefault(key, world_size) != world_size:
            key = replace(key, job=f"{key.job} (world size {world_size})")
        return self._attempts.of(key, world_size, run)

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
        return self._groups.of(attempt, info)

    def signature(self, signature: Signature) -> int:
        index = self._signature_of.get(signature)
        if index is None:
            fitted = _fitted(signature)
            index = self._signature_of.setdefault(fitted, self._next_signature)
            if index == self._next_signature:
                self._next_signature += 1
                self.signatures[index] = fitted
        return index

    def series_number(self, series: SeriesInfo) -> int:
        return self._series.of(series)

    def keep_signatures(self, used: Iterable[int]) -> None:
        """Forget all other signatures: a job whose shapes never repeat must not fill the memory."""
        self.signatures = {index: self.signatures[index] for index in set(used)}
        self._signature_of = {signature: index for index, signature in self.signatures.items()}


class StreamIndexes:
    """What one stream has declared, and by which indexes."""

    def __init__(
        self,
        dictionary: Dictionary,
        max_signatures: int = MAX_SIGNATURES,
        max_signature_bytes: int = MAX_SIGNATURE_BYTES,
    ) -> None:
        self._dictionary = dictionary
        self._max_signatures = max_signatures
        self._max_signature_bytes = max_signature_bytes
        self._attempts = _Indexes()
        self._ranks = _Indexes()
        self._groups = _Indexes()
        self._signatures = _Indexes()
        self._series = _Indexes()
        self._signature_bytes = 0

    @property
    def full(self) -> bool:
        """The agent must open another stream soon."""
        return (
            len(self._signatures) >= self._max_signatures
            or len(self._series) >= MAX_SERIES
            or self._signature_bytes >= self._max_signature_bytes
        )

    def rank_of(self, stream_index: int) -> int | None:
        """The agent's number of the rank with this stream index; None if it is not declared."""
        return self._ranks.number_of(stream_index)

    def translate(self, event: About) -> list[Declare | About]:
        """The event in the stream's own indexes, after the declarations that it needs."""
        match event:
            case EntryColumns():
                declares = self._declare([event.rank], event.group, event.signature)
                translated: About = replace(
                    event,
                    rank=self._ranks.of(event.rank),
                    group=self._groups.all_of(event.group),
                    signature=self._signatures.all_of(event.signature),
                )
            case ChannelColumns():
                declares = self._declare([event.rank], event.group)
                translated = replace(
                    event, rank=self._ranks.of(event.rank), group=self._groups.all_of(event.group)
                )
            case Watermarks():
                columns = event.columns
                ranks = [*columns.rank.tolist(), *columns.seen_rank.tolist()]
                declares = self._declare(ranks, columns.group)
                translated = replace(
                    event,
                    attempt_index=self._attempts.of(event.attempt_index),
                    columns=replace(
                        columns,
                        rank=self._ranks.all_of(columns.rank),
                        group=self._groups.all_of(columns.group),
                        seen_rank=self._ranks.all_of(columns.seen_rank),
                    ),
                )
            case Statuses():
                declares = self._declare([status.rank for status in event.statuses])
                translated = Statuses(tuple(map(self._of_rank, event.statuses)))
            case MemoryColumns():
                declares = self._declare(series=event.series)
                translated = replace(event, series=self._series.all_of(event.series))
            case MemoryEvents():
                declares = self._declare([item.rank for item in event.events])
                translated = MemoryEvents(tuple(map(self._of_rank, event.events)))
            case ResponsePart():
                declares = self._declare([event.rank_index])
                translated = replace(event, rank_index=self._ranks.of(event.rank_index))
            case _:
                assert_never(event)
        return [*declares, translated]

    def _declare(
        self,
        ranks: Iterable[int] = (),
        groups: npt.NDArray[Any] | None = None,
        signatures: npt.NDArray[Any] | None = None,
        series: npt.NDArray[Any] | None = None,
    ) -> list[Declare]:
        """Declarations of all arguments that the stream has not declared, and of the ranks and
        attempts to which these refer."""
        known = self._dictionary
        new_series = self._series.missing_of(series)
        new_ranks = self._ranks.missing([*ranks, *(known.series[n].info.rank for n in new_series)])
        new_groups = self._groups.missing_of(groups)
        new_signatures = self._signatures.missing_of(signatures)
        new_attempts = self._attempts.missing(
            [known.ranks[n].attempt_index for n in new_ranks]
            + [known.groups[n].attempt_index for n in new_groups]
        )
        bytes_of = {n: _signature_bytes(known.signatures[n]) for n in new_signatures}
        attempts = [replace(known.attempts[n], index=self._attempts.add(n)) for n in new_attempts]
        return [
            *([Declare(attempts=tuple(attempts))] if attempts else ()),
            *(
                Declare(ranks=tuple(map(self._rank_decl, piece)))
                for piece in _pieces(new_ranks, lambda _: 0)
            ),
            *(
                Declare(groups=tuple(map(self._group_decl, piece)))
                for piece in _pieces(new_groups, lambda n: 12 * len(known.groups[n].info.ranks))
            ),
            *(
                Declare(signatures=tuple(map(self._signature_decl, piece)))
                for piece in _pieces(new_signatures, bytes_of.__getitem__)
            ),
            *(
                Declare(series=tuple(map(self._series_decl, piece)))
                for piece in _pieces(new_series, lambda _: 0)
            ),
        ]

    def _of_rank(self, value: _OfRank) -> _OfRank:
        return replace(value, rank=self._ranks.of(value.rank))

    def _of_attempt(self, declared: _OfAttempt, indexes: _Indexes) -> _OfAttempt:
        attempt_index = self._attempts.of(declared.attempt_index)
        return replace(declared, index=indexes.add(declared.index), attempt_index=attempt_index)

    def _rank_decl(self, number: int) -> RankDecl:
        return self._of_attempt(self._dictionary.ranks[number], self._ranks)

    def _group_decl(self, number: int) -> GroupDecl:
        return self._of_attempt(self._dictionary.groups[number], self._groups)

    def _series_decl(self, number: int) -> SeriesDecl:
        info = self._of_rank(self._dictionary.series[number].info)
        return SeriesDecl(self._series.add(number), info)

    def _signature_decl(self, number: int) -> SignatureDecl:
        signature = self._dictionary.signatures[number]
        self._signature_bytes += _signature_bytes(signature)
        return SignatureDecl(self._signatures.add(number), signature)


class _Indexes:
    """Dense stream indexes of numbers, in a table that translates columns without a loop."""

    def __init__(self) -> None:
        self._table = np.full(64, -1, np.int64)
        self._numbers: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: int) -> int:
        if number >= len(self._table):
            longer = np.full(max(2 * len(self._table), number + 1), -1, np.int64)
            longer[: len(self._table)] = self._table
            self._table = longer
        self._table[number] = len(self._numbers)
        self._numbers.append(number)
        return len(self._numbers) - 1

    def of(self, number: int) -> int:
        return int(self._table[number])

    def all_of(self, numbers: npt.NDArray[Any]) -> UInt32s:
        indexes: UInt32s = self._table[numbers].astype(np.uint32)
        return indexes

    def number_of(self, index: int) -> int | None:
        return self._numbers[index] if 0 <= index < len(self._numbers) else None

    def missing(self, numbers: Iterable[int]) -> list[int]:
        size = len(self._table)
        return sorted({n for n in numbers if n >= size or self._table[n] < 0})

    def missing_of(self, numbers: npt.NDArray[Any] | None) -> list[int]:
        if numbers is None or not len(numbers):
            return []
        if int(numbers.max()) < len(self._table) and (self._table[numbers] >= 0).all():
            return []
        return self.missing(np.unique(numbers).tolist())


def _pieces(numbers: list[int], size_of: Callable[[int], int]) -> list[list[int]]:
    """Chunks that fit into one message each; `size_of` gives bytes, without names."""
    pieces: list[list[int]] = []
    room = 0
    for number in numbers:
        size = size_of(number)
        if not pieces or size > room or len(pieces[-1]) >= _ITEMS_A_MESSAGE:
            pieces.append([])
            room = _BYTES_A_MESSAGE
        pieces[-1].append(number)
        room -= size
    return pieces


def _signature_bytes(signature: Signature) -> int:
    """Upper bound of the bytes on the wire."""
    shapes = (*signature.input_sizes, *signature.output_sizes)
    dtypes = (*signature.input_dtypes, *signature.output_dtypes)
    return sum(4 + 10 * len(shape) for shape in shapes) + sum(4 + len(name) for name in dtypes)


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
