"""A folder of dumps as a timeline that ui.perfetto.dev opens.

One track a rank, below it one a group. A collective is a slice from its enqueue to its discovered
completion, and arrows lead from each rank to the next one that joined it. What had not completed
has no end; a stuck op has it in its name. The findings have a separate track on
top, and the ranks that are the first cause come right below it.

Unknown times are not drawn: an op that completed at an unknown time (Gloo's recorder has
no times), is an instant at its enqueue. So is what has no lane left, where thousands of ops wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from frd.engine.state.snapshot import Bools
from frd.flight.trace import RankTrace, Trace
from frd.forms import fold_ranks
from frd.model import UNKNOWN_SEQ, Finding, Int32s, Int64s, UInt8s
from frd.offline.analysis.analyze import Analysis
from frd.offline.output import perfetto
from frd.offline.output.cell_text import STATES, frame_text, op_text, sizes_text
from frd.offline.output.op_intervals import OPEN, ends, flows, lanes
from frd.offline.output.text_tables import stuck_in

Progress = Callable[[int, int], None]
"""Hears how many ranks are done, of how many."""


class Out(Protocol):
    """A file to write bytes to."""

    def write(self, data: bytes, /) -> object: ...


MAX_LANES: Final = 32
"""Slices of one rank and group at a time; Perfetto gives up on stacks of some hundreds."""
_RETIRED: Final = 4
"""Added to the state of what the recorder is done with."""
_FINDINGS: Final = 1
"""The uuid of the track of the findings."""
_CAUSES: Final = 1
_RANKS: Final = 1 << 24
"""Where tracks are among their siblings: findings, first causes, then the other ranks."""


def write_timeline(analysis: Analysis, out: Out, progress: Progress) -> None:
    """Write the whole timeline to `out`, rank by rank."""
    writer = _Writer(analysis, out)
    writer.findings()
    ranks = sorted(analysis.trace.ranks)
    for number, rank in enumerate(ranks, 1):
        writer.rank(rank)
        progress(number, len(ranks))


class _Writer:
    def __init__(self, analysis: Analysis, out: Out) -> None:
        self._analysis = analysis
        self._trace = analysis.trace
        self._out = out
        self._tracks = _FINDINGS
        self._suspects = {s.rank for finding in analysis.findings for s in finding.suspects}
        self._strings = _Strings()
        self._templates = _Templates(self._strings)
        out.write(perfetto.preamble(_beginning(analysis)))

    def findings(self) -> None:
        self._out.write(perfetto.track(_FINDINGS, "findings", order=0))
        for finding in self._analysis.findings:
            evidence = "; ".join(f"rank {s.rank}: {s.evidence}" for s in finding.suspects)
            self._claim(_FINDINGS, finding, finding.summary, evidence, ())

    def rank(self, rank: int) -> None:
        """The tracks of one rank."""
        trace = self._trace.ranks[rank]
        name = f"rank {rank}"
        if trace.info is not None and trace.info.node:
            name += f" on {trace.info.node}"
        if rank in self._suspects:
            name += " (first cause)"
        order = rank + (_CAUSES if rank in self._suspects else _RANKS)
        uuid = self._new_track(name, order=order, ordered=True)
        for finding in self._analysis.findings:
            for s in finding.suspects:
                if s.rank == rank:
                    self._claim(uuid, finding, f"first cause: {s.reason}", s.evidence, s.stack)
        end = ends(trace, self._trace.names)
        tie = self._analysis.collectives.of_entries(rank)
        stuck = stuck_in(self._analysis, rank)
        groups = [int(at) for at in np.unique(trace.group)]
        labels = Counter(self._trace.groups[at].label for at in groups)
        for at in groups:
            info = self._trace.groups[at]
            label = info.label if labels[info.label] == 1 else f"{info.label} ({info.name})"
            rows = np.flatnonzero((trace.group == at) & (trace.created_ns > 0))
            rows = rows[np.argsort(trace.created_ns[rows], kind="stable")]
            if len(rows):
                self._group(
                    trace, rows, _Marks(end[rows], flows(tie[rows]), stuck[rows]), label, uuid
                )

    def _group(
        self, trace: RankTrace, rows: Int64s, marks: _Marks, label: str, parent: int
    ) -> None:
        """The ops of one rank in one group, in order of time."""
        end = marks.end
        offset = self._analysis.clock_offsets_ns.get(trace.rank, 0)
        waiting = end == OPEN
        lane = lanes(trace.created_ns[rows], end, MAX_LANES)
        order = int(trace.group[rows[0]])
        uuids = [
            self._new_track(label, parent=parent, order=order)
            for _ in range(max(int(lane.max()) + 1, 1))
        ]
        texts = _Texts(self._trace, trace, self._strings)
        columns = {
            "at_ns": trace.created_ns[rows] + offset,
            "track": np.array(uuids, np.int64)[np.maximum(lane, 0)],
            "flow": marks.flow,
            "seq": np.maximum(trace.seq[rows], 0),
            "record_id": np.maximum(trace.record_id[rows], 0),
            **texts.columns(rows, waiting, marks.stuck),
        }
        self._out.write(self._strings.flush())
        self._out.write(self._templates.begin(columns, lane >= 0))
        self._out.write(self._templates.instant(columns, lane < 0))
        closed = (lane >= 0) & ~waiting
        self._out.write(
            self._templates.end.fill(
                int(closed.sum()), at_ns=end[closed] + offset, track=columns["track"][closed]
            )
        )

    def _claim(
        self, uuid: int, finding: Finding, name: str, evidence: str, stack: Sequence[str]
    ) -> None:
        """A slice without an end: from when a finding counts, on what it is about."""
        strings = self._strings
        columns = {
            "name": strings.names.text(name),
            "category": strings.categories.text("finding"),
            "evidence": strings.texts.text(evidence),
            "stack": strings.texts.text(" < ".join(stack)),
            "victims": strings.texts.text(fold_ranks(finding.victims)),
        }
        self._out.write(strings.flush())
        self._out.write(
            self._templates.claim.fill(1, at_ns=finding.opened_at, track=uuid, **columns)
        )

    def _new_track(self, name: str, *, parent: int = 0, order: int, ordered: bool = False) -> int:
        self._tracks += 1
        self._out.write(
            perfetto.track(self._tracks, name, parent=parent, order=order, ordered=ordered)
        )
        return self._tracks


@dataclass(frozen=True, slots=True)
class _Marks:
    """What is known of ops beyond their entries; parallel columns."""

    end: Int64s
    flow: Int64s
    stuck: Bools


class _Strings:
    """All strings of a trace, each written once."""

    def __init__(self) -> None:
        self.names = perfetto.Interner(perfetto.NAMES)
        self.categories = perfetto.Interner(perfetto.CATEGORIES)
        self.keys = perfetto.Interner(perfetto.ANNOTATION_NAMES)
        self.texts = perfetto.Interner(perfetto.ANNOTATION_TEXTS)

    def flush(self) -> bytes:
        kinds = (self.names, self.categories, self.keys, self.texts)
        return b"".join(kind.flush() for kind in kinds)


class _Templates:
    def __init__(self, strings: _Strings) -> None:
        def keys(*names: str) -> dict[str, int]:
            return {name: strings.keys.text(name) for name in names}

        numbers, texts = keys("seq", "record_id"), keys("sizes", "state", "stack")
        self._ops = {
            (kind, tied): perfetto.event(kind, flows=tied, numbers=numbers, texts=texts)
            for kind in (perfetto.BEGIN, perfetto.INSTANT)
            for tied in (False, True)
        }
        self.claim = perfetto.event(perfetto.BEGIN, texts=keys("evidence", "stack", "victims"))
        self.end = perfetto.event(perfetto.END)

    def begin(self, columns: dict[str, Int64s], rows: Bools) -> bytes:
        return self._op(perfetto.BEGIN, columns, rows)

    def instant(self, columns: dict[str, Int64s], rows: Bools) -> bytes:
        return self._op(perfetto.INSTANT, columns, rows)

    def _op(self, kind: int, columns: dict[str, Int64s], rows: Bools) -> bytes:
        out = b""
        for tied in (False, True):
            chosen = rows & ((columns["flow"] > 0) == tied)
            some = {name: column[chosen] for name, column in columns.items()}
            out += self._ops[kind, tied].fill(int(chosen.sum()), **some)
        return out


class _Texts:
    """What the ops of one rank say for themselves, as numbers of interned strings."""

    def __init__(self, trace: Trace, of: RankTrace, strings: _Strings) -> None:
        self._trace = trace
        self._of = of
        self._strings = strings

    def columns(self, rows: Int64s, waiting: Bools, stuck: Bools) -> dict[str, Int64s]:
        of = self._of
        names, categories = [], []
        for name, seq, is_p2p, waits, is_stuck in zip(
            of.name[rows].tolist(),
            of.seq[rows].tolist(),
            of.is_p2p[rows].tolist(),
            waiting.tolist(),
            stuck.tolist(),
            strict=True,
        ):
            names.append(self._name(name, UNKNOWN_SEQ if is_p2p else seq, is_stuck))
            kind = "waiting" if waits else "p2p" if is_p2p else "collective"
            kind = "stuck" if is_stuck else kind
            categories.append(self._strings.categories.text(kind))
        return {
            "name": np.array(names, np.int64),
            "category": np.array(categories, np.int64),
            "sizes": self._each(of.signature[rows], self._sizes),
            "state": self._each(of.state[rows] + _RETIRED * of.retired[rows], _state),
            "stack": self._each(of.stack[rows], self._frames),
        }

    def _name(self, name: int, seq: int, stuck: bool) -> int:
        key = (name, seq, stuck)
        if found := self._strings.names.number(key):
            return found
        op = op_text(self._trace.names[name])
        text = op if seq == UNKNOWN_SEQ else f"{op} #{seq}"
        return self._strings.names.add(key, f"stuck: {text}" if stuck else text)

    def _each(self, column: Int32s | UInt8s, text: Callable[[int], str]) -> Int64s:
        """Interned once a value, not once a row."""
        values, back = np.unique(column, return_inverse=True)
        numbers = [self._strings.texts.text(text(value)) for value in values.tolist()]
        return np.array(numbers, np.int64)[back]

    def _sizes(self, signature: int) -> str:
        return sizes_text(self._trace.signatures[signature])

    def _frames(self, stack: int) -> str:
        return " < ".join(map(frame_text, self._trace.stacks[stack])) if stack >= 0 else ""


def _state(code: int) -> str:
    retired, state = divmod(code, _RETIRED)
    return STATES.get(state, "") + (", retired" if retired else "")


def _beginning(analysis: Analysis) -> int:
    """The earliest time of any op, aligned; 0 when there is none."""
    offsets = analysis.clock_offsets_ns
    known = [
        int(created.min()) + offsets.get(rank, 0)
        for rank, trace in analysis.trace.ranks.items()
        if len(created := trace.created_ns[trace.created_ns > 0])
    ]
    return max(min(known, default=0), 0)
