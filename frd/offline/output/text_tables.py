"""Entries and collectives as lines of text: aligned, one a row, as long as they need to be.

Plain text without boxes, for grep. The caller shortens long lines and replaces control characters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from frd.flight import progress
from frd.flight.batches import closing_rows
from frd.flight.entry import Frame, Name
from frd.flight.progress import NameFacts, given_up
from frd.flight.trace import COMPLETED, STATES, RankTrace
from frd.forms import fold_ranks, utc_text
from frd.model import Bools, GroupInfo, Int64s, Reason, Signature
from frd.offline.analysis.analyze import Analysis

STUCK, IN_FLIGHT = "!", ">"
LEGEND = f"{STUCK} stuck, see the findings   {IN_FLIGHT} in flight"
_ENTRY = ("", "record", "created (UTC)", "took ms", "group", "seq", "op", "state", "stack", "sizes")
_MEMBERS_WIDTH = 24
_MAX_SHAPES = 4
"""Tensors of one op that are written out."""
_INSIDE = (Reason.IN_COLLECTIVE_ALONE, Reason.DEVICE_STUCK, Reason.ORDER)
_NUMBERS = frozenset({"record", "took ms", "seq", "stack", "joined", "done", "spread ms"})
_COLLECTIVE = ("group", "seq", "op", "joined", "done", "first (UTC)", "spread ms", "verdict")


def entry_lines(
    analysis: Analysis, rank: int, rows: Int64s, *, stacks: bool = False
) -> Iterator[str]:
    """A heading, then `rows` of one rank; with `stacks` a number on each row, and below, each
    stack once under its number."""
    trace = analysis.trace
    of = trace.ranks[rank]
    noun = "entry" if len(rows) == 1 else "entries"
    some = f"{len(rows)} of {len(of)}" if len(rows) < len(of) else str(len(rows))
    yield f"rank {rank}: {some} {noun}, format {of.version}, {of.source}"
    if not len(rows):
        return
    yield from _aligned(_ENTRY, _entry_rows(analysis, of, rows, stacks=stacks))
    if not stacks:
        return
    known = [at for at in np.unique(of.stack[rows]).tolist() if at >= 0]
    if not known:
        yield "no stacks in this dump"
    for at in known:
        yield f"stack {at}"
        yield from (f"    {frame_text(frame)}" for frame in trace.stacks[at])


def _entry_rows(
    analysis: Analysis, of: RankTrace, rows: Int64s, *, stacks: bool
) -> Iterator[tuple[str, ...]]:
    trace, facts = analysis.trace, analysis.collectives.facts
    offset = analysis.clock_offsets_ns.get(of.rank, 0)
    done, gave_up = ended(of, facts), given_up(of, rows, facts)
    stuck = stuck_in(analysis, of.rank)
    for row, timed_out in zip(rows.tolist(), gave_up.tolist(), strict=True):
        name = trace.names[of.name[row]]
        seq, is_p2p = int(of.seq[row]), bool(of.is_p2p[row])
        created, completed = int(of.created_ns[row]), int(of.completed_ns[row])
        marker = STUCK if stuck[row] else "" if done[row] else IN_FLIGHT
        yield (
            marker,
            str(int(of.record_id[row])),
            _clock_text(created + offset) if created else "",
            f"{(completed - created) / 1e6:.3f}" if created and completed >= created else "",
            trace.groups[of.group[row]].label,
            f"p2p {int(of.p2p_seq[row])}" if is_p2p else str(seq),
            op_text(name),
            "given up" if timed_out else state_text(int(of.state[row]), bool(of.retired[row])),
            str(of.stack[row]) if stacks and of.stack[row] >= 0 else "",
            sizes_text(trace.signatures[of.signature[row]]),
        )


def state_text(state: int, retired: bool) -> str:
    return "retired" if retired and state != COMPLETED else STATES[state]


def collective_lines(analysis: Analysis, chosen: Sequence[int]) -> Iterator[str]:
    """`chosen` are indexes of collectives; a line each."""
    total = len(analysis.collectives)
    some = f"{len(chosen)} of {total}" if len(chosen) < total else str(total)
    yield f"{some} collective{'s' * (len(chosen) != 1)}"
    if chosen:
        yield from _aligned(_COLLECTIVE, _collective_rows(analysis, chosen))


def _collective_rows(analysis: Analysis, chosen: Sequence[int]) -> Iterator[tuple[str, ...]]:
    of, trace = analysis.collectives, analysis.trace
    groups = _distinct(trace.groups)
    for at in chosen:
        expected, first, last = (
            int(column[at]) for column in (of.expected, of.first_created_ns, of.last_created_ns)
        )
        yield (
            groups[of.group[at]],
            str(int(of.seq[at])),
            of.signatures[of.signature[at]].op,
            f"{int(of.joined[at])}/{expected}",
            f"{int(of.completed[at])}/{expected}",
            _clock_text(first) if first > 0 else "",
            f"{(last - first) / 1e6:.3f}" if first > 0 else "",
            _verdict(analysis, at),
        )


def _distinct(groups: Sequence[GroupInfo]) -> list[str]:
    """Labels, with the members where groups share one."""
    shared = Counter(info.label for info in groups)
    return [
        info.label if shared[info.label] == 1 else f"{info.label} {_members(info.ranks)}"
        for info in groups
    ]


def _members(ranks: Sequence[int]) -> str:
    text = fold_ranks(ranks)
    if len(text) <= _MEMBERS_WIDTH:
        return text
    return f"{ranks[0]},{ranks[1]},..,{ranks[-1]} ({len(ranks)})"


def _verdict(analysis: Analysis, at: int) -> str:
    of = analysis.collectives
    if of.mismatch[at] or of.missing[at]:
        one = of[at]
        problems = [f"{fold_ranks(one.missing_ranks)} missing"] if one.missing_ranks else []
        if one.difference:
            problems.append(f"{one.difference} (by {fold_ranks(one.mismatched)})")
        return "; ".join(problems)
    if of.completed[at] == of.expected[at]:
        return "ok"
    return "open" if of.joined[at] == of.expected[at] else "open or not in every dump"


def stuck_in(analysis: Analysis, rank: int) -> Bools:
    """Which open entries of a rank the findings are about.

    Peers share no seq of a P2P op, so all incomplete P2P ops of the finding's group count; and so
    does the first incomplete op of a suspect that hangs inside an op.
    """
    of = analysis.trace.ranks[rank]
    waiting = ~ended(of, analysis.collectives.facts)
    collective = analysis.collectives.of_entries(rank)
    out = np.zeros(len(of), np.bool_)
    for finding in analysis.findings:
        if (c := finding.collective) is not None:
            number = analysis.collectives.find(c.group_id, c.seq)
            if number >= 0:
                waits = waiting | (rank in c.waiting_ranks)
                out |= (collective == number) & waits
            elif c.seq < 0:
                groups = [g.group_id == c.group_id for g in analysis.trace.groups]
                out |= np.array(groups)[of.group] & (of.is_p2p != 0) & waiting
        inside = any(s.rank == rank and s.reason in _INSIDE for s in finding.suspects)
        if inside and waiting.any():
            out[waiting.argmax()] = True
    return out


def _clock_text(at_ns: int) -> str:
    """``12:00:01.000123``; the day is on the first screen."""
    return utc_text(at_ns)[11:-1]


def _aligned(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as they need to be, numbers to the right; empty columns are left out."""
    columns = [
        [name, *cells]
        for name, cells in zip(header, zip(*rows, strict=True), strict=True)
        if any(cells)
    ]
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        cells = (
            cell.rjust(width) if column[0] in _NUMBERS else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        )
        yield "  ".join(cells).rstrip()


