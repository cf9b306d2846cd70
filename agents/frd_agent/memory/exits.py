"""What a rank died of, when it was memory: read from its exit record.

Where no allocator tells of a failed request (host memory has no observer), the exception that ended
the program does. Host memory only: of a device, torch's observer has told, with more to say.
"""

from __future__ import annotations

import re
from typing import Final

from frd.model import MemoryEvent, MemoryEventKind
from frd_agent.ranks.tap_files import ExitRecord

_OF_HOST: Final = re.compile(
    r"(?!OutOfMemoryError)\w*MemoryError\b"  # Python's own, numpy's
    r"|.*DefaultCPUAllocator: (?:can't allocate|not enough) memory"
    r"|.*\[Errno 12\]"
    r"|.*std::bad_alloc"
)
_REQUESTED: Final = re.compile(r"tried to allocate (\d{1,18}) bytes")


def out_of_memory(record: ExitRecord, rank: int) -> MemoryEvent | None:
    """The event that the exit of `rank` was, if it was one."""
    if record.kind != "exception" or _OF_HOST.match(record.detail) is None:
        return None
    asked = _REQUESTED.search(record.detail)
    return MemoryEvent(
        rank=rank,
        kind=MemoryEventKind.OOM,
        at_ns=record.at_ns,
        requested_bytes=int(asked[1]) if asked else 0,
        detail=record.detail,
    )
