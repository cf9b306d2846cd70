"""The progress of a rank, from the entries of its recorder as columns.

The agent reads a live recorder through this module, offline analysis a dump file, and both get the
same answer. The module decides:

- Marks. Which mark of an entry shows its end is learned from the entries. No name says it: the same
  backend is recorded by several recorders. Most set an op's state to ``completed`` when it ends; an
  op that they retire before that timed out or was aborted. Gloo's sets `retired` at the end, good
  or bad. Others retire an op when it is issued, or when it times out, or never, and show no end.
- State. An entry is done if it has the mark by which its recorder shows ends. An entry of a
  recorder that shows none is done too, but *weakly*: it proves nothing about others. With a
  recorder that marks completion, a retired entry that is not completed was given up: it timed out
  or was aborted.
- Collectives. Neighbouring entries of one group with the same seq are one call, a coalesced
  collective: it is created with its first entry and done with its last. The oldest call that a
  recorder still holds may lack its first entries; its signature then says nothing.
- Order. NCCL runs the collectives of a group in order, so a call is over when a later one is done.
  Gloo has several threads for a group, and each call ends on its own.
- Point-to-point. Sends or receives with the same peer complete in order, but receives from any
  source do not. In a batch only the ``coalesced`` entry that closes it has an end.
- Resets and groups. Record ids that go backwards are a recorder that was reset: only what follows
  is current. Of several groups with one name, only the one with the highest `pg_id` is current.
- Counters. `pg_status` holds seqs (NCCL) or op numbers (Gloo); see `counter_of`.

The agent adds changes since its last dump, and keeps entries that the recorder has overwritten
since. Offline analysis adds what the dumps of other ranks prove. Pure arithmetic on numpy columns;
a pair is one rank in one group, numbered by the caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from frd.flight.batches import closing_rows
from frd.flight.entry import Name, coalesced, ends_series
from frd.flight.trace import COMPLETED, SCHEDULED, STARTED, RankTrace
from frd.model import UNKNOWN_SEQ, Bools, Int32s, Int64s, Signature

_COUNTS_SEQS: Final = frozenset({"nccl"})
_COUNTS_OPS: Final = frozenset({"gloo"})
NO_COUNTER: Final = -1
NO_CALL: Final = -1
_MS: Final = 1_000_000
_LONGEST_MS: Final = 1 << 40
"""Of a timeout that is added to a time."""


@dataclass(frozen=True, slots=True)
class NameFacts:
    """Facts from the names of ops, as columns over a table of names."""

    marks: Marks
    is_p2p: Bools
    """A send or a receive."""
    is_any_source: Bools
    """A receive that names no sender."""
    completes: Bools
    """The recorder marks completion."""
    retires: Bools
    """`retired` is the mark of an end."""
    is_part: Bools
    """An op that occurs only in a coalesced collective."""
    is_end: Bools
    """The entry that closes a batch or a coalesced collective."""

    @classmethod
    def of(cls, names: Sequence[Name], marks: Marks) -> NameFacts:
        any_source = [n.is_p2p_kind and n.src is None and n.dst is not None for n in names]
        return cls(
            marks,
            np.array([name.is_p2p_kind for name in names], np.bool_),
            np.array(any_source, np.bool_),
            np.array([name.backend in marks.completion for name in names], np.bool_),
            np.array([name.backend in marks.retirement for name in names], np.bool_),
            np.array([name.op.endswith("_oop") for name in names], np.bool_),
            np.array([ends_series(name.op) for name in names], np.bool_),
        )


@dataclass(frozen=True, slots=True)
class States:
    """The states of some entries."""

    started: Bools
    done: Bools
    """Ended, as far as the recorder shows it."""
    weak: Bools
    """Done, but that does not prove that all members attended: the recorder does not show when an
    op ends, or a time-out or an abort ended it."""

    def take(self, rows: Int64s) -> States:
        return States(self.started[rows], self.done[rows], self.weak[rows])


def states(entries: RankTrace, rows: Int64s | slice, facts: NameFacts) -> States:
    state = entries.state[rows]
    started = (state >= STARTED) & (entries.started_ns[rows] > 0)
    name = entries.name[rows]
    weak = ~(facts.completes | facts.retires)[name]
    retired = entries.retired[rows] != 0
    done = (state == COMPLETED) | (retired & facts.retires[name])
    # A send that is not retired may last, unless a collective follows.
    weak &= retired | np.maximum.accumulate((entries.is_p2p[rows] == 0)[::-1])[::-1]
    return States(started, done | weak, weak)


def given_up(entries: RankTrace, rows: Int64s | Int32s, facts: NameFacts) -> Bools:
    """Which entries timed out or were aborted."""
    retired: Bools = (entries.retired[rows] != 0) & facts.completes[entries.name[rows]]
    retired &= entries.state[rows] != COMPLETED
    return retired


def ended_by_abort(entries: RankTrace, rows: Int64s | Int32s, gave_up: Bools) -> Bools:
    """Which completions of a rank may be the effect of a time-out or an abort.

    An abort ends all communicators of a process and marks what they had in flight as completed. It
    came after the deadline of an op that was given up (`gave_up`) or that completed past it.
    """
    created, completed = entries.created_ns[rows], entries.completed_ns[rows]
    deadline = created + np.minimum(entries.timeout_ms[rows], _LONGEST_MS) * _MS
    timed = (entries.timeout_ms[rows] > 0) & (created > 0)
    late: Bools = timed & (entries.state[rows] == COMPLETED) & (completed >= deadline)
    ended = late | (gave_up & timed)
    if not ended.any():
        return late
    until = np.maximum(deadline, completed)[ended].max()
    found: Bools = (completed >= deadline[ended].min()) & (created <= until)
    return found


def latest_groups(pg_id: Int64s, name: Int64s | Int32s) -> Bools:
    """Which entries are of the latest group of its name, or of an unknown one (-1). Names are small
    numbers here."""
    latest = np.full(int(name.max(initial=0)) + 1, np.iinfo(np.int64).min)
    latest[name] = pg_id
    found: Bools = pg_id == latest[name]
    if not found.all():  # the last entry of a name need not be of its latest group
        np.maximum.at(latest, name, pg_id)
        found = (pg_id == latest[name]) | (pg_id < 0)
    return found


def has_holes(record_id: Int64s, unread: int = 0) -> bool:
    """Entries between the first and the last are missing, and are not the `unread` ones, which are
    in the dump but cannot be read."""
    count = len(record_id)
    return count > 0 and int(record_id[-1] - record_id[0]) + 1 > count + unread


# -- collectives -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Calls:
    """Parallel columns, one row a call, by pair, then recording order."""

    pair: Int32s
    seq: Int64s
    signature: Int32s
    first_row: Int32s
    """In the entries of the rank."""
    last_row: Int32s
    created_ns: Int64s
    """On the rank's own clock; 0 when unknown."""
    completed_ns: Int64s
    started: Bools
    done: Bools
    weak: Bools
    """Done, but no proof that the other members attended; see `States`."""
    cut: Bools
    """Entries before the first one may be lost, so the signature says nothing."""
    damaged: Bools
    """The signature of a part could not be read; `joined` makes such a call one that is cut."""

    def __len__(self) -> int:
        return len(self.seq)

    @classmethod
    def concatenated(cls, parts: Sequence[Calls]) -> Calls:
        columns = ([getattr(one, name) for one in parts] for name in cls.__slots__)
        return cls(*(np.concatenate(column) for column in columns))


