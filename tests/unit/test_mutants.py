"""The table of planted faults keeps up with the code."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from tests.mutants.planted import MUTANTS

ROOT = Path(__file__).parents[2]


def test_every_fault_has_a_name_of_its_own() -> None:
    """`--only NAME` means one fault."""
    assert [name for name, n in Counter(m.name for m in MUTANTS).items() if n > 1] == []


def test_every_fault_can_be_planted() -> None:
    """The text of each is there exactly once, what takes its place is code that says something
    else, and the tests about it exist."""
    for mutant in MUTANTS:
        text = (ROOT / mutant.module.file).read_text()
        faulty = ast.parse(mutant.planted(text), mutant.name)
        assert ast.dump(faulty) != ast.dump(ast.parse(text)), mutant.name
        assert [test for test in mutant.module.tests if not (ROOT / test).is_file()] == []
