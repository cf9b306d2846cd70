"""What the recorder of each backend marks, learned from its entries.

No name says it: the same backend is recorded by several recorders. Most set an op's state to
``completed`` when it ends; an op that they retire before that timed out or was aborted. Gloo's sets
`retired` at the end, good or bad. Others retire an op when it is issued, or when it times out, or
never, and show no end at all. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from frd.flight.names import Name
from frd.flight.trace import COMPLETED, SCHEDULED, RankTrace
from frd.model import Bools


@dataclass(frozen=True, slots=True)
class Marks:
    """Backends by the mark of an end; of a backend in neither set no entry shows whether its op
    ended."""

    completion: frozenset[str]
    """Completion is marked: an op `retired` without it was given up."""
    retirement: frozenset[str]
    """`retired` is the mark of the end, good or bad."""

    def show_ends(self, backend: str) -> bool:
        return backend in self.completion or backend in self.retirement


def marks_of(ranks: Iterable[RankTrace], names: Sequence[Name]) -> Marks:
    """What the entries of all ranks show."""
    traces = list(ranks)
    of_name = np.array([name.backend for name in names], np.str_)
    seen = np.zeros(len(names), np.bool_)
    for one in traces:
        seen[one.name[one.state == COMPLETED]] = True
    completion, retirement = set(of_name[seen].tolist()), set[str]()
    for backend in sorted({*of_name.tolist()} - completion):
        mine = [(of_name == backend)[one.name] for one in traces]
        calls = [rows & (one.is_p2p == 0) for one, rows in zip(traces, mine, strict=True)]
        if any(map(_retires_at_end, traces, calls)):
            retirement.add(backend)
        elif _shows_progress(traces, calls) or any(map(_hides_ended, traces, mine)):
            completion.add(backend)
    return Marks(frozenset(completion), frozenset(retirement))


def _retires_at_end(one: RankTrace, calls: Bools) -> bool:
    """The oldest op of the rank or of a group is retired and a newer one is not. Ops that are
    retired on time-out come after others that are not."""
    retired, pg_id = one.retired[calls] != 0, one.pg_id[calls]
    if retired.all():
        return False
    first = np.unique(pg_id, return_index=True)[1]
    begins_retired = pg_id[first[retired[first]]]
    return bool(retired[0]) or bool(np.isin(pg_id[~retired], begins_retired).any())


def _shows_progress(traces: Sequence[RankTrace], calls: Sequence[Bools]) -> bool:
    """Some ops have started, and others have not: a recorder that shows starts as they
    happen shows ends."""
    pairs = list(zip(traces, calls, strict=True))
    return any((one.started_ns[rows] > 0).any() for one, rows in pairs) and any(
        ((one.state == SCHEDULED) & (one.retired == 0))[rows].any() for one, rows in pairs
    )


def _hides_ended(one: RankTrace, mine: Bools) -> bool:
    """The dump lacks the ops of a backend that have ended, as one of only the active entries does,
    and as after a reset: its counters follow ends, and no entry left is behind them.

    Without counters, entries that are missing are such ops, unless all that are left are retired.
    """
    has_gaps = bool((np.diff(one.record_id) != 1).any())
    if not mine.any():
        return False
    if not one.status:
        return (has_gaps or int(one.record_id[0]) > 0) and not one.retired[mine].all()
    others = set(one.pg_id[~mine].tolist())
    counts = {of: count for of, count in one.status.items() if of not in others}
    has_ended = any(count.completed >= 0 for count in counts.values())
    if not has_ended or all(count.completed >= count.enqueued for count in counts.values()):
        return False
    left = mine & (one.is_p2p == 0) & (one.retired == 0)
    pairs = zip(one.pg_id[left].tolist(), one.seq[left].tolist(), strict=True)
    return has_gaps or all(of not in counts or seq > counts[of].completed for of, seq in pairs)
