"""The declarations of one stream: attempts, ranks, groups, signatures, series, and their checks.

Declarations are rare and small, so they are checked one by one; counts and the attempt of each
index are kept as arrays for the vectorized checks of batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from frd.errors import WireError
from frd.model import AttemptKey, GroupInfo, RankInfo, SeriesInfo, Signature
from frd.v1 import stream_pb2 as pb
from frd.wire.encode import MAX_TEXT_BYTES, SERIES_KINDS
from frd.wire.messages import (
    AttemptDecl,
    Declare,
    GroupDecl,
    RankDecl,
    SeriesDecl,
    SignatureDecl,
)
from frd.wire.ranks import unpack_ranks

MAX_WORLD_SIZE: Final = 1 << 20
MAX_ATTEMPTS: Final = 4096
MAX_RANKS: Final = 1 << 16
MAX_GROUPS: Final = 1 << 18
MAX_SIGNATURES: Final = 1 << 16
MAX_SERIES: Final = 1 << 16
MAX_MEMBERS: Final = 1 << 24
"""Ranks listed in all groups of one stream together."""
MAX_DIMS: Final = 64
MAX_SHAPES: Final = 4096
MAX_NAMES: Final = 256
_SERIES_KIND_OF: Final = {number: kind for kind, number in SERIES_KINDS.items()}


def check_text(field: str, value: str) -> str:
    if len(value) > MAX_TEXT_BYTES or (
        len(value) * 4 > MAX_TEXT_BYTES and len(value.encode()) > MAX_TEXT_BYTES
    ):
        raise WireError(field, "too_large", f"longer than {MAX_TEXT_BYTES} bytes: shorten it")
    return value


def _check_texts(field: str, values: Sequence[str], limit: int) -> tuple[str, ...]:
    if len(values) > limit:
        raise WireError(field, "too_large", f"{len(values)} items: send {limit} or fewer")
    return tuple(check_text(field, value) for value in values)


class _AttemptColumn:
    """A growing column: the attempt index of each declared rank, group or series."""

    def __init__(self) -> None:
        self.count = 0
        self._column = np.zeros(64, np.int32)

    def append(self, attempt: int) -> None:
        if self.count == len(self._column):
            self._column = np.concatenate((self._column, np.zeros_like(self._column)))
        self._column[self.count] = attempt
        self.count += 1

    def of(self, index: int) -> int:
        return int(self._column[index])

    def differ(self, indexes: npt.NDArray[Any], attempt: int) -> bool:
        return bool((self._column[indexes] != attempt).any())


class Dictionary:
    """The dictionaries of one stream."""

    def __init__(self) -> None:
        self._worlds: list[int] = []
        self._ranks = _AttemptColumn()
        self._groups = _AttemptColumn()
        self._series = _AttemptColumn()
        self._members = 0
        self.signature_count = 0

    @property
    def rank_count(self) -> int:
        return self._ranks.count

    @property
    def group_count(self) -> int:
        return self._groups.count

    @property
    def series_count(self) -> int:
        return self._series.count

    # -- checks of batches ---------------------------------------------------------------------

    def check_attempt(self, field: str, index: int) -> None:
        _check_known(field, index, len(self._worlds))

    def attempt_of_rank(self, field: str, index: int) -> int:
        """The attempt index of a declared rank."""
        _check_known(field, index, self._ranks.count)
        return self._ranks.of(index)

    def check_ranks_of(self, field: str, ranks: npt.NDArray[Any], attempt: int) -> None:
        """All `ranks` (known indexes) were declared for `attempt`."""
        if len(self._worlds) > 1 and self._ranks.differ(ranks, attempt):
            raise WireError(field, "disagree", f"a rank of another attempt than {attempt}")

    def check_groups_of(self, field: str, groups: npt.NDArray[Any], attempt: int) -> None:
        """All `groups` (known indexes) were declared for `attempt`."""
        if len(self._worlds) > 1 and self._groups.differ(groups, attempt):
            raise WireError(field, "disagree", f"a group of another attempt than {attempt}")

    def check_series(self, field: str, series: npt.NDArray[Any]) -> None:
        """All `series` (known indexes, at least one) are of ranks of one attempt."""
        if len(self._worlds) > 1 and self._series.differ(series, self._series.of(series[0])):
            raise WireError(field, "disagree", "series of several attempts: send a batch for each")

    def check_world(self, field: str, rank: int, attempt: int) -> None:
        """A global rank is within the attempt's world, if its size is known."""
        world_size = self._worlds[attempt] or MAX_WORLD_SIZE
        if rank >= world_size:
            raise WireError(field, "range", f"rank {rank} is beyond the world size {world_size}")

    # -- declarations --------------------------------------------------------------------------

    def declare(self, m: pb.Declare) -> Declare:
        """Apply one message; an error ends the stream, so half of it may have been applied."""
        return Declare(
            attempts=tuple([self._attempt(item) for item in m.attempts]),
            ranks=tuple([self._rank(item) for item in m.ranks]),
            groups=tuple([self._group(item) for item in m.groups]),
            signatures=tuple([self._signature(item) for item in m.signatures]),
            series=tuple([self._series_decl(item) for item in m.series]),
        )

    def _attempt(self, m: pb.Attempt) -> AttemptDecl:
        _check_next("declare.attempts.index", m.index, len(self._worlds), MAX_ATTEMPTS)
        if not m.job:
            raise WireError("declare.attempts.job", "missing", "empty: send the job's id")
        _check_world_size("declare.attempts.world_size", m.world_size)
        job = check_text("declare.attempts.job", m.job)
        run = check_text("declare.attempts.run", m.run)
        self._worlds.append(m.world_size)
        return AttemptDecl(m.index, AttemptKey(job, m.attempt), m.world_size, run)

    def _rank(self, m: pb.Rank) -> RankDecl:
        _check_next("declare.ranks.index", m.index, self._ranks.count, MAX_RANKS)
        self.check_attempt("declare.ranks.attempt_index", m.attempt_index)
        self.check_world("declare.ranks.rank", m.rank, m.attempt_index)
        _check_world_size("declare.ranks.world_size", m.world_size)
        if m.world_size and m.rank >= m.world_size:
            raise WireError(
                "declare.ranks.rank",
                "range",
                f"rank {m.rank} is beyond the world size {m.world_size}",
            )
        if not m.boot_id:
            raise WireError("declare.ranks.boot_id", "missing", "empty: send the clock domain")
        info = RankInfo(
            rank=m.rank,
            world_size=m.world_size,
            node=check_text("declare.ranks.node", m.node),
            boot_id=check_text("declare.ranks.boot_id", m.boot_id),
            pid=m.pid,
            local_rank=m.local_rank,
            torch_version=check_text("declare.ranks.torch_version", m.torch_version),
            backends=_check_texts("declare.ranks.backends", m.backends, MAX_NAMES),
            devices=_check_texts("declare.ranks.devices", m.devices, MAX_NAMES),
        )
        self._ranks.append(m.attempt_index)
        return RankDecl(m.index, m.attempt_index, info)

    def _group(self, m: pb.Group) -> GroupDecl:
        _check_next("declare.groups.index", m.index, self._groups.count, MAX_GROUPS)
        self.check_attempt("declare.groups.attempt_index", m.attempt_index)
        check_text("declare.groups.name", m.name)
        check_text("declare.groups.desc", m.desc)
        info = _group_info(m.name, m.desc, m.ranks)
        if info.ranks:
            self.check_world("declare.groups.ranks", info.ranks[-1], m.attempt_index)
        self._members += len(info.ranks)
        if self._members > MAX_MEMBERS:
            raise WireError(
                "declare.groups.ranks", "limit", f"more than {MAX_MEMBERS} on one stream"
            )
        self._groups.append(m.attempt_index)
        return GroupDecl(m.index, m.attempt_index, info)

    def _signature(self, m: pb.Signature) -> SignatureDecl:
        _check_next("declare.signatures.index", m.index, self.signature_count, MAX_SIGNATURES)
        signature = Signature(
            backend=check_text("declare.signatures.backend", m.backend),
            op=check_text("declare.signatures.op", m.op),
            input_sizes=_sizes("declare.signatures.input_sizes", m.input_sizes),
            output_sizes=_sizes("declare.signatures.output_sizes", m.output_sizes),
            input_dtypes=_check_texts(
                "declare.signatures.input_dtypes", m.input_dtypes, MAX_SHAPES
            ),
            output_dtypes=_check_texts(
                "declare.signatures.output_dtypes", m.output_dtypes, MAX_SHAPES
            ),
        )
        self.signature_count += 1
        return SignatureDecl(m.index, signature)

    def _series_decl(self, m: pb.Series) -> SeriesDecl:
        _check_next("declare.series.index", m.index, self._series.count, MAX_SERIES)
        attempt = self.attempt_of_rank("declare.series.rank_index", m.rank_index)
        if (kind := _SERIES_KIND_OF.get(m.kind)) is None:
            raise WireError(
                "declare.series.kind", "range", f"{m.kind}: send a kind of frd.v1.SeriesKind"
            )
        device = check_text("declare.series.device", m.device)
        self._series.append(attempt)
        return SeriesDecl(m.index, SeriesInfo(m.rank_index, kind, device))


