"""Point-to-point ops in flight, by channel: (group, peer, direction).

The ops of one channel pair with the peer's by order, and complete in order. That fills two holes of
the recorder: the sends and receives of a batch never get an end of their own (the ``coalesced``
entry that closes the batch has it), and a busy ring forgets an old op before it is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from frd.flight import Entry, Name
from frd.model import ChannelColumns
from frd_agent.recorder.rows import LATEST_NS, is_done

NO_RECORD: Final = -1

Channel: TypeAlias = tuple[int, int, bool]
"""Group index, global rank of the peer (-1: any source), is a send."""


@dataclass(slots=True)
class _Op:
    record_id: int
    """`NO_RECORD` once the recorder has been reset."""
    created_ns: int
    batch: tuple[int, int]
    """pg_id and p2p_seq_id: what the ops of one batch share."""


class Channels:
    """All in-flight P2P ops of one recorder of one rank."""

    def __init__(self) -> None:
        self._ops: dict[Channel, list[_Op]] = {}
        """Oldest first."""

    def read(self, entry: Entry, name: Name, group: int, members: Sequence[int]) -> None:
        """A new entry of a send or receive; one that names no peer cannot be paired."""
        is_send = name.op.endswith("send")
        local = name.dst if is_send else name.src
        if local is None and (is_send or "?" not in entry.profiling_name):
            return
        if local is not None and local >= len(members):
            return
        channel = group, -1 if local is None else members[local], is_send
        if is_done(entry):
            if local is not None:  # any source may end before another
                self._ops.pop(channel, None)  # those before it, whose entries may be gone
            return
        self._ops.setdefault(channel, []).append(
            _Op(entry.record_id, entry.time_created_ns, (entry.pg_id, entry.p2p_seq_id))
        )

    def waiting(self) -> list[int]:
        """Record ids of all ops in flight that have one."""
        ids = [op.record_id for ops in self._ops.values() for op in ops]
        return [record_id for record_id in ids if record_id != NO_RECORD]

    @property
    def groups(self) -> set[int]:
        """With ops in flight."""
        return {group for group, _, _ in self._ops}

    @property
    def is_empty(self) -> bool:
        return not self._ops

    def end(self, record_ids: set[int], batches: set[tuple[int, int]]) -> None:
        """These ops, and the ops of these batches, are over; so are those before them."""
        for channel in list(self._ops):
            ops = self._ops[channel]
            over = max(
                (
                    i
                    for i, op in enumerate(ops)
                    if op.record_id in record_ids or op.batch in batches
                ),
                default=-1,
            )
            del ops[: over + 1]
            if not ops:
                del self._ops[channel]

    def orphan(self) -> None:
        """No entry will tell the end of what is in flight now."""
        for ops in self._ops.values():
            for op in ops:
                op.record_id = NO_RECORD

    def forsake(self, group: int) -> None:
        """Forget the orphans of a group: something of it has ended, and nothing tells what."""
        for channel in [c for c in self._ops if c[0] == group]:
            self._ops[channel] = [op for op in self._ops[channel] if op.record_id != NO_RECORD]
            if not self._ops[channel]:
                del self._ops[channel]

    def close(self, group: int | None = None) -> None:
        """Forget the ops of one group, or all."""
        for channel in [c for c in self._ops if group in (None, c[0])]:
            del self._ops[channel]

    def columns(self, rank: int) -> ChannelColumns:
        channels = sorted(self._ops)
        return ChannelColumns(
            rank=rank,
            group=np.array([c[0] for c in channels], np.uint32),
            peer=np.array([c[1] for c in channels], np.int32),
            is_send=np.array([c[2] for c in channels], np.uint8),
            in_flight=np.array([len(self._ops[c]) for c in channels], np.uint32),
            head_created_ns=np.array(
                [min(self._ops[c][0].created_ns, LATEST_NS) for c in channels], np.int64
            ),
        )
