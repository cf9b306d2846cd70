"""The layout of entries in a pickle of PyTorch, found from the first entry of a file.

Every entry is a dict of the same keys in the same order. A string is written in full where it is
first used, which defines a number for it, and as a reference to that number from then on; so the
first entry spells the keys out, and all others refer to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

_START = b"\x80\x02}("
_ENTRIES = b"X\x07\x00\x00\x00entries"
_MAX_FIRST = 1 << 20
"""The first entry is shorter, with all that it defines."""


class Kind(Enum):
    """How the value of a key is written."""

    NUMBER = auto()
    NUMBER_OR_NONE = auto()
    FLAG = auto()
    REAL = auto()
    TEXT = auto()
    PAIR = auto()
    """A tuple of two texts."""
    TREE = auto()
    """Nested lists."""


KINDS: Final = {  # in PyTorch's order
    "frames": Kind.TREE,
    "record_id": Kind.NUMBER,
    "pg_id": Kind.NUMBER,
    "process_group": Kind.PAIR,
    "thread_name": Kind.TEXT,
    "thread_id": Kind.TEXT,
    "collective_seq_id": Kind.NUMBER,
    "p2p_seq_id": Kind.NUMBER,
    "op_id": Kind.NUMBER,
    "profiling_name": Kind.TEXT,
    "time_created_ns": Kind.NUMBER,
    "duration_ms": Kind.REAL,
    "input_sizes": Kind.TREE,
    "input_dtypes": Kind.TREE,
    "output_sizes": Kind.TREE,
    "output_dtypes": Kind.TREE,
    "state": Kind.TEXT,
    "time_discovered_started_ns": Kind.NUMBER_OR_NONE,
    "time_discovered_completed_ns": Kind.NUMBER_OR_NONE,
    "retired": Kind.FLAG,
    "timeout_ms": Kind.NUMBER,
    "is_p2p": Kind.FLAG,
}
OPTIONAL: Final = "duration_ms"
"""In some entries of a dump and not in others: it is there where timing was on, and done."""
_BEFORE_OPTIONAL = "time_created_ns"


@dataclass(frozen=True, slots=True)
class Step:
    """One key and its value; of neighbouring trees, all of them."""

    name: str
    kind: Kind
    token: bytes
    """The memo reference of the key."""
    until: bytes = b""
    """Of trees: the next key's."""


@dataclass(frozen=True, slots=True)
class Layout:
    first: int
    """Where the first entry begins."""
    steps: list[Step]


def layout_of(data: bytes) -> Layout | None:
    """The layout of the entries in `data`; None when it is not PyTorch's."""
    at = data.find(_ENTRIES)
    if at < 0 or not data.startswith(_START) or not data.endswith(b"."):
        return None
    opened = _defined(data, at + len(_ENTRIES))
    if opened is None or data[opened[1] : opened[1] + 4] != b"](}(":
        return None
    first = opened[1] + 2
    keys = _keys(data, first)
    steps = _steps([keys[at] for at in sorted(keys)])
    return Layout(first, steps) if steps and min(keys) == first + 2 else None


def _keys(data: bytes, first: int) -> dict[int, tuple[str, bytes]]:
    """The keys that the first entry defines, with their references, by position."""
    keys = {}
    for name in KINDS:
        written = b"X%b%b" % (len(name).to_bytes(4, "little"), name.encode())
        end = len(data) if name == OPTIONAL else first + _MAX_FIRST
        at = data.find(written, first, end)
        if at >= 0 and (defined := _defined(data, at + len(written))) is not None:
            keys[at] = (name, defined[0])
    return keys


def _defined(data: bytes, at: int) -> tuple[bytes, int] | None:
    """The reference to what is numbered at `at`, and the position behind."""
    match data[at : at + 1]:
        case b"q":
            return b"h" + data[at + 1 : at + 2], at + 2
        case b"r":
            return b"j" + data[at + 1 : at + 5], at + 5
    return None


def _steps(keys: list[tuple[str, bytes]]) -> list[Step]:
    """Empty if a tree is the last of `keys`, so that its end is unknown."""
    names = [name for name, _ in keys]
    if OPTIONAL in names and _BEFORE_OPTIONAL in names:
        optional = keys.pop(names.index(OPTIONAL))
        names.remove(OPTIONAL)
        keys.insert(names.index(_BEFORE_OPTIONAL) + 1, optional)
    steps: list[Step] = []
    for at, (name, token) in enumerate(keys):
        kind = KINDS[name]
        if kind is not Kind.TREE:
            steps.append(Step(name, kind, token))
        elif not steps or steps[-1].kind is not Kind.TREE:
            behind = (later for name, later in keys[at:] if KINDS[name] is not Kind.TREE)
            steps.append(Step(name, kind, token, next(behind, b"")))
    return steps if all(step.until for step in steps if step.kind is Kind.TREE) else []
