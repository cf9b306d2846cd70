"""Which signatures may meet in one collective.

Every op lets its members differ in something: a gather has outputs on its root only, a broadcast
does not care what lay in the receivers' tensors, an all_to_all may be uneven. What must be equal is
the signature's *match class*; two members disagree exactly when their classes differ. The rules
follow PyTorch's own analyzer, with its gaps closed: the ``_base``, ``_coalesced``, ``_oop`` and
``_tensor`` names are covered, sizes are compared as element counts (a reshaped tensor is the same
to every backend), lists of shards may be uneven, and an unknown op must simply be
equal.

All of this is done once per signature. Per entry the engine compares two integers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import Enum, auto
from math import prod
from typing import Any, Final

import numpy as np

from frd.engine.state.tables import GrowingColumns, column
from frd.errors import WireError
from frd.model import Bools, Int32s, Int64s, Signature

MAX_SIGNATURES: Final = 65_536
"""Of one attempt."""
MAX_OPS: Final = 64
"""Op names with their own histogram; they become metric labels."""
OTHER_OP: Final = "other"
_MOST_SHAPES: Final = 8
"""Shown to people; ops that were coalesced have thousands."""
_MOST_ELEMENTS: Final = 2**53
"""No tensor has more; what claims to must overflow no sum and no column."""


class Rule(Enum):
    """What the members of one op must have in common, besides the op and the backend."""

    ALL = auto()
    """Element counts and dtypes of all inputs and outputs."""
    INPUT = auto()
    """Those of the inputs: only the root has outputs that mean something, or each has its own."""
    OUTPUT = auto()
    """Those of the outputs: only the root has inputs that mean something, or each has its own."""
    TOTAL_INPUT = auto()
    """Total elements and dtypes of the inputs: members may get shares of different sizes."""
    TOTAL_OUTPUT = auto()
    """Total elements and dtypes of the outputs: members may give shares of different sizes."""
    BALANCE = auto()
    """Dtypes; over all members, as many elements go in as come out."""
    EXACT = auto()
    """Everything, shapes included: an op that this table does not know."""


_RULES: Final = {
    "all_reduce": Rule.ALL,
    "allreduce_coalesced": Rule.ALL,
    "all_reduce_coalesced": Rule.ALL,
    "all_reduce_barrier": Rule.ALL,
    "barrier": Rule.ALL,
    "reduce": Rule.INPUT,
    "_reduce_oop": Rule.INPUT,
    "gather": Rule.INPUT,
    "gather_single": Rule.INPUT,
    "broadcast": Rule.OUTPUT,
    "_broadcast_oop": Rule.OUTPUT,
    "scatter": Rule.OUTPUT,
    "all_gather": Rule.OUTPUT,
    "all_gather_single": Rule.ALL,
    "_all_gather_base": Rule.ALL,
    "all_gather_into_tensor": Rule.ALL,
    "all_gather_into_tensor_coalesced": Rule.ALL,
    "all_gather_coalesced": Rule.ALL,
    "all_gather_v": Rule.TOTAL_OUTPUT,
    "ALLGATHER_coalesced": Rule.TOTAL_OUTPUT,
    "reduce_scatter": Rule.INPUT,
    "reduce_scatter_single": Rule.ALL,
    "_reduce_scatter_base": Rule.ALL,
    "reduce_scatter_tensor": Rule.ALL,
    "reduce_scatter_tensor_coalesced": Rule.ALL,
    "reduce_scatter_v": Rule.TOTAL_INPUT,
    "REDUCE_SCATTER_coalesced": Rule.TOTAL_INPUT,
    "all_to_all": Rule.BALANCE,
    "all_to_all_single": Rule.BALANCE,
    "all_to_all_v_single": Rule.BALANCE,
    "alltoall_base": Rule.BALANCE,
}
_EVEN: Final = (Rule.ALL, Rule.INPUT, Rule.OUTPUT)
"""Rules by which all members give and take the same number of elements."""
_GATHERS: Final = frozenset(op for op, of in _RULES.items() if "all_gather" in op and of in _EVEN)
_SCATTERS: Final = frozenset(
    op for op, of in _RULES.items() if "reduce_scatter" in op and of in _EVEN
)
_IN_PLACE: Final = frozenset({"all_reduce", "all_reduce_coalesced", "allreduce_coalesced"})
"""Ops that write each result where the input was. In a reduce only the root does."""
_SYNCHRONIZING: Final = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
"""Ops that no rank can complete before every member has joined, by the start of their names."""
_STRICT: Final = frozenset(
    {op for op in _RULES if op.startswith(("all_reduce", "allreduce", "barrier"))}
    | _GATHERS
    | _SCATTERS
)
"""See `is_strict`."""

Sizes = tuple[tuple[int, ...], ...]


def rule(op: str) -> Rule:
    return _RULES.get(op, Rule.EXACT)


def match_class(signature: Signature) -> Hashable:
    """The part of a signature that all members of a collective must share."""
    s = signature
    who = s.backend, s.op
    match rule(s.op):
        case Rule.ALL:
            inputs = _counts(s.input_sizes), s.input_dtypes
            return *who, *inputs, _counts(s.output_sizes), s.output_dtypes
        case Rule.INPUT:
            return *who, _counts(s.input_sizes), s.input_dtypes
        case Rule.OUTPUT:
            return *who, _counts(s.output_sizes), s.output_dtypes
        case Rule.TOTAL_INPUT:
            return *who, elements(s.input_sizes), frozenset(s.input_dtypes)
        case Rule.TOTAL_OUTPUT:
            return *who, elements(s.output_sizes), frozenset(s.output_dtypes)
        case Rule.BALANCE:
            return *who, frozenset(s.input_dtypes), frozenset(s.output_dtypes)
        case Rule.EXACT:
            return s


def balance(signature: Signature) -> int:
    """Elements that an all_to_all puts in minus those that it takes out; 0 for other ops."""
    if rule(signature.op) is not Rule.BALANCE:
        return 0
    return elements(signature.input_sizes) - elements(signature.output_sizes)


def is_synchronizing(op: str) -> bool:
    """True if no member can complete the op before every member has joined it.

    Names differ by backend and torch version: ``all_reduce``, ``_all_gather_base``,
    ``ALLGATHER_coalesced``, ``allreduce_coalesced``. A coalesced op synchronizes if one of its
    parts does: ``coalesced(broadcast,all_reduce x2)``.
    """
    plain = op.rpartition(":")[2].replace("_", "").lower()
    parts = plain.removeprefix("coalesced(").split(",")
    return any(part.startswith(_SYNCHRONIZING) for part in parts)


def is_rooted(op: str) -> bool:
    """True if one member has another part in the op than the others: they may complete it at
    different times. Which member that is no recorder shows."""
    plain = op.rpartition(":")[2].replace("_", "").lower()
    return plain.startswith(("broadcast", "reduce", "gather", "scatter")) and not is_synchronizing(
        op
    )


def is_strict(signature: Signature) -> bool:
    """True if no member completes the op before all members have joined it: every output depends on
    every input, and no input is empty."""
    return signature.op in _STRICT and all(map(prod, signature.input_sizes))


def binds_sizes(op: str) -> bool:
    """True if the sizes of the input decide those of the output: `self_contradiction` checks it."""
    return op in _GATHERS or op in _SCATTERS or op in _IN_PLACE


def self_contradiction(signature: Signature, group_size: int) -> str:
    """How the sizes of one member break the rule of its op, as text; empty when they do not.

    A gather-like op gives back its input once per member, a reduce_scatter-like op takes in its
    output once per member; lists of one tensor a member may be uneven, if the member's own is among
    them. Says nothing of groups of unknown size (0). An all_reduce gives back what it takes in.
    """
    if signature.op in _IN_PLACE:
        return _change(signature)
    taken, given = _counts(signature.input_sizes), _counts(signature.output_sizes)
    if group_size and signature.op in _GATHERS and not _is_times(group_size, taken, given):
        return f"{sum(given)} output elements are not {group_size} times {sum(taken)}"
    if group_size and signature.op in _SCATTERS and not _is_times(group_size, given, taken):
        return f"{sum(taken)} input elements are not {group_size} times {sum(given)}"
    return ""


def _change(signature: Signature) -> str:
    """How the output of an op in place differs from its input, as far as both are recorded.

    Gloo records reduce_scatter as all_reduce: its output may be smaller. Some backends take complex
    numbers as two real ones each. ``[[]]`` is a scalar, or nothing.
    """
    taken, given = elements(signature.input_sizes), elements(signature.output_sizes)
    dtypes = signature.input_dtypes, signature.output_dtypes
    before, after = ("/".join(sorted({*of})) for of in dtypes)
    both = any(signature.input_sizes) and any(signature.output_sizes)
    if not both or "complex" in (before + after).lower():
        return ""
    if taken != given and (given > taken or signature.backend != "gloo"):
        return f"{given} output elements are not the {taken} of the input"
    if before and after and before != after:
        return f"output of {after}, but input of {before}"
    return ""


def _is_times(group_size: int, one: tuple[int, ...], all_of_them: tuple[int, ...]) -> bool:
    if sum(all_of_them) == sum(one) * group_size:
        return True
    return len(one) == 1 and len(all_of_them) == group_size > 1 and one[0] in all_of_them


def difference(one: Signature, other: Signature) -> str:
    """What differs between two signatures of different match classes, for people."""
    if (one.backend, one.op) != (other.backend, other.op):
        return f"op {_op(one, other)} and {_op(other, one)}"
    for what in (*_SIZES, *_DTYPES):
        if what in differing([one, other]):
            return f"{what} {_text(one, what)} and {_text(other, what)}"
    return f"shapes {shapes_text(one.input_sizes)} and {shapes_text(other.input_sizes)}"


def moved(sent: Signature, received: Signature) -> tuple[Signature, Signature]:
    """The input of a send and the output of its receive, in one form so that `differing` compares
    them. What one of them does not say counts as equal."""
    sizes, dtypes = sent.input_sizes, sent.input_dtypes
    their_sizes, their_dtypes = received.output_sizes, received.output_dtypes
    return (
        Signature("", "send", sizes or their_sizes, (), dtypes or their_dtypes),
        Signature("", "send", their_sizes or sizes, (), their_dtypes or dtypes),
    )


_SIZES: Final = ("input sizes", "output sizes")
_DTYPES: Final = ("input dtypes", "output dtypes")


def differing(signatures: Sequence[Signature]) -> list[str]:
    """Which of sizes and dtypes are not the same in all, as far as the op cares."""
    return [
        what
        for what in (*_SIZES, *_DTYPES)
        if all(_matters(one.op, what) for one in signatures)
        and len({_comparable(one, what) for one in signatures}) > 1
    ]


def _comparable(one: Signature, what: str) -> Hashable:
    side = _of(one, what)
    return _counts(side) if what in _SIZES else side


def _of(one: Signature, what: str) -> Any:
    return getattr(one, what.replace(" ", "_"))


def _text(one: Signature, what: str) -> str:
    return shapes_text(_of(one, what)) if what in _SIZES else ", ".join(_of(one, what))


def _matters(op: str, what: str) -> bool:
    of = rule(op)
    if of in (Rule.INPUT, Rule.TOTAL_INPUT):
        return what.startswith("input")
    if of in (Rule.OUTPUT, Rule.TOTAL_OUTPUT):
        return what.startswith("output")
    return of is not Rule.BALANCE or what.endswith("dtypes")


def _op(signature: Signature, other: Signature) -> str:
    same = signature.op == other.op
    return f"{signature.backend}:{signature.op}" if same else signature.op


def shapes_text(sizes: Sizes) -> str:
    more = f" and {len(sizes) - _MOST_SHAPES} more" if len(sizes) > _MOST_SHAPES else ""
    return str([list(size) for size in sizes[:_MOST_SHAPES]]) + more


def _counts(sizes: Sizes) -> tuple[int, ...]:
    return tuple(prod(size) for size in sizes)


def elements(sizes: Sizes) -> int:
    """How many elements tensors of these sizes have together, and at most what a tensor may."""
    return min(sum(_counts(sizes)), _MOST_ELEMENTS)


class Signatures(GrowingColumns):
    """The signatures of one attempt by handle, with what the engine asks of each as columns."""

    match_class: Int32s = column(np.int32)
    op: Int32s = column(np.int32)
    """Op index of each signature."""
    balance: Int64s = column(np.int64)
    balanced: Bools = column(np.bool_)
    """Whether the totals over all members must add up to nothing."""
    synchronizing: Bools = column(np.bool_)
    """See `is_synchronizing`."""
    strict: Bools = column(np.bool_)
    """See `is_strict`."""

    def __init__(self) -> None:
        super().__init__()
        self._handles: dict[Signature, int] = {}
        self._classes: dict[Hashable, int] = {}
        self._op_index: dict[str, int] = {}
        self.known: list[Signature] = []
        self.ops: list[str] = []
        """Op names by op index."""
        self.any_balanced = False

    def handle(self, signature: Signature) -> int:
        """Get or create.

        Raises:
            WireError: when the limit is reached.
        """
        known = self._handles.get(signature)
        if known is not None:
            return known
        handle = len(self.known)
        if handle >= MAX_SIGNATURES:
            raise WireError("signatures", "limit", f"more than {MAX_SIGNATURES} in one attempt")
        self.reserve(handle + 1)
        self._handles[signature] = handle
        self.known.append(signature)
        self.match_class[handle] = self._classes.setdefault(
            match_class(signature), len(self._classes)
        )
        self.op[handle] = self._op(signature.op)
        self.balance[handle] = balance(signature)
        self.synchronizing[handle] = is_synchronizing(signature.op)
        self.strict[handle] = is_strict(signature)
        self.balanced[handle] = rule(signature.op) is Rule.BALANCE
        self.any_balanced |= bool(self.balanced[handle])
        return handle

    def _op(self, op: str) -> int:
        name = op if op in self._op_index or len(self.ops) < MAX_OPS else OTHER_OP
        if name not in self._op_index:
            self._op_index[name] = len(self.ops)
            self.ops.append(name)
        return self._op_index[name]
