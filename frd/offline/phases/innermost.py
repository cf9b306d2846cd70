"""Which of many spans is the innermost one, at all times, in one pass.

The innermost span is the one that began last of those that have not ended. Spans of one thread are
usually nested; they need not be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from frd.model import Bools, Int64s


@dataclass(frozen=True, slots=True)
class Pieces:
    """Parallel columns: from `cuts[i]` until the next cut it is the span `span[i]`."""

    cuts: Int64s
    span: Int64s
    """Index of a span; -1 where there is no span."""
    shared: Bools
    """Spans of other threads run, too."""


def innermost(
    begin: Int64s, stop: Int64s, thread: Sequence[int], is_main: Sequence[bool]
) -> Pieces:
    """The innermost spans of a rank; before the first cut and after the last there is no span.

    Args:
        begin: sorted; of spans that begin together the outer ones come first.
        stop: the first time after each span. A span that lasts no time is never the innermost.
        thread: a number for the thread of each span.
        is_main: whether that is the main thread, which comes before all others.
    """
    cuts: list[int] = []
    found: list[int] = []
    shared: list[bool] = []
    runs = bytearray(len(begin))
    stacks: tuple[list[int], list[int]] = [], []
    """Of other threads and of the main one; spans that have ended stay until they are on top."""
    threads: Counter[int] = Counter()
    for time, is_begin, one in zip(*_changes(begin, stop), strict=True):
        runs[one] = is_begin
        if is_begin:
            stacks[is_main[one]].append(one)
            threads[thread[one]] += 1
        elif threads[thread[one]] > 1:
            threads[thread[one]] -= 1
        else:
            del threads[thread[one]]
        for stack in stacks:
            while stack and not runs[stack[-1]]:
                stack.pop()
        others, main = stacks
        top = main[-1] if main else others[-1] if others else -1
        if cuts and cuts[-1] == time:
            found[-1], shared[-1] = top, len(threads) > 1
        else:
            cuts.append(time)
            found.append(top)
            shared.append(len(threads) > 1)
    return Pieces(np.array(cuts, np.int64), np.array(found, np.int64), np.array(shared, np.bool_))


def _changes(begin: Int64s, stop: Int64s) -> tuple[list[int], list[int], list[int]]:
    """Times at which a span begins (1) or ends (0), and which; the outer spans first."""
    lasting = np.flatnonzero(stop > begin)
    which = np.concatenate((lasting, lasting))
    is_begin = np.repeat((0, 1), len(lasting))
    times = np.concatenate((stop[lasting], begin[lasting]))
    order = np.lexsort((which, times))
    return times[order].tolist(), is_begin[order].tolist(), which[order].tolist()