def _no_calls() -> Calls:
    index, number, flag = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.bool_)
    return Calls(index, number, index, index, index, number, number, *[flag] * 5)


NO_CALLS: Final = _no_calls()


def calls_of(entries: RankTrace, rows: Int64s, pair: Int32s, state: States, cut: Bools) -> Calls:
    """Each of `rows` as a separate call; they are sorted by pair.

    `cut`: entries of the same call may be missing before this row.
    """
    row = rows.astype(np.int32)
    return Calls(
        pair=pair,
        seq=entries.seq[rows],
        signature=entries.signature[rows],
        first_row=row,
        last_row=row,
        created_ns=entries.created_ns[rows],
        completed_ns=entries.completed_ns[rows],
        started=state.started,
        done=state.done,
        weak=state.weak,
        cut=cut,
        damaged=entries.damaged[rows] != 0,
    )


def joined(calls: Calls, signatures: list[Signature], *, by_last_entry: bool = False) -> Calls:
    """Neighbours of one pair and seq as one call.

    Signatures of coalesced collectives are appended to `signatures`; with `by_last_entry` such a
    call gets the signature of its last entry.
    """
    columns = {name: getattr(calls, name) for name in Calls.__slots__}
    pair, seq = columns["pair"], columns["seq"]
    begins = np.ones(len(seq), np.bool_)
    begins[1:] = (pair[1:] != pair[:-1]) | (seq[1:] != seq[:-1])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(seq)) - 1 if len(first) else first
    several = np.flatnonzero(last > first)
    if len(several):
        signature = columns["signature"]
        for name in (of_any := ("started", "damaged")):
            columns[name] = np.logical_or.reduceat(columns[name], first)
        of_last = ("last_row", "completed_ns", "done", "weak")
        columns |= {
            name: column[last if name in of_last else first]
            for name, column in columns.items()
            if name not in of_any
        }
        columns["signature"][several] = (
            signature[last[several]]
            if by_last_entry
            else _coalesced(signature, first[several], last[several], signatures)
        )
    cut = columns["cut"].copy()
    for at in np.flatnonzero(cut).tolist():
        op = signatures[int(columns["signature"][at])].op
        cut[at] = last[at] > first[at] or op.endswith(("coalesced", "_oop"))
    return Calls(**columns | {"cut": cut | columns["damaged"]})


