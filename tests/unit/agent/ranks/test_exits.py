"""How a process ended, by the tap's record and the kernel's status."""

from __future__ import annotations

import pytest

from frd.forms import exit_text
from frd.model import ExitKind, MemoryEventKind, NodeNs, NodeRawNs, RankState
from frd_agent.ranks.exits import exit_info, out_of_memory, state_after
from frd_agent.ranks.tap_files import ExitFrame, ExitRecord

CLEAN = ExitRecord("clean", "", NodeNs(7))
RAISED = ExitRecord("exception", "RuntimeError: bad batch", NodeNs(7))
CTRL_C = ExitRecord("exception", "KeyboardInterrupt", NodeNs(7))
CUT_SHORT = ExitRecord("exception", "RuntimeError: unexpected pos", NodeNs(7), interrupted=True)
STOPPED = ExitRecord("clean", "", NodeNs(7), interrupted=True)
FAILED = ExitRecord("exception", "KeyboardInterruptError: no", NodeNs(7))


@pytest.mark.parametrize(
    ("record", "wait_status", "kind", "text"),
    [
        (CLEAN, 0, ExitKind.CLEAN, ""),
        (CLEAN, None, ExitKind.CLEAN, ""),
        (None, 0, ExitKind.CLEAN, ""),
        (CLEAN, 1 << 8, ExitKind.STATUS, "exited with status 1"),
        (None, 3 << 8, ExitKind.STATUS, "exited with status 3"),
        (CLEAN, 143 << 8, ExitKind.STATUS, "exited with status 143 (128 + SIGTERM)"),
        (CLEAN, 128 << 8, ExitKind.STATUS, "exited with status 128"),
        (CLEAN, 255 << 8, ExitKind.STATUS, "exited with status 255"),
        (RAISED, 1 << 8, ExitKind.EXCEPTION, "RuntimeError: bad batch"),
        (RAISED, None, ExitKind.EXCEPTION, "RuntimeError: bad batch"),
        (RAISED, 6, ExitKind.EXCEPTION, "RuntimeError: bad batch, then killed by SIGABRT"),
        (RAISED, 2, ExitKind.EXCEPTION, "RuntimeError: bad batch, then killed by SIGINT"),
        (RAISED, 15, ExitKind.EXCEPTION, "RuntimeError: bad batch"),
        (RAISED, 143 << 8, ExitKind.EXCEPTION, "RuntimeError: bad batch"),
        (STOPPED, 1 << 8, ExitKind.INTERRUPT, "KeyboardInterrupt"),
        (STOPPED, 0, ExitKind.CLEAN, ""),
        (RAISED, 0, ExitKind.CLEAN, "exited with status 0 after it had printed "
         "RuntimeError: bad batch"),
        (CTRL_C, 2, ExitKind.INTERRUPT, "KeyboardInterrupt"),
        (CTRL_C, 1 << 8, ExitKind.INTERRUPT, "KeyboardInterrupt"),
        (CTRL_C, None, ExitKind.INTERRUPT, "KeyboardInterrupt"),
        (CUT_SHORT, 1 << 8, ExitKind.INTERRUPT,
         "KeyboardInterrupt, then RuntimeError: unexpected pos"),
        (FAILED, None, ExitKind.EXCEPTION, "KeyboardInterruptError: no"),
        (None, 2, ExitKind.INTERRUPT, "killed by SIGINT"),
        (CLEAN, 130 << 8, ExitKind.INTERRUPT, "exited with status 130 (128 + SIGINT)"),
        (None, 9, ExitKind.SIGNAL, "killed by SIGKILL"),
        (None, 15, ExitKind.SIGNAL, "killed by SIGTERM"),
        (CLEAN, 15, ExitKind.SIGNAL, "killed by SIGTERM"),
        (None, 11 | 0x80, ExitKind.SIGNAL, "killed by SIGSEGV"),
        (None, 40, ExitKind.SIGNAL, "killed by signal 40"),
        (None, None, ExitKind.UNKNOWN, "no exit record, and its exit status is not known"),
    ],
)  # fmt: skip
def test_record_and_status(
    record: ExitRecord | None, wait_status: int | None, kind: ExitKind, text: str
) -> None:
    """Either may be missing; together they give the kind, the signal and the text."""
    how = exit_info(record, wait_status)
    assert (how.kind, exit_text(how)) == (kind, text)
    assert state_after(how) is (RankState.FINISHED if kind is ExitKind.CLEAN else RankState.EXITED)


ORIGINAL = """\
File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", line 54, in fetch
    data = [self.dataset[idx] for idx in possibly_batched_index]
KeyError: 'first'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 349, in _work
    data = fetcher.fetch(index)
           ^^^^^^^^^^^^^^^^^^^^
  File "/home/me/train.py", line 28, in __getitem__
    raise ValueError("bad sample 7")
ValueError: bad sample 7
of shard 3
"""


def test_an_exception_of_a_data_loader_worker() -> None:
    """torch raises it again in the rank with the worker's traceback as its message: the worker's
    own exception and line are reported. A text without a traceback is ignored."""
    frames = (
        ExitFrame("/venv/lib/python3.11/site-packages/torch/utils/data/x.py", 3, "_next"),
        ExitFrame("/home/me/train.py", 40, "<module>"),
    )
    message = "ValueError: Caught ValueError in DataLoader worker process 0."
    how = exit_info(ExitRecord("exception", message, NodeNs(7), frames, ORIGINAL), 1 << 8)
    assert how.exception == "ValueError: bad sample 7, in DataLoader worker process 0"
    assert how.where == "train.py:28 __getitem__"
    how = exit_info(ExitRecord("exception", message, NodeNs(7), frames, "nonsense"), 1 << 8)
    assert (how.exception, how.where) == (message, "train.py:40 <module>")


# -- exhausted memory ---------------------------------------------------------------------------


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
