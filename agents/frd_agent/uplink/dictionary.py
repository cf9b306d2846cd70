"""The agent's numbers for attempts, ranks, groups, signatures and series.

They never change, so rows and watermarks can wait for any stream; `stream_indexes` translates them
for one stream. Signatures are cut to the limits of the wire here, once per signature instead of
once per row.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Final, TypeVar

from frd.model import AttemptKey, GroupInfo, RankInfo, SeriesInfo, Signature
from frd.wire.columns import pack_ranks
from frd.wire.limits import LIMITS, MAX_MEMBERS, fits
from frd.wire.messages import (
    MAX_MESSAGE_BYTES,
    AttemptDecl,
    Declare,
    GroupDecl,
    RankDecl,
    SeriesDecl,
    SignatureDecl,
)

_MAX_TENSORS: Final = LIMITS["declare.signatures.input_sizes"].each
"""Limit per signature; the tensors of all sub-ops of a coalesced collective count."""
_FEW_TENSORS: Final = 64
"""So many always fit into a message, whatever their sizes and types."""
_MAX_DIMENSIONS: Final = LIMITS["declare.signatures.input_sizes.dims"].each
_MAX_NAMES: Final = LIMITS["declare.ranks.backends"].each
_MAX_RUN_BYTES: Final = MAX_MESSAGE_BYTES // 2
"""Of a group's members on the wire; names and what else a message has are far less."""
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