# -- cells, the same in timelines ------------------------------------------------------------------


def op_text(name: Name) -> str:
    """``all_reduce``, ``send 0->3``: peers are ranks of the group, as the recorder names them."""
    if not name.is_p2p_kind or (name.src is None and name.dst is None):
        return name.op
    src, dst = ("?" if end is None else end for end in (name.src, name.dst))
    return f"{name.op} {dst}<-{src}" if "recv" in name.op else f"{name.op} {src}->{dst}"


def sizes_text(signature: Signature) -> str:
    """``[4x8] Float``; input and output where they differ."""
    before = _tensors(signature.input_sizes, signature.input_dtypes)
    after = _tensors(signature.output_sizes, signature.output_dtypes)
    if before == after or not after:
        return before
    return f"{before} -> {after}".strip() if before else f"-> {after}"


def frame_text(frame: Frame) -> str:
    """``train.py:88 in step``, with its folder if the file is an ``__init__.py`` or similar."""
    folder, _, file = frame.filename.rpartition("/")
    if file.startswith("__"):
        file = f"{folder.rpartition('/')[2]}/{file}"
    return f"{file}:{frame.line} in {frame.name}"


def _tensors(sizes: Sequence[Sequence[int]], dtypes: Sequence[str]) -> str:
    if not sizes:
        return ""
    shapes = " ".join(f"[{'x'.join(map(str, size))}]" for size in sizes[:_MAX_SHAPES])
    if len(sizes) > _MAX_SHAPES:
        shapes += f" and {len(sizes) - _MAX_SHAPES} more"
    kinds = list(dict.fromkeys(dtypes))
    return f"{shapes} {'/'.join(kinds)}" if kinds else shapes


# -- which ops ended, the same in timelines -------------------------------------------------------


def ended(trace: RankTrace, facts: NameFacts) -> Bools:
    """Which ops ended, as far as the recorder shows it; parts of a batch or of a coalesced
    collective by the entry that closes it."""
    return done_and_closing(trace, facts)[0]


def done_and_closing(trace: RankTrace, facts: NameFacts) -> tuple[Bools, Int64s]:
    """Which ops completed, and the row with the end of each."""
    is_p2p = trace.is_p2p != 0
    number = np.where(is_p2p, trace.p2p_seq, trace.seq)
    closing = closing_rows(facts.is_end[trace.name], is_p2p, trace.pg_id, number)
    return progress.states(trace, slice(None), facts).done[closing], closing
