"""Reads the counters file of a rank: how many ops each of its groups has enqueued and completed.

The layout is the tap's own (`frd_agent.tap`). A training process wrote the file, so nothing in it
is trusted; what the numbers prove is not known here.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from frd.flight.entry import Status
from frd.model import NodeNs, NodeRawNs
from frd_agent import tap
from frd_agent.untrusted_files import Section, is_begun

TapCounters: TypeAlias = Mapping[tuple[int, int], Status]
"""Raw `pg_status` by recorder (`tap.GENERIC` or `tap.NCCL`) and process-local group id. They count
ops, not collectives."""


class Publication(NamedTuple):
    """`published_at_ns` was read just before the counters."""

    published_at_ns: NodeNs
    published_mono_ns: int
    """CLOCK_MONOTONIC of the node."""
    counters: TapCounters
    overflowed: bool
    """More groups than rows: some are missing."""


class CountersFile:
    """The counters file of one rank, and its newest publication."""

    def __init__(self, path: Path, to_raw: Callable[[NodeNs], NodeRawNs]) -> None:
        """`to_raw` converts a stamp of the wall clock that was made a moment ago."""
        self._to_raw = to_raw
        self._section = Section(path, 0, tap.SHM_SIZE, parse_counters)
        self.latest = Publication(NodeNs(0), 0, {}, overflowed=True)
        """Its times are 0 before the first one."""
        self.published_at_ns = NodeRawNs(0)
        """The time of `latest`, on the raw clock."""
        self.every_s = tap.PUBLISH_S
        """Interval between the last two publications."""
        self.close = self._section.close

    @property
    def status(self) -> TapCounters | None:
        """The counters; None if there are none, or not all."""
        return None if self.latest.overflowed else self.latest.counters

    @property
    def age_s(self) -> float:
        """How long ago the tap published; infinite if it never did."""
        if not self.latest.published_mono_ns:
            return float("inf")
        return max(time.monotonic_ns() - self.latest.published_mono_ns, 0) / 1e9

    def read(self) -> Publication | None:
        """As `Section.read`."""
        found = self._section.read()
        if found is not None and found is not self.latest:
            if self.latest.published_mono_ns:
                every_s = (found.published_mono_ns - self.latest.published_mono_ns) / 1e9
                self.every_s = min(max(every_s, tap.PUBLISH_S), tap.PUBLISH_MAX_S)
            self.latest = found
            self.published_at_ns = self._to_raw(found.published_at_ns)
        return found


def parse_counters(raw: bytes) -> Publication | None:
    """None if `raw` is not one complete publication."""
    if len(raw) < tap.HEADER_SIZE or not is_begun(raw, tap.MAGIC):
        return None
    at_ns, mono_ns, row_count, flags = tap.BODY.unpack_from(raw, tap.PREFIX.size)
    end = tap.HEADER_SIZE + row_count * tap.ROW.size
    if row_count > tap.CAPACITY or end > len(raw):
        return None
    body_end = tap.PREFIX.size + tap.BODY.size
    checksum = zlib.crc32(raw[tap.HEADER_SIZE : end], zlib.crc32(raw[tap.PREFIX.size : body_end]))
    if (checksum,) != tap.CHECKSUM.unpack_from(raw, body_end):
        return None
    counters = {
        (recorder, pg_id): Status(*counts)
        for recorder, pg_id, *counts in tap.ROW.iter_unpack(raw[tap.HEADER_SIZE : end])
    }
    return Publication(NodeNs(at_ns), mono_ns, counters, bool(flags & tap.OVERFLOWED))
