"""Ops, sizes, frames and spans of time in a few characters, the same in tables and timelines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from frd.flight.entry import Frame
from frd.flight.names import Name
from frd.model import Signature

MAX_SHAPES: Final = 4
"""Tensors of one op that are written out."""


def op_text(name: Name) -> str:
    """``all_reduce``, ``send 0->3``: peers are ranks of the group, as the recorder names them."""
    if not name.is_p2p_kind or (name.src is None and name.dst is None):
        return name.op
    src, dst = ("?" if end is None else end for end in (name.src, name.dst))
    return f"{name.op} {dst}<-{src}" if "recv" in name.op else f"{name.op} {src}->{dst}"


def sizes_text(signature: Signature) -> str:
    """``[4x8] Float``; input and output where they differ."""
    before = _tensors(signature.input_sizes, signature.input_dtypes)
    after = _tensors(signature.output_sizes, signature.output_dtypes)
    if before == after or not after:
        return before
    return f"{before} -> {after}".strip() if before else f"-> {after}"


def frame_text(frame: Frame) -> str:
    """``train.py:88 in step``, with its folder if the file is an ``__init__.py`` or similar."""
    folder, _, file = frame.filename.rpartition("/")
    if file.startswith("__"):
        file = f"{folder.rpartition('/')[2]}/{file}"
    return f"{file}:{frame.line} in {frame.name}"


def _tensors(sizes: Sequence[Sequence[int]], dtypes: Sequence[str]) -> str:
    if not sizes:
        return ""
    shapes = " ".join(f"[{'x'.join(map(str, size))}]" for size in sizes[:MAX_SHAPES])
    if len(sizes) > MAX_SHAPES:
        shapes += f" and {len(sizes) - MAX_SHAPES} more"
    kinds = list(dict.fromkeys(dtypes))
    return f"{shapes} {'/'.join(kinds)}" if kinds else shapes
