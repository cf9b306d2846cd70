"""Verdicts are what they were: simulated lives, generated and real hangs, recorded stacks.

More of the lives and of the corpus: `make sim`, or `python -m tests.frozen`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.frozen import data
from tests.frozen.sources import Source, incidents, sources

BATCH = 5
"""Cases a test."""


def batches() -> Iterator[object]:
    for source in sources():
        for first in range(0, source.quick, BATCH):
            names = list(source.cases)[first : min(first + BATCH, source.quick)]
            yield pytest.param(source, names, id=f"{source.name}-{names[0]}-{names[-1]}")


@pytest.mark.parametrize(("source", "names"), list(batches()))
def test_verdicts_are_unchanged(source: Source, names: list[str]) -> None:
    """Each case gives the verdict that is frozen, and a simulated life breaks no promise either."""
    frozen = data.read(source.name)
    told = [
        data.difference(source.name, name, frozen[name], source.cases[name]()) for name in names
    ]
    differences = [one for one in told if one]
    assert not differences, "\n".join([*differences, data.ADVICE])


def test_data_and_cases_are_the_same() -> None:
    """No case lacks its data, and no data its case."""
    for source in sources():
        if source.name != incidents().name:  # real dumps are not on every machine
            assert list(data.read(source.name)) == list(source.cases)
    assert len(data.read("incidents")) == 2


def test_a_difference_is_shown_by_field() -> None:
    """The report of a failure names the field, the old and the new value."""
    was = {"findings": [{"kind": "stall", "suspects": [[3, "cpu_stuck", "high"]]}], "fault": True}
    now = {"findings": [{"kind": "stall", "suspects": [[4, "cpu_stuck", "high"]]}], "fault": True}
    assert data.difference("corpus", "1", was, was) == ""
    assert data.difference("corpus", "1", was, now).splitlines()[-2:] == [
        '-  suspects: [[3, "cpu_stuck", "high"]]',
        '+  suspects: [[4, "cpu_stuck", "high"]]',
    ]
