"""Small jobs as the recorders of their ranks dump them: every format, every backend, whole or with
one fault."""

from __future__ import annotations

import gzip
import json
import pickle
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from tests.world.dump_files import T0, as_json, as_torch, document, entry

MS = 1_000_000
_SINCE: Final = {
    "input_dtypes": 2, "output_dtypes": 2, "timeout_ms": 3, "is_p2p": 1, "op_id": 4,
    "thread_id": 9, "thread_name": 9,
}  # fmt: skip
"""The minor version that has a field of an entry first, roughly."""
NEWEST: Final = 10


class Story(Enum):
    """What happened to the job; rank 1 is the one at fault, if any is."""

    WELL = "all that was enqueued completed"
    LATE = "rank 1 has not joined the last all_reduce"
    MISMATCH = "rank 1 passed another size to the last all_reduce"
    RING = "a ring of batched sends and receives completed"
    RING_LATE = "rank 1 has not entered its last batch"
    GROUPS = "rank 1 has not joined the last op of its group; the job waits in its first group"


class Container(Enum):
    PICKLE = "as torch writes it"
    JSON = "as the handlers of a rank write it"
    GZIP = "packed"


@dataclass(frozen=True, slots=True)
class Kind:
    """One sort of small job."""

    backend: str = "nccl"
    """``ncclx`` is torchcomms."""
    minor: int = NEWEST
    container: Container = Container.PICKLE
    story: Story = Story.LATE
    world: int = 3


def job(kind: Kind) -> dict[int, dict[str, Any]]:
    """The documents of all ranks."""
    if kind.backend == "gloo" and kind.story in (Story.RING, Story.RING_LATE):
        kind = replace(kind, story=Story.LATE)  # it records no sends
    return {rank: _Recorder(kind, rank).document() for rank in range(kind.world)}


def encoded(value: Any, kind: Kind) -> bytes:
    """A document, or what has become of it, as the bytes of a file."""
    try:
        plain = as_json(value) if kind.container is Container.JSON else as_torch(value)
    except (TypeError, AttributeError, ValueError, OverflowError, KeyError):
        is_json = kind.container is Container.JSON
        plain = json.dumps(value).encode() if is_json else pickle.dumps(value, 2)
    return gzip.compress(plain, 1) if kind.container is Container.GZIP else plain


@dataclass
class _Recorder:
    kind: Kind
    rank: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)
    """The last seq of each group; of torchcomms, of all groups together."""
    p2p: int = 0

    def document(self) -> dict[str, Any]:
        kind, is_late = self.kind, self.rank == 1
        groups = {"0": range(kind.world)}
        if kind.story is Story.GROUPS:
            groups["1"] = range(1, kind.world)
        for _ in range(3):
            self._op("all_reduce", "0")
        match kind.story:
            case Story.WELL:
                self._op("all_gather", "0")
            case Story.LATE if not is_late:
                self._op("all_reduce", "0", done=False)
            case Story.MISMATCH:
                self._op("all_reduce", "0", done=False, size=8 if is_late else 4)
            case Story.RING | Story.RING_LATE:
                self._batch()
                if kind.story is Story.RING or not is_late:
                    self._batch(done=kind.story is Story.RING)
            case Story.GROUPS:
                if self.rank > 0:
                    self._op("broadcast", "1")
                if self.rank > 1:
                    self._op("all_reduce", "1", done=False)
                elif self.rank < 1:
                    self._op("all_reduce", "0", done=False)
        return self._whole({name: ranks for name, ranks in groups.items() if self.rank in ranks})

    def _op(self, op: str, group: str, *, done: bool = True, size: int = 4, **changes: Any) -> None:
        kind = self.kind
        counter = "" if kind.backend == "ncclx" else group
        first = 0 if kind.backend == "ncclx" else 1
        seq = changes.get("collective_seq_id", self.last.get(counter, first - 1) + 1)
        self.last[counter] = seq
        at, says = len(self.rows), kind.backend not in ("gloo", "xccl") and done
        out = [[size * kind.world]] if op == "all_gather" else [[size]]
        desc = {"0": "default_pg"}.get(group, "a group")
        fields = {
            "pg_id": int(group),
            "process_group": (group, kind.backend if kind.backend == "ncclx" else desc),
            "collective_seq_id": seq,
            "op_id": at + 1,
            "profiling_name": f"{kind.backend}:{op}",
            "time_created_ns": T0 + at * MS + self.rank * 1_000,
            "input_sizes": [[size]],
            "output_sizes": out,
            "state": "completed" if says else "scheduled",
            "time_discovered_completed_ns": T0 + at * MS + MS // 2 if says else None,
            "retired": done and kind.backend != "xccl",
        } | changes
        missing = {name: ... for name, since in _SINCE.items() if since > kind.minor}
        self.rows.append(entry(at, **fields | missing))

    def _batch(self, *, done: bool = True) -> None:
        """A send to the next rank and a receive from the one before, in one batch. Only the entry
        that closes it has an end."""
        me, world = self.rank, self.kind.world
        if self.kind.backend == "ncclx":  # its recorder names no peers and no batches
            self._op("send", "0", done=done)
            self._op("recv", "0", done=done)
            return
        self.p2p += 1
        more = {"collective_seq_id": self.last["0"], "p2p_seq_id": self.p2p, "is_p2p": True}
        for op in (f"send {me}->{(me + 1) % world}", f"recv {me}<-{(me - 1) % world}"):
            self._op(op, "0", done=False, **more)
        self._op("coalesced", "0", done=done, **more, input_sizes=[], output_sizes=[])

    def _whole(self, groups: dict[str, range]) -> dict[str, Any]:
        kind = self.kind
        config = {
            name: {"name": name, "desc": "default_pg" if name == "0" else "a group"}
            | {"ranks": str(list(ranks))}
            for name, ranks in groups.items()
        }
        status = {
            name: {
                "last_enqueued_collective": self.last.get(name, -1),
                "last_started_collective": -1,
                "last_completed_collective": -1 if kind.backend == "xccl" else self.last[name] - 1,
            }
            for name in groups
            if name in self.last
        }
        changes: dict[str, Any] = {"version": f"2.{kind.minor}", "pg_config": config}
        if kind.backend == "gloo":
            changes["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[]"}}
        if kind.backend == "ncclx":
            for group in config.values():
                group["desc"] = kind.backend
        changes["pg_status"] = {} if kind.backend == "ncclx" else status if kind.minor > 2 else ...
        if kind.minor < NEWEST:
            changes |= {"comm_lib_version": ..., "nccl_version": "2.27.3"}
        return document(self.rows, **changes)
