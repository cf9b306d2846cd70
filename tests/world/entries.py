"""Entries and dumps of one recorder by hand, and the names of its groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from frd.flight.decode import parse_answer
from frd.flight.entry import Dump, Entry, Status
from frd.model import AttemptKey, ChannelColumns, Flags
from frd_agent import tap
from frd_agent.ranks.tap_files import TapGroup
from frd_agent.recorder.group_progress import GroupWatermarks
from frd_agent.recorder.naming import Naming
from frd_agent.recorder.rows import channel_columns
from frd_agent.recorder.transitions import Diff, RecorderTracker
from frd_agent.uplink.dictionary import Dictionary

T0 = 1_700_000_000_000_000_000
JOB = AttemptKey("job", 0)
LATER = T0 + 10**12


def naming(ranks: Sequence[int] = (0, 1, 2, 3)) -> Naming:
    dictionary = Dictionary()
    known = Naming(dictionary, dictionary.attempt(JOB, 0))
    known.replace(TapGroup(name, tuple(ranks), f"group {name}") for name in "012")
    return known


def gloo(record_id: int, seq: int, *, done: bool = True, pg_id: int = 0, **more: Any) -> Entry:
    fields: dict[str, Any] = {
        "record_id": record_id,
        "process_group": (str(pg_id), ""),
        "profiling_name": "gloo:all_reduce",
        "collective_seq_id": seq,
        "pg_id": pg_id,
        "op_id": seq,
        "time_created_ns": T0 + record_id * 1000,
        "retired": done,
    }
    return Entry(**fields | more)


def nccl(record_id: int, seq: int, state: str = "completed", **more: Any) -> Entry:
    more = {"profiling_name": "nccl:all_reduce", "state": state} | more
    return gloo(record_id, seq, done=state == "completed", **more)


def dump(entries: Iterable[Entry], **status: tuple[int, int, int]) -> Dump:
    """``g7=(2, -1, 1)``: the counters of the group with the local id 7."""
    return Dump(
        version="2.10",
        entries=tuple(entries),
        status={int(key[1:]): Status(*numbers) for key, numbers in status.items()},
    )


def changes(diff: Diff) -> list[tuple[int, Flags]]:
    return [(row[1], Flags(row[3])) for row in diff.rows]


class Ring:
    """A recorder whose answers are read one after the other."""

    def __init__(self, ranks: Sequence[int] = (0, 1, 2, 3), number: int | None = None) -> None:
        """`number`: as `RecorderTracker.number`; None for NCCL's own recorder if the first entries
        are all NCCL's, else for a generic one."""
        self._number, self.names = number, naming(ranks)
        self._tracker: RecorderTracker | None = None

    @property
    def tracker(self) -> RecorderTracker:
        if self._tracker is None:
            self._tracker = RecorderTracker(self._number)
        return self._tracker

    def read(self, *entries: Entry, at: int = LATER, **status: tuple[int, int, int]) -> Diff:
        if self._tracker is None and self._number is None and entries:
            is_nccl = all(entry.profiling_name.startswith("nccl:") for entry in entries)
            self._number = tap.NCCL if is_nccl else None
        shown = dump(entries, **status)
        numbers = {str(number): counters for number, counters in shown.status.items()}
        answer = {"version": shown.version, "entries": shown.entries, "pg_status": numbers}
        known = self.tracker.known
        news = parse_answer(msgspec.json.encode(answer), source="ring", known=known)
        return self.tracker.apply(news, at, self.names)

    def changes(self, *entries: Entry, **more: Any) -> list[tuple[int, Flags]]:
        """Seq and flags of each row that a dump of `entries` adds."""
        return changes(self.read(*entries, **more))

    @property
    def watermarks(self) -> list[GroupWatermarks]:
        return [progress.watermarks for progress in self.tracker.groups]

    @property
    def channels(self) -> ChannelColumns:
        return channel_columns(9, self.tracker.open.items)

    @property
    def is_blind(self) -> bool:
        return self.tracker.is_blind

    @property
    def is_waiting(self) -> bool:
        return self.tracker.open.is_waiting

    @property
    def seen_until_ns(self) -> int:
        return self.tracker.seen_until_ns
