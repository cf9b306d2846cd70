"""Dump files of ranks, and ranks that are known from dump files only.

A rank without a tap has no process that the agent watches. Its files count like any other dump, up
to the time of writing. Its state is unknown, and its silence afterwards is no evidence: `as_of_ns`
does not advance.

The time of writing may be of a file server, whose clock is another one. So it only bounds what the
rank had done by then: it is never in the future, and no entry is held back because it seems to be
younger than its file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final

from frd.errors import DumpError
from frd.flight.entry import Dump, parse_profiling_name
from frd.model import AttemptKey, EntryColumns, NodeRawNs, RankInfo, RankState, RankStatus
from frd_agent import tap
from frd_agent.ranks.dump_files import DumpFile, DumpFiles
from frd_agent.ranks.rank import Rank, RankContext
from frd_agent.ranks.roster import Roster
from frd_agent.recorder.naming import Naming
from frd_agent.recorder.recorders import KeptDump
from frd_agent.recorder.rows import channel_columns, columns
from frd_agent.recorder.transitions import RecorderTracker

_EVERY_S: Final = 1.0
"""How often the folders are listed."""
_MAX_KEPT_ENTRIES: Final = 200_000

log = logging.getLogger(__name__)


class FileRank:
    process: None = None
    """No agent has seen it."""
    log: None = None

    def __init__(
        self, rank: int, key: AttemptKey, node: str, boot_id: str, shared: RankContext
    ) -> None:
        self.key = key
        self.info = RankInfo(rank=rank, world_size=0, node=node, boot_id=boot_id, pid=0)
        self._shared = shared
        attempt = shared.dictionary.attempt(key, 0)
        self.number = shared.dictionary.rank(attempt, self.info)
        self.reports = shared.reports(attempt)
        self.naming = Naming(shared.dictionary, attempt)
        self._trackers: dict[str, RecorderTracker] = {}
        self._lost = 0

    def __str__(self) -> str:
        return f"rank {self.info.rank} of {self.key.job} (dump files only)"

    def take(self, file: DumpFile) -> None:
        recorder = _recorder(file.dump)
        self.naming.learn(file.dump.groups.values())
        time = self._shared.time
        # Generic recorders name no library: NCCL's watchdog wrote the file.
        number = tap.NCCL if file.dump.comm_lib_version else None
        tracker = self._trackers.setdefault(recorder, RecorderTracker(number, time.to_raw))
        written_at_ns = time.until(file.written_at_ns)
        diff = tracker.apply(file.dump, written_at_ns, self.naming, is_final=True)
        self._lost += diff.lost
        if diff.rows:
            self.reports.outbox.record(columns(self.number, 0, diff.rows))
        current = self.reports.current
        for progress in tracker.groups:
            current.set_watermarks(self.number, progress.group, progress.watermarks)
        open_entries = chain.from_iterable(one.open.items for one in self._trackers.values())
        current.set_channels(channel_columns(self.number, open_entries, tracker.taken_at_ns))
        current.set_as_of(self.number, NodeRawNs(tracker.seen_until_ns))
        current.set_status(
            RankStatus(
                rank=self.number,
                state=RankState.LIVE,
                at_ns=NodeRawNs(tracker.taken_at_ns),
                detail=f"known from {file.path.name} only: it runs without a tap",
                gap_entries=self._lost,
                as_of_ns=NodeRawNs(tracker.taken_at_ns),
            )
        )

    async def ask(self, timeout_s: float) -> list[KeptDump]:
        """As `Rank.ask`: only its files show more."""
        raise DumpError(f"{self}: gone, and it left no dump")

    def kept(self) -> list[KeptDump]:
        return []

    def in_flight(self) -> EntryColumns | None:
        rows = [row for tracker in self._trackers.values() for row in tracker.open.rows()]
        return columns(self.number, 0, rows) if rows else None


def _recorder(dump: Dump) -> str:
    """One process may write a file for each of its recorders; a file holds one."""
    if not dump.entries:
        return ""
    return parse_profiling_name(dump.entries[-1].profiling_name).backend


@dataclass(slots=True)
class DumpWatch:
    """Reads new dump files, and keeps them in memory while there is room. A file belongs to a rank
    with a tap where there is one; otherwise it makes a `FileRank`."""

    files: DumpFiles
    roster: Roster
    shared: RankContext
    job: str
    """Of ranks without a tap."""
    node: str
    boot_id: str
    _kept: dict[Path, tuple[int, DumpFile]] = field(default_factory=dict)
    """With the number of its rank, newest last."""
    _ranks: dict[int, FileRank] = field(default_factory=dict)
    """By global rank."""

    @property
    def ranks(self) -> Collection[FileRank]:
        return self._ranks.values()

    def files_of(self, number: int) -> list[DumpFile]:
        """The files of a rank that are still in memory, newest first."""
        return [file for owner, file in reversed(self._kept.values()) if owner == number]

    async def run(self) -> None:
        try:
            while True:
                for path in self.files.changed():
                    await self._read(path)
                self.files.rest()
                await asyncio.sleep(_EVERY_S)
        finally:
            self.files.rest()

    async def _read(self, path: Path) -> None:
        try:
            self._take(await asyncio.to_thread(self.files.read, path))
        except DumpError as error:
            self.shared.stats.refused_files["dump"] += 1
            log.warning("%s", error)
        except Exception:  # an error in one file must not stop the watching of ranks
            self.shared.stats.refused_files["dump"] += 1
            log.exception("%s: could not be processed", path)

    def _take(self, file: DumpFile) -> None:
        rank: Rank | FileRank | None = self._writer_of(file)
        if rank is None:
            rank = self._ranks.get(file.rank)
            if rank is None:
                key = AttemptKey(self.job, 0)
                rank = FileRank(file.rank, key, self.node, self.boot_id, self.shared)
                self._ranks[file.rank] = rank
            rank.take(file)
            rank.reports.wake()
        self._kept.pop(file.path, None)
        self._kept[file.path] = rank.number, file
        entries = sum(len(one.dump.entries) for _, one in self._kept.values())
        while len(self._kept) > 1 and entries > _MAX_KEPT_ENTRIES:
            entries -= len(self._kept.pop(next(iter(self._kept)))[1].dump.entries)
        log.info("%s: dump file %s, %d entries", rank, file.path, len(file.dump.entries))

    def _writer_of(self, file: DumpFile) -> Rank | None:
        """The rank with a tap that wrote the file: of those with its number, the last one that
        began before the file's last op; if its tap began later, before the file was written."""
        of_rank = [rank for rank in self.roster if rank.identity.rank == file.rank]
        of_rank.sort(key=lambda rank: rank.identity.started_at_ns)
        for at_ns in (file.last_op_ns, file.written_at_ns):
            if began := [rank for rank in of_rank if rank.identity.started_at_ns <= at_ns]:
                return began[-1]
        return None
