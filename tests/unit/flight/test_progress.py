"""The agent and offline analysis read a recorder alike: the same watermarks and open ops."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import pytest

from frd.flight.entry import Dump, Entry, Name, State
from frd.flight.progress import NEVER
from frd.flight.trace import COMPLETED, RankTrace, Trace
from frd.model import AttemptKey
from frd.offline.analysis.clocks import clocks_of
from frd.offline.analysis.rows import Rows, rows_of
from frd.offline.analysis.verdict import channels_of
from frd.offline.analysis.watermarks import pair_watermarks
from frd_agent.recorder.naming import Naming
from frd_agent.recorder.rows import channel_columns
from frd_agent.recorder.transitions import RecorderTracker
from frd_agent.uplink.dictionary import Dictionary
from tests import corpus
from tests.world.seeds import ALL

LATER = 2_000_000_000_000_000_000
STATES: Final[tuple[State, ...]] = ("scheduled", "started", "completed")
SEEDS = 100 if ALL else 40
DUMPS = 4
"""Of every recorder, the last one whole."""


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_agent_and_offline_analysis_agree_on_the_corpus(first: int) -> None:
    """Jobs that hang: the agent has read each recorder several times, offline analysis once. Where
    no op has ended yet, the agent counts ops as open, and a dump proves nothing."""
    for seed in range(first, first + 20):
        job = corpus.job(seed)
        corpus.run(job)
        trace = corpus.trace(job)
        rows = rows_of(trace)
        if not all(rows.facts.marks.show_ends(one.backend) for one in rows.series if one.backend):
            continue
        fits = np.zeros(len(rows.calls), np.int64)
        marks = pair_watermarks(rows, rows.calls.created_ns, clocks_of(rows), fits)
        channels = channels_of(rows, dict.fromkeys(rows.ranks, 0))
        for rank in rows.ranks:
            tracker, names = read(trace, rank)
            assert agent_watermarks(tracker, names) == {
                name: (int(marks.enqueued[pair]), int(marks.completed[pair]))
                for name, pair in known_pairs(rows, rank, marks.first_seq)
            }
            mine = (channels.rank == rank) & (channels.in_flight > 0)
            seen = channel_columns(0, tracker.open.items)
            assert sorted(
                zip(
                    [names[group] for group in seen.group.tolist()],
                    seen.peer.tolist(),
                    seen.is_send.tolist(),
                    seen.in_flight.tolist(),
                    strict=True,
                )
            ) == sorted(
                zip(
                    [rows.series[at].info.name for at in channels.group[mine].tolist()],
                    channels.peer[mine].tolist(),
                    channels.is_send[mine].tolist(),
                    channels.in_flight[mine].tolist(),
                    strict=True,
                )
            )


def agent_watermarks(tracker: RecorderTracker, names: dict[int, str]) -> dict[str, tuple[int, int]]:
    """Last seq joined and completed, of groups with collectives."""
    marks = {names[progress.group]: progress.watermarks for progress in tracker.groups}
    return {name: (of.enqueued, of.completed) for name, of in marks.items() if of.enqueued >= 0}


def known_pairs(rows: Rows, rank: int, first_seq: np.ndarray) -> Iterator[tuple[str, int]]:
    """Groups of which the dump holds a collective."""
    for pair in rows.pairs_of[rank].tolist():
        if first_seq[pair] < NEVER:
            yield rows.series[int(rows.pair_series[pair])].info.name, pair


def read(trace: Trace, rank: int) -> tuple[RecorderTracker, dict[int, str]]:
    """The recorder of a rank, read as it fills; and the names of its groups by index."""
    dictionary = Dictionary()
    naming = Naming(dictionary, dictionary.attempt(AttemptKey("job", 0), trace.world_size))
    naming.learn(trace.groups)
    tracker, one = RecorderTracker(), trace.ranks[rank]
    cuts = [round(len(one) * part / DUMPS) for part in range(1, DUMPS + 1)]
    for before, end in pairwise((0, *cuts)):
        # What the next dump will show done was not when this one was taken.
        entries = [entry_of(trace, one, row, end == len(one) or row < before) for row in range(end)]
        status = dict(one.status) if end == len(one) else {}
        tracker.apply(Dump(one.version, entries=tuple(entries), status=status), LATER, naming)
    return tracker, {at: group.info.name for at, group in enumerate(dictionary.groups)}


def entry_of(trace: Trace, one: RankTrace, row: int, is_final: bool) -> Entry:
    """A row of a trace as its recorder shows it, or as it did before the op was over."""
    group, state = trace.groups[int(one.group[row])], int(one.state[row])
    signature = trace.signatures[int(one.signature[row])]
    return Entry(
        record_id=int(one.record_id[row]),
        process_group=(group.name, group.desc),
        profiling_name=text_of(trace.names[int(one.name[row])]),
        collective_seq_id=int(one.seq[row]),
        pg_id=int(one.pg_id[row]),
        p2p_seq_id=int(one.p2p_seq[row]),
        op_id=int(one.op_id[row]),
        is_p2p=bool(one.is_p2p[row]),
        time_created_ns=int(one.created_ns[row]),
        input_sizes=signature.input_sizes,
        output_sizes=signature.output_sizes,
        state=STATES[state if is_final or state != COMPLETED else 0],
        time_discovered_started_ns=int(one.started_ns[row]),
        time_discovered_completed_ns=int(one.completed_ns[row]) if is_final else 0,
        retired=bool(one.retired[row]) and is_final,
    )


def text_of(name: Name) -> str:
    if name.src is None:
        return f"{name.backend}:{name.op}"
    ends = f"{name.src}->{name.dst}" if name.op == "send" else f"{name.dst}<-{name.src}"
    return f"{name.backend}:{name.op} {ends}"
