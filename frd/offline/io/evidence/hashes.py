"""Which files the hashes in traces mean.

A forked child uses hashes that only its parent's trace defines, so hashes are resolved over all
traces. v1 has hashes of 16 bits, which collide: between jobs, and within one trace. In a trace a
hash means what this trace or those of its ancestors define. If that is more than one file, nothing
in a record says which: the hash then means all of them, and its text says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from frd.dftracer.line import inline_text
from frd.offline.io.part import Facts

_MAX_SHOWN: Final = 3
"""Names of an ambiguous hash that are shown."""


@dataclass(frozen=True, slots=True)
class FileNames:
    """Names of files by trace and key, see `frd.dftracer.line.file_key`."""

    _common: Mapping[str, str] = field(default_factory=dict)
    """The name of each hash; of an ambiguous one, the first."""
    _ambiguous: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """All names of hashes that have several."""
    _within: Mapping[tuple[Path, str], Sequence[str]] = field(default_factory=dict)
    """Their names in a trace that defines or inherits them."""

    def names(self, trace: Path, key: str) -> Sequence[str]:
        """The files that a key may mean; none for a hash that no trace defines."""
        if (inline := inline_text(key)) is not None:
            return (inline,)
        if (several := self._ambiguous.get(key)) is not None:
            return self._within.get((trace, key), several)
        return (self._common[key],) if key in self._common else ()

    def text(self, trace: Path, key: str) -> str:
        """``A or B`` if it may mean both; for an unknown hash, the hash."""
        names = self.names(trace, key)
        more = len(names) - _MAX_SHOWN
        shown = [*names[:_MAX_SHOWN], *([f"{more} more"] if more > 0 else [])]
        return " or ".join(shown) or f"?{key}"


def definitions(facts: Sequence[Facts], kind: str) -> Iterator[tuple[Path, str, str]]:
    """Trace, hash and text of metadata of a kind."""
    for one in facts:
        for meta in one.metadata:
            if meta.kind == kind:
                yield one.piece.file.path, meta.key, meta.value


def file_names(
    facts: Sequence[Facts], ancestors: Callable[[], Mapping[Path, Sequence[Path]]]
) -> FileNames:
    """`ancestors` are the traces of the ancestors of each trace's processes."""
    common: dict[str, str] = {}
    ambiguous: dict[str, dict[str, None]] = {}
    for _, key, name in definitions(facts, "FH"):
        if (first := common.setdefault(key, name)) != name:
            ambiguous.setdefault(key, {first: None})[name] = None
    if not ambiguous:
        return FileNames(common)
    own: dict[tuple[Path, str], dict[str, None]] = defaultdict(dict)
    for trace, key, name in definitions(facts, "FH"):
        if key in ambiguous:
            own[trace, key][name] = None
    within: dict[tuple[Path, str], Sequence[str]] = {}
    inherited = ancestors()
    for one in facts:
        trace = one.piece.file.path
        for key in ambiguous.keys() & set(one.files):
            found = [own.get((path, key), {}) for path in (trace, *inherited.get(trace, ()))]
            if names := tuple(dict.fromkeys(name for names in found for name in names)):
                within[trace, key] = names
    return FileNames(common, {key: tuple(names) for key, names in ambiguous.items()}, within)
