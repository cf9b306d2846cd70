"""Waits that no recorder shows, as facts: which of them count, and who is waited for.

A rank that waits in a call of torch.distributed that leaves no entry, or for a lock, does nothing
else: it waits like a rank in an op. A wait counts if it was seen twice with some time in between,
if no watermark of the rank has moved since, and if it was seen when the first wait of the snapshot
was a stall or later. An op in flight of the same rank always counts more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from frd.engine.clocks.uncertain_time import FOREVER, UncertainTime
from frd.engine.findings import text
from frd.engine.state.snapshot import AT_REST, Snapshot
from frd.model import DEVICE, IDLE, NATIVE, POLL, REST, NodeNs, RankState, UnrecordedWait

ONE_SIDED: Final = frozenset({"send", "recv", "lock", "store", NATIVE})
"""Waits for the very peers that they name. In all others the members of a group wait for each
other: who is in the same call does not hold it up."""
NO_CALL: Final = frozenset({"", DEVICE, IDLE, POLL, REST})
"""What a rank may be seen in without a wait for another rank that is known."""
ALIVE: Final = (RankState.LIVE, RankState.SILENT)


def counting(snapshot: Snapshot, stalled_at: UncertainTime) -> dict[int, UnrecordedWait]:
    """The wait of each rank that counts, since the rank last moved. Of two waits, one with known
    peers counts, and of such the one that was seen last."""
    rest_ns = snapshot.threshold_ns.min(initial=FOREVER) * AT_REST
    found = {}
    for rank, waits in snapshot.unrecorded.items():
        row = snapshot.row(rank)
        if row < 0 or snapshot.state[row] not in ALIVE:
            continue
        moved_at = int(snapshot.moved_at[row])
        earliest = stalled_at.at + (snapshot.margin_ns(rank, stalled_at) or 0)
        still = [
            replace(wait, since_ns=NodeNs(max(wait.since_ns, moved_at)))
            for wait in waits
            if wait.op not in NO_CALL
        ]
        lasting = [
            w for w in still if w.as_of_ns >= earliest and w.as_of_ns - w.since_ns >= rest_ns
        ]
        if lasting:
            found[rank] = max(lasting, key=lambda wait: (bool(wait.peers), wait.as_of_ns))
    return found


def holders(wait: UnrecordedWait, counted: Mapping[int, UnrecordedWait]) -> Sequence[int]:
    """The ranks that hold a wait up, as far as they are known."""
    others = sorted({*wait.peers} - {wait.rank})
    if wait.op in ONE_SIDED:
        return others
    return [rank for rank in others if rank not in counted or counted[rank].op != wait.op]


def described(wait: UnrecordedWait) -> str:
    """``waits in recv for rank 2 (train.py:88 in exchange)``"""
    article = "a " if wait.op == NATIVE else ""
    way, joint = f"in {article}{text.clean(wait.op)}", "for"
    if wait.op == "lock":
        way, joint = "for a lock", "of"
    peers = f" {joint} {text.ranks(wait.peers)}" if wait.peers else ""
    return f"waits {way}{peers}" + (f" ({text.clean(wait.detail)})" if wait.detail else "")


def of_waiters(rank: int, counted: Mapping[int, UnrecordedWait]) -> str:
    """``ranks 1-2 wait for a lock of it (/ckpt/.lock held by pid 991)``: who waits for that rank;
    empty if no rank does."""
    waiters: dict[str, list[int]] = {}
    for waiter, wait in counted.items():
        if rank in holders(wait, counted):
            what = f"in {text.clean(wait.op)} for it"
            if wait.op == "lock":
                what = "for a lock of it" + (f" ({text.clean(wait.detail)})" if wait.detail else "")
            waiters.setdefault(what, []).append(waiter)
    said = [
        f"{text.ranks(ranks)} {'wait' if len(ranks) > 1 else 'waits'} {what}"
        for what, ranks in sorted(waiters.items())
    ]
    return ", ".join(said)
