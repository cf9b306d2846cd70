"""How rows move watermarks. An agent's own watermark rows are the better word on where a rank
stands; but entries must never be ahead of them, and often they are the first to tell.

One step of plain Python for each run of rows, none for each row.
"""

from __future__ import annotations

from frd.engine.state.entry_batch import PairRuns
from frd.engine.state.tables import PairTable
from frd.model import AlignedNs, Int64s


def complete(pairs: PairTable, runs: PairRuns, as_of: int, now: AlignedNs) -> bool:
    """Raise `completed`; `as_of` is the last time at which it was known to be lower."""
    moved = False
    for pair, last in zip(runs.pair.tolist(), runs.last.tolist(), strict=True):
        if last <= pairs.completed.item(pair):
            continue
        moved = True
        pairs.completed[pair] = last
        pairs.head_node[pair] = 0
        pairs.idle_until[pair] = as_of
        pairs.moved_at[pair] = pairs.done_at[pair] = now
        if last >= pairs.enqueued.item(pair):
            pairs.enqueued[pair] = last
            pairs.head[pair] = 0
    return moved


def join(pairs: PairTable, runs: PairRuns, created: Int64s) -> bool:
    """Raise `enqueued`, and find out when the oldest outstanding op was enqueued.

    Where neither these rows nor earlier ones tell exactly, an earlier time stands; the next
    watermark row puts it right.
    """
    moved = False
    for pair, first, last, start, count in zip(
        runs.pair.tolist(),
        runs.first.tolist(),
        runs.last.tolist(),
        runs.start.tolist(),
        runs.count.tolist(),
        strict=True,
    ):
        done = pairs.completed.item(pair)
        if last > pairs.enqueued.item(pair):
            moved = True
            pairs.enqueued[pair] = last
        elif done >= pairs.enqueued.item(pair):
            continue
        head = max(done + 1, first)
        if head > last or pairs.head_node.item(pair):
            continue  # nothing new of the head: a watermark row has told of it
        at = start + min(head - first, count - 1)
        if runs.seq.item(at) == head == done + 1 or not pairs.head.item(pair):
            pairs.head[pair] = created.item(at)
    return moved
