"""The dictionaries of the agent's streams: attempts, ranks, groups and signatures to indexes.

Indexes stay the same for one session (one agent process, as a rule), so a new stream re-declares
them as they are, and rows that wait for an acknowledgement need no rewriting. What a signature
may carry is cut to what the wire allows here, once per signature instead of once per row.

The service bounds what one stream may declare. A job whose shapes never repeat reaches the bound
in the end; `full` says so, and the session is then renewed with the signatures still in use.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from frd.model import AttemptKey, GroupInfo, RankInfo, Signature
from frd.wire import AttemptDecl, Declare, GroupDecl, RankDecl, SignatureDecl

MAX_SIGNATURES = 60_000
"""Below the service's bound of 65,536 per stream."""
_MAX_TENSORS = 1_024
"""Of one signature; the sub-ops of a coalesced one add up."""
_MAX_DIMENSIONS = 64
_ITEMS_A_MESSAGE = 1_000
_MEMBERS_A_MESSAGE = 250_000
"""Ranks listed in all groups of one message: a megabyte."""


class Dictionary:
    def __init__(self, max_signatures: int = MAX_SIGNATURES) -> None:
        self._max_signatures = max_signatures
        self._attempts: list[AttemptDecl] = []
        self._ranks: list[RankDecl] = []
        self._groups: list[GroupDecl] = []
        self._signatures: list[Signature] = []
        self._attempt_of: dict[AttemptKey, int] = {}
        self._group_of: dict[tuple[int, GroupInfo], int] = {}
        self._signature_of: dict[Signature, int] = {}
        self._told = (0, 0, 0, 0)

    def attempt(self, key: AttemptKey, world_size: int) -> int:
        index = self._attempt_of.setdefault(key, len(self._attempts))
        if index == len(self._attempts):
            self._attempts.append(AttemptDecl(index, key, world_size))
        return index

    def rank(self, attempt: int, info: RankInfo) -> int:
        """A new index: every process of a rank has its own."""
        self._ranks.append(RankDecl(len(self._ranks), attempt, info))
        return len(self._ranks) - 1

    def group(self, attempt: int, info: GroupInfo) -> int:
        index = self._group_of.setdefault((attempt, info), len(self._groups))
        if index == len(self._groups):
            self._groups.append(GroupDecl(index, attempt, info))
        return index

    def signature(self, signature: Signature) -> int:
        index = self._signature_of.get(signature)
        if index is None:
            fitted = _fitted(signature)
            index = self._signature_of.setdefault(fitted, len(self._signatures))
            if index == len(self._signatures):
                self._signatures.append(fitted)
        return index

    def attempt_of(self, rank: int) -> int:
        """The attempt index of a rank index."""
        return self._ranks[rank].attempt_index

    @property
    def full(self) -> bool:
        return len(self._signatures) >= self._max_signatures

    def rewind(self) -> None:
        """A new stream has been told nothing."""
        self._told = (0, 0, 0, 0)

    def undeclared(self) -> Declare | None:
        """The next piece of what the stream must know before rows; None when it knows all."""
        attempts, ranks, groups, signatures = self._told
        if (attempts, ranks, groups, signatures) == (
            len(self._attempts),
            len(self._ranks),
            len(self._groups),
            len(self._signatures),
        ):
            return None
        message = Declare(
            attempts=tuple(self._attempts[attempts:]),
            ranks=tuple(self._ranks[ranks : ranks + _ITEMS_A_MESSAGE]),
            groups=tuple(_small(self._groups[groups : groups + _ITEMS_A_MESSAGE])),
            signatures=tuple(
                SignatureDecl(signatures + i, signature)
                for i, signature in enumerate(
                    self._signatures[signatures : signatures + _ITEMS_A_MESSAGE]
                )
            ),
        )
        self._told = (
            len(self._attempts),
            ranks + len(message.ranks),
            groups + len(message.groups),
            signatures + len(message.signatures),
        )
        return message

    def keep_signatures(self, used: Iterable[int]) -> dict[int, int]:
        """Forget all signatures but `used`; old index to new. Only between two sessions."""
        renumbered = {old: new for new, old in enumerate(sorted(set(used)))}
        self._signatures = [self._signatures[old] for old in renumbered]
        self._signature_of = {s: i for i, s in enumerate(self._signatures)}
        return renumbered


def _small(groups: list[GroupDecl]) -> list[GroupDecl]:
    """As many of the first groups as one message may hold; at least one."""
    members = 0
    for count, group in enumerate(groups):
        members += len(group.info.ranks)
        if count and members > _MEMBERS_A_MESSAGE:
            return groups[:count]
    return groups


def _fitted(signature: Signature) -> Signature:
    """What a stream may carry of a signature; the same cut on every rank keeps equal ones equal."""
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
