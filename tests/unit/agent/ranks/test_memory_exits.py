"""Exit records of ranks whose memory was exhausted, and of others."""

from __future__ import annotations

import pytest

from frd.model import MemoryEventKind, NodeNs, NodeRawNs
from frd_agent.ranks.exits import out_of_memory
from frd_agent.ranks.tap_files import ExitRecord

CPU_ALLOCATOR = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
    "allocate memory: you tried to allocate 8388608 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    ("detail", "requested"),
    [
        (CPU_ALLOCATOR, 8388608),
        ("MemoryError: ", 0),
        ("MemoryError", 0),
        ("_ArrayMemoryError: Unable to allocate 8.00 GiB for an array with shape (1,)", 0),
        ("OSError: [Errno 12] Cannot allocate memory", 0),
        ("RuntimeError: std::bad_alloc", 0),
    ],
)
def test_an_allocation_that_failed_is_an_event(detail: str, requested: int) -> None:
    """What Python, numpy, torch and the system call it, with the size where the message has it."""
    event = out_of_memory(ExitRecord("exception", detail, NodeNs(7)), NodeRawNs(5), rank=3)
    assert event is not None
    assert (event.rank, event.kind, event.at_ns) == (3, MemoryEventKind.OOM, 5)
    assert (event.device, event.requested_bytes, event.detail) == ("", requested, detail)


@pytest.mark.parametrize(
    "record",
    [
        ExitRecord("clean", "MemoryError", NodeNs(7)),
        ExitRecord("exception", "", NodeNs(7)),
        ExitRecord("exception", "ValueError: MemoryError is not what this is", NodeNs(7)),
        ExitRecord("exception", "OutOfMemoryError: CUDA out of memory. Tried", NodeNs(7)),
        ExitRecord("exception", "RuntimeError: Connection closed by peer", NodeNs(7)),
    ],
    ids=lambda record: f"{record.kind} {record.detail[:20]}",
)
def test_other_ends_are_not_out_of_memory(record: ExitRecord) -> None:
    """A clean exit, other exceptions, and devices, which torch's observer reports."""
    assert out_of_memory(record, NodeRawNs(5), rank=3) is None
