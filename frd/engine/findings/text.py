"""Phrases of which the texts of findings consist; `headlines` has the sentences.

Every string that came from a job (group names, exceptions, stack frames) passes through `clean`,
so that a finding's text is one line of printable UTF-8, whatever a group is called. Texts contain
no numbers that change by themselves, except the waiting time, so that a finding's evidence changes
only when there is something new to say.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import assert_never

from frd.forms import clock_text, duration_text, fold_ranks, signal_name
from frd.model import Certainty, ExitInfo, ExitKind, SuspectPhase, WaitsFor

_TEXT_LIMIT = 300
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_FRAME = re.compile(r"^(?:.*[/\\])?(?P<place>[^/\\]*:[\d?]+)\s+(?:in\s+)?(?P<function>\S.*)$")
STANDS_AT = "main thread at "
"""Starts the part of the evidence that names a stack's innermost frame."""


def clean(text: str, limit: int = _TEXT_LIMIT) -> str:
    """One printable line: control, format and surrogate characters become U+FFFD."""
    if not text.isprintable():
        text = "".join(
            "\ufffd" if unicodedata.category(c) in _UNPRINTABLE else c
            for c in text.strip().replace("\n", " ").replace("\t", " ")
        )
    return text if len(text) <= limit else text[: limit - 1] + "…"


def place(frame: str, between: str = " ") -> str:
    """Where a stack frame is, without its folders: ``train.py:88 load_batch``."""
    frame = clean(frame)
    match = _FRAME.match(frame)
    return f"{match['place']}{between}{match['function']}" if match is not None else frame


def collective(op: str, seq: int, label: str) -> str:
    """``all_reduce #7 on default_pg``; P2P ops (``send 0->8``) have no number, and calls that no
    recorder shows (``new_group``) have no group either."""
    number = f" #{seq}" if seq >= 0 else ""
    return f"{clean(op) or 'collective'}{number}" + (f" on {clean(label)}" if label else "")


def ranks(numbers: Sequence[int]) -> str:
    """``rank 2``, ``ranks 0-3,7``."""
    return f"rank{'s' if len(set(numbers)) != 1 else ''} {fold_ranks(numbers)}"


def waits_for(rank: int, found: WaitsFor, *, timed: bool = True) -> str:
    """``rank 2 waits for data: its loader worker (pid 7) has been in read() of /data/shard-17.tar
    for 41 s; 3 other workers are idle``, as of the moment at which that was seen. Empty if nothing
    is known."""
    if not found.says:
        return ""
    likely = "probably " if found.certainty is Certainty.LIKELY else ""
    topic = f" {likely}waits for {clean(found.topic)}" if found.topic else ""
    lasted = seen_for(found) if timed else ""
    rest = f"; {clean(found.rest)}" if found.rest else ""
    return f"rank {rank}{topic}: {clean(found.says)}{lasted}{rest}"


def seen_for(found: WaitsFor) -> str:
    """`` for 41 s``, as of the moment at which the wait was seen."""
    if found.seen_at is None or found.since_at is None:
        return ""
    return f" for {duration_text((found.seen_at - found.since_at) / 1e9)}"


def phase(found: SuspectPhase, when: str = "in") -> str:
    """``in phase epoch 3 / eval since 10:02:11``; a path that is too long keeps its inner end."""
    names = " / ".join(clean(name) or "''" for name in found.path)
    if len(names) > _TEXT_LIMIT:
        names = "…" + names[1 - _TEXT_LIMIT :]
    return f"{when} phase {names} since {clock_text(found.since_at)}"


def agent_gone(left: bool) -> str:
    """Why nothing is heard of a rank; `left`: its agent was asked to stop, or said goodbye."""
    return f"its agent {'was stopped while it lived' if left else 'has gone without a goodbye'}"


def ended(how: ExitInfo) -> str:
    """How a process ended, as what the rank did: ``raised ValueError: x (train.py:8 step)``."""
    raised = clean(f"{how.exception} ({how.where})" if how.where else how.exception)
    match how.kind:
        case ExitKind.CLEAN:
            return "exited with status 0"
        case ExitKind.EXCEPTION:
            return f"raised {raised}"
        case ExitKind.INTERRUPT:
            return "was stopped by KeyboardInterrupt"
        case ExitKind.STATUS:
            by = f" (128 + {signal_name(how.signal)})" if how.signal else ""
            return f"exited with status {how.status}{by}"
        case ExitKind.SIGNAL:
            return f"was killed by {signal_name(how.signal)}"
        case ExitKind.UNKNOWN:
            return "is gone and left no exit record (SIGKILL, out of memory, or os._exit)"
        case _ as never:
            assert_never(never)


def ended_by(how: ExitInfo) -> str:
    """The same as what ended it: ``KeyboardInterrupt``, ``SIGTERM``, ``RuntimeError: x``."""
    match how.kind:
        case ExitKind.INTERRUPT:
            return "KeyboardInterrupt"
        case ExitKind.EXCEPTION:
            return clean(how.exception)
        case ExitKind.SIGNAL:
            return signal_name(how.signal)
        case ExitKind.STATUS if how.signal:
            return signal_name(how.signal)
        case ExitKind.STATUS | ExitKind.CLEAN:
            return f"exit status {how.status or 0}"
        case ExitKind.UNKNOWN:
            return "an unknown cause (no exit record)"
        case _ as never:
            assert_never(never)
