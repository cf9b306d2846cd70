"""What torch's allocator holds, as the tap of a rank publishes it; and its out-of-memory errors. Of
a process in another pid namespace also the host memory, which the agent cannot read.

The layout of the file is the tap's own (`frd_agent.tap`). It was written by a training process, so
nothing in it is trusted. A publication counts once: between two of them there is no sample.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from frd.model import MemoryEvent, MemoryEventKind, NodeNs, NodeRawNs, SeriesInfo, SeriesKind
from frd_agent import tap
from frd_agent.memory.host.processes import total_bytes
from frd_agent.memory.target import ABSURD_BYTES, Part, Reading, Target
from frd_agent.node_time import raw_now
from frd_agent.recorder.rows import LATEST_NS
from frd_agent.untrusted_files import Section, is_begun

_STILL_S = 5.0
"""A file is kept open that long: the last publication of a rank may be read after its file went."""
_NEWS_NS = 60_000_000_000
"""An error older than this at the first read was already reported by another agent."""


ToRaw: TypeAlias = Callable[[NodeNs], NodeRawNs]


class Device(NamedTuple):
    uuid: bytes
    """Zeros when unknown."""
    total_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int
    error_count: int


class Error(NamedTuple):
    number: int
    at_ns: NodeNs
    uuid: bytes
    requested_bytes: int
    free_bytes: int


class Publication(NamedTuple):
    begin_ns: NodeNs
    """CLOCK_REALTIME of the node, as `end_ns` and times of errors: it was read in between."""
    end_ns: NodeNs
    devices: list[Device]
    errors: list[Error]


def parse(raw: bytes) -> Publication | None:
    """None when `raw` does not begin with one whole publication."""
    at = tap.PREFIX.size + tap.MEMORY_BODY.size
    if len(raw) < at or not is_begun(raw, tap.MEMORY_MAGIC):
        return None
    begin_ns, end_ns, _, devices, errors = tap.MEMORY_BODY.unpack_from(raw, tap.PREFIX.size)
    if devices > tap.MAX_DEVICES or errors > tap.MAX_ERRORS:
        return None
    errors_at = at + devices * tap.DEVICE.size
    end = errors_at + errors * tap.ERROR.size
    if len(raw) < end + tap.CHECKSUM.size or not 0 <= begin_ns <= end_ns < LATEST_NS:
        return None
    if (zlib.crc32(raw[tap.PREFIX.size : end]),) != tap.CHECKSUM.unpack_from(raw, end):
        return None
    return Publication(
        begin_ns,
        end_ns,
        [Device(*row) for row in tap.DEVICE.iter_unpack(raw[at:errors_at])],
        [Error(*row) for row in tap.ERROR.iter_unpack(raw[errors_at:end])],
    )


class HostPublication(NamedTuple):
    begin_ns: NodeNs
    end_ns: NodeNs
    used_bytes: int
    limit_bytes: int
    """Of its cgroup; 0 none."""


def parse_host(raw: bytes) -> HostPublication | None:
    """As `parse`."""
    if len(raw) < tap.HOST_SIZE or not is_begun(raw, tap.HOST_MAGIC):
        return None
    begin_ns, end_ns, _, used, limit = tap.HOST_BODY.unpack_from(raw, tap.PREFIX.size)
    end = tap.PREFIX.size + tap.HOST_BODY.size
    if (zlib.crc32(raw[tap.PREFIX.size : end]),) != tap.CHECKSUM.unpack_from(raw, end):
        return None
    if not 0 <= begin_ns <= end_ns < LATEST_NS or min(used, limit) < 0:
        return None
    return HostPublication(NodeNs(begin_ns), NodeNs(end_ns), used, limit)


class _Rank:
    """The allocator's part of one rank's counters file, and that of host memory."""

    def __init__(self, target: Target, to_raw: ToRaw, now_ns: int) -> None:
        self.target = target
        self._to_raw = to_raw
        path = target.shm_path
        self._allocator = Section(path, tap.MEMORY_AT, tap.MEMORY_SIZE, parse, _STILL_S)
        self._host = Section(path, tap.HOST_AT, tap.HOST_SIZE, parse_host, _STILL_S)
        self._found: Publication | None = None
        self._host_found: HostPublication | None = None
        """They were read already."""
        self._machine = total_bytes()
        self._news_from_ns = now_ns - _NEWS_NS
        self._last_error: int | None = None
        """Number of the last reported error."""
        self._counts: dict[bytes, int] = {}
        """Number of errors of each device, for a torch without observers."""

    def read(self, names: Mapping[bytes, str]) -> Part | None:
        """`names`: how the driver spells the devices that it knows. None when there is nothing
        new."""
        found = self._allocator.read()
        if found is None or found is self._found:
            return None
        self._found = found
        part = Part(self._to_raw(found.begin_ns), self._to_raw(found.end_ns))
        for device in found.devices:
            if any(device.uuid):
                name = names.get(device.uuid) or tap.spelled(device.uuid)
                total = device.total_bytes if 0 < device.total_bytes < ABSURD_BYTES else 0
                for kind, value in (
                    (SeriesKind.TORCH_RESERVED, device.reserved_bytes),
                    (SeriesKind.TORCH_ALLOCATED, device.allocated_bytes),
                ):
                    series = SeriesInfo(self.target.number, kind, name)
                    part.readings.append(Reading(self.target.attempt, series, total, value))
        part.events = list(self._events(found, names))
        return part

    def read_host(self) -> Part | None:
        """As `read`. The limit of the cgroup bounds what the machine has."""
        found = self._host.read() if self.target.pid is None else None
        if found is None or found is self._host_found:
            return None
        self._host_found = found
        capacity = min(filter(None, (found.limit_bytes, self._machine)), default=0)
        series = SeriesInfo(self.target.number, SeriesKind.HOST_USED)
        reading = Reading(self.target.attempt, series, capacity, found.used_bytes)
        return Part(self._to_raw(found.begin_ns), self._to_raw(found.end_ns), [reading])

    def close(self) -> None:
        self._allocator.close()
        self._host.close()

    def _events(self, found: Publication, names: Mapping[bytes, str]) -> Iterable[MemoryEvent]:
        for error in found.errors:
            at_ns = self._to_raw(error.at_ns)
            if self._last_error is None:
                is_news = at_ns >= self._news_from_ns
            else:
                is_news = error.number > self._last_error
            if is_news:
                detail = f"{error.free_bytes} bytes of the device were free"
                yield self._event(at_ns, names, error.uuid, error.requested_bytes, detail)
        self._last_error = max([self._last_error or 0, *(error.number for error in found.errors)])
        for device in found.devices:
            before = self._counts.get(device.uuid, device.error_count)
            self._counts[device.uuid] = device.error_count
            if device.error_count > before and not found.errors:
                yield self._event(self._to_raw(found.end_ns), names, device.uuid, 0, "")

    def _event(
        self, at_ns: NodeRawNs, names: Mapping[bytes, str], uuid: bytes, requested: int, detail: str
    ) -> MemoryEvent:
        device = names.get(uuid) or (tap.spelled(uuid) if any(uuid) else "")
        return MemoryEvent(
            rank=self.target.number,
            kind=MemoryEventKind.OOM,
            at_ns=at_ns or raw_now(),
            device=device,
            requested_bytes=max(requested, 0),
            detail=detail,
        )


class Allocators:
    """Of all ranks of one node. Lives on one thread."""

    def __init__(self, to_raw: ToRaw) -> None:
        """`to_raw` converts a stamp of the wall clock that was made a moment ago."""
        self._to_raw = to_raw
        self._ranks: dict[int, _Rank] = {}

    def read(
        self, targets: Sequence[Target], names: Mapping[bytes, str], now_ns: int
    ) -> list[Part]:
        """What was published since the last call, one part per publication.

        `names`: how the driver spells the UUIDs of the devices that it knows.
        """
        living = {target.number: target for target in targets}
        parts = []
        for number, target in living.items():
            if number not in self._ranks:
                self._ranks[number] = _Rank(target, self._to_raw, now_ns)
            parts.append(self._ranks[number].read(names))
            parts.append(self._ranks[number].read_host())
        for number in self._ranks.keys() - living.keys():
            # Its last publication, at exit, contains the error that may have ended it.
            gone = self._ranks.pop(number)
            parts.append(gone.read(names))
            gone.close()
        return [part for part in parts if part is not None]

    def close(self) -> None:
        for rank in self._ranks.values():
            rank.close()
        self._ranks.clear()
