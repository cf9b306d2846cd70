"""Many lines of a trace as columns.

The usual lines are read as bytes (`frd.dftracer.scan`), all others one by one with
`frd.dftracer.line`, which is exact and counts what is broken. The results are the same columns.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

import numpy as np

from frd.dftracer.block import Block, Calls
from frd.dftracer.kinds import FORKS, ITEMS, Kind, kind_of
from frd.dftracer.line import (
    LATEST,
    MAX_INT,
    MOST_BYTES,
    TRACER,
    Event,
    Metadata,
    Phase,
    Record,
    file_key,
    records_of,
)
from frd.dftracer.scan import scan

_EXCERPT: Final = 60
_HOST: Final = re.compile(rb'"hhash":\s*("[^"]*"|\d+)|"hostname":\s*"([^"]*)"')


class BlockReader:
    """Turns blocks of whole lines into columns over one set of dictionaries."""

    def __init__(self, calls: Calls | None = None) -> None:
        self.calls = Calls() if calls is None else calls

    def read(self, data: bytes) -> Block:
        """The records in `data`, whole lines; the last one may have no newline."""
        if (scanned := scan(data, self.calls)) is None:
            return self._exact(data)
        rest = self._exact(scanned.rest)
        columns: dict[str, Any] = {
            name: np.concatenate((column, getattr(rest, name)))
            for name, column in scanned.columns.items()
        }
        return replace(rest, **columns, host=_host(data))

    def _exact(self, data: bytes) -> Block:
        """Line by line."""
        records: list[Record] = []
        broken, first = 0, ""
        for text in data.split(b"\n"):
            found, is_broken = records_of(text)
            records += found
            if is_broken:
                broken += 1
                first = first or text[:_EXCERPT].decode("utf-8", "backslashreplace")
        events = [one for one in records if isinstance(one, Event)]
        spans = [(one, kind_of(one.cat, one.name)) for one in events if one.dur is not None]
        names, cats, files = self.calls.names, self.calls.cats, self.calls.files
        columns = [
            (
                *(names[one.name], cats[one.cat], kind, one.pid, one.tid),
                *(min(max(one.ts, 0), LATEST), min(one.dur or 0, LATEST)),
                *(files[one.file] if one.file else -1, *_returned(one, kind)),
                *(_integer(one, key, -1) if kind < Kind.IO else -1 for key in ("epoch", "step")),
            )
            for one, kind in spans
        ]
        name, cat, kind, pid, tid, start, dur, file, nbytes, failed, epoch, step = (
            np.array(columns, np.int64).reshape(-1, 12).T
        )
        return Block(
            name=name,
            cat=cat,
            kind=kind.astype(np.uint8),
            pid=pid,
            tid=tid,
            start=start,
            dur=dur,
            file=file,
            nbytes=nbytes,
            failed=failed.astype(np.uint8),
            epoch=epoch,
            step=step,
            host=_host(data),
            metadata=[one for one in records if isinstance(one, Metadata)],
            tracer=[one for one in events if one.cat == TRACER or one.name in FORKS],
            aggregated=sum(one.phase is Phase.AGGREGATED for one in events),
            broken=broken,
            first_broken=first,
            stepped=sum(one.stepped for one in events),
        )


def _host(text: bytes) -> str:
    """The key of the first host that is named."""
    if (found := _HOST.search(text)) is None:
        return ""
    hashed, name = found.groups()
    if hashed is not None:
        return hashed.strip(b'"').decode("utf-8", "replace")
    return file_key(None, name.decode("utf-8", "replace"))


def _returned(one: Event, kind: Kind) -> tuple[int, bool]:
    """Bytes moved, and whether the call failed, if its result is known."""
    if kind not in (Kind.READ, Kind.WRITE, Kind.OPEN):
        return 0, False
    ret = _integer(one, "ret", 0)
    size = _integer(one, "size", 1) if one.name in ITEMS else 1
    moved = 0 if kind is Kind.OPEN else max(ret, 0) * max(size, 0)
    return min(moved, MOST_BYTES), ret < 0


def _integer(one: Event, key: str, missing: int) -> int:
    """A number of the arguments; any other value counts as missing."""
    try:
        number = int(one.args[key])
    except (KeyError, TypeError, ValueError, OverflowError):
        return missing
    return number if abs(number) <= MAX_INT else missing
