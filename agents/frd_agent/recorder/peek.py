"""How far a rank has come, from a dump of only what is in flight.

The recorder of a hook (torch 2.15) is read without the rank's interpreter only in this form. What
such a dump lacks is over; which op was the last one follows from the counters, which number the ops
of a group: of an op in flight the entry shows both numbers, and where the two have differed by the
same amount all the time, they differ by it now. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from frd.flight.entry import Dump, Entry, Status
from frd.model import UNKNOWN_SEQ
from frd_agent.recorder.group_progress import GroupProgress, GroupWatermarks


@dataclass(frozen=True, slots=True)
class Progress:
    """What a recorder shows of all groups at one time."""

    taken_at_ns: int = 0
    status: Mapping[int, Status] = field(default_factory=dict)
    watermarks: Sequence[tuple[int, GroupWatermarks]] = ()
    """By group index."""
    is_whole: bool = False
    """Nothing that the rank has enqueued by then is missing."""
    is_waiting: bool = False
    """The rank is in a collective, a send or a receive."""


def peeked(
    dump: Dump,
    taken_at_ns: int,
    groups: Collection[GroupProgress],
    created_ns: Callable[[Entry], int],
) -> Progress:
    """`dump`: the entries in flight. `groups` were read before, up to some op."""
    in_flight: dict[int, list[Entry]] = {}
    for entry in dump.entries:
        in_flight.setdefault(entry.pg_id, []).append(entry)
    known = {progress.pg_id for progress in groups}
    used = {pg_id for pg_id, raw in dump.status.items() if raw.enqueued >= 0}
    is_whole = used | in_flight.keys() <= known
    watermarks = []
    for progress in groups:
        shown = in_flight.get(progress.pg_id, [])
        raw = dump.status.get(progress.pg_id)
        if raw is None or progress.closed:
            watermarks.append((progress.group, progress.watermarks))
            continue
        progress.has_p2p |= any(entry.is_p2p for entry in shown)
        # The dump is taken after its counters, and may show an op that they do not count.
        enqueued = max([raw.enqueued, *(entry.op_id for entry in shown)])
        numbers = [(entry.op_id, entry.collective_seq_id) for entry in shown]
        joined = progress.joined_by(enqueued, numbers)
        is_whole &= joined is not None
        calls = [entry for entry in shown if not entry.is_p2p]
        first = min(calls, key=lambda entry: entry.collective_seq_id, default=None)
        seqs = [progress.joined, *(entry.collective_seq_id for entry in calls)]
        enqueued = max(seqs) if joined is None else joined
        if first is None:
            found = GroupWatermarks(enqueued, UNKNOWN_SEQ, enqueued)
        else:
            head_ns = max(created_ns(first), 1)
            found = GroupWatermarks(enqueued, UNKNOWN_SEQ, first.collective_seq_id - 1, head_ns)
        watermarks.append((progress.group, found))
    return Progress(taken_at_ns, dump.status, watermarks, is_whole, bool(dump.entries))
