"""Finds clocks that run back: samples of one source whose times fall within a file.

Trackers append samples as they take them. If a clock is set back, samples of two times are between
each other once they are sorted, and look like a jump. Files that are joined in the wrong order look
the same. So nothing that depends on the times of such a source is certain.
"""

from __future__ import annotations

import numpy as np

from frd.forms import span_text
from frd.model import Int32s, Int64s


class TimeOrder:
    """The sources of one file after another; their numbers are those of all files."""

    def __init__(self) -> None:
        self.backward: set[int] = set()
        """Sources whose times fell."""
        self._latest: dict[int, int] = {}
        self._first = ""
        self._count = 0

    def end_file(self) -> str:
        """A text about the file that ends; empty if all is well."""
        text = self._first
        if self._count > 1:
            text += f", and {self._count - 1:,} times more in this file"
        self._latest, self._first, self._count = {}, "", 0
        return text

    def add(self, source: Int32s, at_ns: Int64s, unit: str, before_rows: int) -> None:
        """Rows in the order of the file.

        Args:
            source: (n,) numbers, -1 for none.
            at_ns: (n,) their times.
            unit: what a row is for people, such as ``line``.
            before_rows: how many of these were before.
        """
        order = np.arange(len(source))
        if (source != source[0]).any():
            order = np.argsort(source, kind="stable")
            source, at_ns = source[order], at_ns[order]
        starts = np.flatnonzero(np.diff(source, prepend=-2))
        before = np.concatenate((at_ns[:1], at_ns[:-1]))
        names = source[starts].tolist()
        before[starts] = [self._latest.get(name, 0) for name in names]
        back = np.flatnonzero((at_ns < before) & (source >= 0))
        ends = [*(starts[1:] - 1).tolist(), len(source) - 1]
        self._latest |= dict(zip(names, at_ns[ends].tolist(), strict=True))
        if not len(back):
            return
        self.backward |= set(source[back].tolist())
        if not self._count:
            place = back[order[back].argmin()]
            by = span_text(int(before[place] - at_ns[place]))
            number = before_rows + int(order[place]) + 1
            self._first = f"{unit} {number}: the clock runs back by {by}"
        self._count += len(back)
