"""A rank that is known from its dump files only: it has no tap, so no agent watches its process.

What its recorder wrote counts like any other dump, up to the moment of writing. Its state is
unknown, and its silence afterwards is no evidence: `as_of_ns` does not advance.
"""

from __future__ import annotations

from frd.flight import Dump, parse_profiling_name
from frd.model import AttemptKey, EntryColumns, NodeNs, RankInfo, RankState, RankStatus
from frd_agent.ranks.dump_files import DumpFile
from frd_agent.ranks.rank import RankContext
from frd_agent.recorder.naming import KnownGroup, Naming
from frd_agent.recorder.rows import columns
from frd_agent.recorder.transitions import RecorderTracker


class FileRank:
    def __init__(
        self, rank: int, key: AttemptKey, node: str, boot_id: str, shared: RankContext
    ) -> None:
        self.key = key
        self.info = RankInfo(rank=rank, world_size=0, node=node, boot_id=boot_id, pid=0)
        self.files: dict[str, DumpFile] = {}
        """The last file of each recorder."""
        self._shared = shared
        attempt = shared.dictionary.attempt(key, 0)
        self.number = shared.dictionary.rank(attempt, self.info)
        self.naming = Naming(shared.dictionary, attempt)
        self._trackers: dict[str, RecorderTracker] = {}
        self._lost = 0

    def __str__(self) -> str:
        return f"rank {self.info.rank} of {self.key.job} (dump files only)"

    def take(self, file: DumpFile) -> None:
        recorder = _recorder(file.dump)
        self.files[recorder] = file
        self.naming.learn(
            {name: KnownGroup(group.desc, group.ranks) for name, group in file.dump.groups.items()}
        )
        tracker = self._trackers.setdefault(recorder, RecorderTracker())
        diff = tracker.apply(file.dump, file.written_at_ns, self.naming)
        self._lost += diff.lost
        if diff.rows:
            self._shared.outbox.record(columns(self.number, 0, diff.rows))
        current = self._shared.current
        for progress in tracker.groups:
            current.set_watermarks(self.number, progress.group, progress.watermarks)
        current.set_channels(tracker.channels(self.number))
        current.set_as_of(self.number, NodeNs(tracker.seen_until_ns))
        current.set_status(
            RankStatus(
                rank=self.number,
                state=RankState.LIVE,
                at_ns=file.written_at_ns,
                detail=f"known from {file.path.name} only: it runs without a tap",
                gap_entries=self._lost,
            )
        )

    def in_flight(self) -> EntryColumns | None:
        rows = [row for tracker in self._trackers.values() for row in tracker.in_flight()]
        return columns(self.number, 0, rows) if rows else None


def _recorder(dump: Dump) -> str:
    """One process may write a file for each of its recorders; a file holds one."""
    if not dump.entries:
        return ""
    return parse_profiling_name(dump.entries[-1].profiling_name).backend