@lru_cache(maxsize=128)
def _group_info(name: str, desc: str, runs: bytes) -> GroupInfo:
    """Every agent declares the large groups: one object, checked once, serves all streams."""
    ranks = unpack_ranks("declare.groups.ranks", runs, MAX_WORLD_SIZE)
    return GroupInfo(name, desc, tuple(ranks.tolist()))


def _check_known(field: str, index: int, count: int) -> None:
    if index >= count:
        raise WireError(
            field, "unknown_index", f"index {index} where {count} are declared: declare it first"
        )


def _check_next(field: str, index: int, count: int, limit: int) -> None:
    if index < count:
        raise WireError(field, "redefined", f"index {index} is taken: use {count}")
    if index > count:
        raise WireError(field, "unknown_index", f"index {index} leaves a hole: use {count}")
    if count >= limit:
        raise WireError(field, "limit", f"more than {limit} on one stream: open a new stream")


def _check_world_size(field: str, world_size: int) -> None:
    if world_size > MAX_WORLD_SIZE:
        raise WireError(field, "range", f"{world_size}: send {MAX_WORLD_SIZE} or less")


def _sizes(field: str, shapes: Sequence[pb.Shape]) -> tuple[tuple[int, ...], ...]:
    if len(shapes) > MAX_SHAPES:
        raise WireError(field, "too_large", f"{len(shapes)} shapes: send {MAX_SHAPES} or fewer")
    return tuple([_dims(field, shape.dims) for shape in shapes])


def _dims(field: str, dims: Iterable[int]) -> tuple[int, ...]:
    sizes = tuple(dims)
    if len(sizes) > MAX_DIMS:
        raise WireError(field, "too_large", f"{len(sizes)} dimensions: send {MAX_DIMS} or fewer")
    if sizes and min(sizes) < 0:
        raise WireError(field, "range", f"{min(sizes)}: send sizes of 0 or more")
    return sizes