def _coalesced(part: Int32s, first: Int64s, last: Int64s, signatures: list[Signature]) -> Int32s:
    known: dict[bytes, int] = {}
    found = np.empty(len(first), np.int32)
    for at, (begin, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        parts = part[begin : end + 1]
        key = parts.tobytes()
        if key not in known:
            known[key] = len(signatures)
            signatures.append(coalesced([signatures[i] for i in parts.tolist()]))
        found[at] = known[key]
    return found


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Parallel to the pairs; `UNKNOWN_SEQ` where a pair has no call."""

    enqueued: Int64s
    started: Int64s
    completed: Int64s
    first: Int64s
    """The lowest seq."""
    head: Int64s
    """Row of the oldest call that is not over, or `NO_CALL`."""


def watermarks(calls: Calls, in_order: Bools, lost: Bools | None = None) -> Watermarks:
    """`in_order`, by pair: a call is over when a later one is done.

    `lost`: calls of which nothing more will be seen; they too are over when a later one is done.
    """
    pairs = len(in_order)
    enqueued = np.full(pairs, UNKNOWN_SEQ, np.int64)
    started, done = enqueued.copy(), enqueued.copy()
    first, waiting = np.full(pairs, NEVER), np.full(pairs, NEVER)
    np.maximum.at(enqueued, calls.pair, calls.seq)
    np.minimum.at(first, calls.pair, calls.seq)
    np.maximum.at(started, calls.pair[calls.started], calls.seq[calls.started])
    np.maximum.at(done, calls.pair[calls.done], calls.seq[calls.done])
    may_pass = in_order[calls.pair] if lost is None else in_order[calls.pair] | lost
    passed = may_pass & (calls.seq <= done[calls.pair])
    waits = np.flatnonzero(~(calls.done | passed))
    np.minimum.at(waiting, calls.pair[waits], calls.seq[waits])
    completed = np.where(waiting < NEVER, waiting - 1, enqueued)
    waits = waits[calls.seq[waits] == waiting[calls.pair[waits]]]
    head = np.full(pairs, NO_CALL)
    head[calls.pair[waits]] = waits
    return Watermarks(enqueued, started, completed, first, head)


NEVER: Final = np.int64(np.iinfo(np.int64).max)
"""Above all seqs."""


# -- point-to-point --------------------------------------------------------------------------


def p2p_in_flight(
    entries: RankTrace, rows: Int64s, pair: Int32s, done: Bools, facts: NameFacts
) -> Bools:
    """Which of the P2P `rows` are sends and receives in flight; a row that closes a batch is not.

    `pair` and `done` are parallel to `rows`.
    """
    name = entries.name[rows]
    is_op = facts.is_p2p[name]
    # The end of a batch is the end of its ops.
    batch = (np.ones_like(is_op), entries.pg_id[rows], entries.p2p_seq[rows])
    done = done | done[closing_rows(~is_op, *batch)]
    channel = pair.astype(np.int64) * len(facts.is_p2p) + name
    at = np.arange(len(rows))
    number = np.unique(channel, return_inverse=True)[1]
    last_done = np.full(len(rows), -1)
    ordered = done & ~facts.is_any_source[name]
    np.maximum.at(last_done, number[ordered], at[ordered])
    return is_op & ~done & (at > last_done[number])


def p2p_runs(ops: Iterable[Sequence[int]]) -> Int64s:
    """Ops in flight in order of posting as runs of one channel, call and signature: columns of
    group, peer, way, ops, time of the first op of the call, number of the call, signature, ops
    posted on the channel before. A call of one op has number 0.

    `ops` are such rows without the number of ops.
    """
    runs: list[list[int]] = []
    last: dict[tuple[int, ...], list[int]] = {}
    since: dict[tuple[int, int], int] = {}
    posted = list(ops)
    calls = Counter((op[0], op[4]) for op in posted)
    for group, peer, way, created, number, signature, before in posted:
        channel, batch = (group, peer, way), number if calls[group, number] > 1 else 0
        run = last.get(channel)
        follows = run is not None and before == (-1 if run[7] < 0 else run[7] + run[3])
        if run is not None and follows and run[5:7] == [batch, signature]:
            run[3] += 1
            continue
        at = since.setdefault((group, batch), created) if batch else created
        last[channel] = [*channel, 1, at, batch, signature, before]
        runs.append(last[channel])
    return np.array(runs, np.int64).reshape(-1, 8).T


def posted_before(channel: Int64s) -> Int64s:
    """How many rows of the same channel precede each row."""
    order = np.argsort(channel, kind="stable")
    ordered, at = channel[order], np.arange(len(channel))
    number = np.empty_like(at)
    number[order] = at - np.searchsorted(ordered, ordered)
    return number


# -- counters --------------------------------------------------------------------------------


def counts_seqs(backend: str) -> bool:
    """The seqs of a group follow each other without gaps."""
    return backend in _COUNTS_SEQS or backend in _COUNTS_OPS


def counts_ops(backend: str) -> bool:
    """The counters of a group count all its ops, sends and receives too."""
    return backend in _COUNTS_OPS


def counter_of(backends: Sequence[str], pair: Int32s, seq: Int64s, op_id: Int64s) -> Int64s:
    """The number of each collective in `pg_status`; `NO_COUNTER` if unknown.

    `backends` are by pair. NCCL writes the numbers of its sends and receives into the same
    counters, so they are unknown for a group that has any.
    """
    by_seq = np.array([backend in _COUNTS_SEQS for backend in backends], np.bool_)[pair]
    by_op = np.array([backend in _COUNTS_OPS for backend in backends], np.bool_)[pair]
    return np.where(by_seq, seq, np.where(by_op | (op_id == seq), op_id, NO_COUNTER))


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
