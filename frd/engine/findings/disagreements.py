"""Sentences on ranks that disagree: which rank called what, whichever of them was seen first.

With a majority the other ranks come first ("rank 2 called broadcast where ranks 0-1 called
all_reduce"), without one all sides are listed. Only what differs is mentioned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from frd.engine.findings import text
from frd.engine.matching import signature_rules
from frd.engine.state.snapshot import Mismatch, Snapshot
from frd.model import Signature

_MOST: Final = 3
"""Odd classes that one sentence mentions."""
MOST_CHARS: Final = 600
WRONG_RESULT: Final = "it completed, so its result is wrong"
GLOO: Final = "Gloo records reduce_scatter as all_reduce"
_DTYPES: Final = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
"""Names of types in recorders, and torch's names for them."""


def has_majority(mismatch: Mismatch) -> bool:
    sizes = [len(ranks) for _, ranks in mismatch.classes]
    return 2 * sizes[0] > sum(sizes)


def of_mismatch(snapshot: Snapshot, mismatch: Mismatch) -> str:
    """``rank 2 passed float16 where ranks 0-1 passed float32 to all_reduce #7 on default_pg``"""
    usual, *odd = mismatch.classes
    label = snapshot.groups[mismatch.group].label
    words = _Words(mismatch, label)
    if not odd:
        what = text.collective(usual[0].op, mismatch.seq, label)
        sentence = f"sizes in {what} contradict each other: {mismatch.detail}"
        return _with_result(snapshot, mismatch, sentence)
    clauses = [f"{text.ranks(ranks)} {words.did(signature)}" for signature, ranks in odd[:_MOST]]
    if len(odd) > _MOST:
        clauses.append(f"{sum(len(ranks) for _, ranks in odd[_MOST:])} more did something else")
    mine = f"{text.ranks(usual[1])} {words.did(usual[0])}"
    if has_majority(mismatch):
        sentence = f"{' and '.join(clauses)} where {mine}{words.where}"
    else:
        sentence = f"{', '.join([mine, *clauses])}{words.where}"
    return _with_result(snapshot, mismatch, sentence)


def of_pair(src: int, dst: int, sent: Signature, received: Signature) -> str:
    """``rank 1 receives [[3]] where rank 0 sends [[1]]``"""
    differ = signature_rules.differing((sent, received))
    sends, receives = (_values(one, differ) for one in (sent, received))
    return text.clean(f"rank {dst} receives {receives} where rank {src} sends {sends}", MOST_CHARS)


def of_class(
    snapshot: Snapshot, mismatch: Mismatch, alike: tuple[Signature, tuple[int, ...]]
) -> str:
    """What the ranks of one class did: ``called broadcast where ranks 0-1 called all_reduce (#249
    on dp)``."""
    words = _Words(mismatch, snapshot.groups[mismatch.group].label)
    signature = alike[0]
    sentence = f"passed {text.clean(signature.op)}; {mismatch.detail}"
    others = [other for other in mismatch.classes if other != alike]
    if others:
        other, theirs = others[0]
        sentence = f"{words.did(signature)} where {text.ranks(theirs)} {words.did(other)}"
        sentence += words.where
        if wrong := signature_rules.self_contradiction(signature, mismatch.group_size):
            sentence += f"; {wrong}"
    return _with_result(snapshot, mismatch, sentence) + (f"; {GLOO}" if _of_gloo(mismatch) else "")


def of_order(heads: Sequence[tuple[str, Sequence[int]]]) -> str:
    """``rank 3 went into all_reduce on dp while ranks 0-2 are in all_to_all on ep``.

    `heads` lists which ranks are in what, the op with the most ranks last.
    """
    clauses = [
        f"{text.ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} in {what}"
        for what, ranks in heads
    ]
    sizes = [len(ranks) for _, ranks in heads]
    if 2 * sizes[-1] <= sum(sizes) or len(heads) == 1:
        return ", ".join(clauses)
    odd = [f"{text.ranks(ranks)} went into {what}" for what, ranks in heads[:-1]]
    return f"{' and '.join(odd)} while {clauses[-1]}"


def of_roots(done: Sequence[int], inside: Sequence[int]) -> str:
    """Some ranks completed an op that has a root, and others did not."""
    return (
        f"{text.ranks(done)} {'has' if len(done) == 1 else 'have'} completed it, "
        f"{text.ranks(inside)} {'has' if len(inside) == 1 else 'have'} not: "
        "their roots may differ, or the link between them failed"
    )


def _with_result(snapshot: Snapshot, mismatch: Mismatch, sentence: str) -> str:
    """The sentence and, where all members completed the collective and went on to a later one, so
    that no error stopped them, what that means."""
    sentence = text.clean(sentence, MOST_CHARS)
    pairs = snapshot.pairs.of(mismatch.group)
    done = (pairs.completed >= mismatch.seq) & (pairs.joined > mismatch.seq)
    return f"{sentence}; {WRONG_RESULT}" if len(done) and done.all() else sentence


def _of_gloo(mismatch: Mismatch) -> bool:
    """Gloo's name for the op does not say which op it was."""
    return len({signature.op for signature, _ in mismatch.classes}) > 1 and any(
        signature.backend == "gloo" and signature.op == "all_reduce"
        for signature, _ in mismatch.classes
    )


class _Words:
    """What each class did, in words that mention only what differs."""

    def __init__(self, mismatch: Mismatch, label: str) -> None:
        self._usual = mismatch.classes[0][0]
        signatures = [signature for signature, _ in mismatch.classes]
        self._by_op = len({signature.op for signature in signatures}) > 1
        self._by_backend = (
            not self._by_op and len({signature.backend for signature in signatures}) > 1
        )
        self._differ = signature_rules.differing(signatures)
        number = f"#{mismatch.seq} on {text.clean(label)}"
        what = text.collective(self._usual.op, mismatch.seq, label)
        self.where = f" ({number})" if self._by_op else f" to {what}"
        if self._by_backend:
            self.where = f" for {what}"

    def did(self, signature: Signature) -> str:
        if self._by_op:
            passed = ""
            if signature.op == self._usual.op and signature != self._usual:
                differing = signature_rules.differing([signature, self._usual])
                passed = f" with {_values(signature, differing)}"
            return f"called {text.clean(signature.op)}{passed}"
        if self._by_backend:
            return f"used {text.clean(signature.backend)}"
        return f"passed {_values(signature, self._differ)}"


def _values(signature: Signature, differ: Sequence[str]) -> str:
    """``float16 of [[8]]``, ``[[8]] and outputs of [[9]]``"""
    parts = []
    for side, dtypes, sizes in (
        ("input", signature.input_dtypes, signature.input_sizes),
        ("output", signature.output_dtypes, signature.output_sizes),
    ):
        words = []
        if f"{side} dtypes" in differ:
            words.append(", ".join(dict.fromkeys(map(_dtype, dtypes))) or "nothing")
        if f"{side} sizes" in differ:
            words.append(signature_rules.shapes_text(sizes))
        if words:
            parts.append(("outputs of " if side == "output" else "") + " of ".join(words))
    if len(parts) == 2 and parts[1] == f"outputs of {parts[0]}":
        parts.pop()
    return text.clean(" and ".join(parts)) or signature_rules.shapes_text(signature.input_sizes)


def _dtype(name: str) -> str:
    return _DTYPES.get(name, name.removeprefix("torch."))
