"""docs/python.md: each field of each public value is in its table, and its examples run."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import get_type_hints

import pytest

import frd
from frd.flight.trace import RankTrace, Trace
from frd.model import Bools, Float64s, Int32s, Int64s, UInt8s
from frd.offline.analysis.analyze import Analysis, DumpReport, GroupReport, RankReport
from frd.offline.analysis.collectives import Collective, Collectives
from frd.offline.analysis.verdict import Waiting
from frd.offline.memory.analysis import MemoryAnalysis, MemoryJob, MemoryRank, RecordedRise
from tests.world.dump_files import as_json, document, entry
from tests.world.telemetry_files import event, write

PAGE = Path(__file__).parents[3] / "docs" / "python.md"
TEXT = PAGE.read_text("utf-8")
PUBLIC = (
    *(RankTrace, Collectives, Collective, Analysis, Trace, RankReport, GroupReport, DumpReport),
    *(Waiting, MemoryAnalysis, MemoryJob, MemoryRank, RecordedRise),
)
DTYPES = {Int64s: "int64", Int32s: "int32", UInt8s: "uint8", Float64s: "float64"}
DTYPES[Bools] = "bool"


def section(heading: str) -> str:
    found = re.search(rf"^### {heading}$(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def rows(text: str) -> dict[str, list[str]]:
    """Cells of table rows by the name in the first cell."""
    lines = re.findall(r"^\| `(\w+)` \|(.*)\|$", text, re.MULTILINE)
    return {name: [cell.strip() for cell in rest.split(" | ")] for name, rest in lines}


@pytest.mark.parametrize("public", PUBLIC, ids=lambda one: one.__name__)
def test_fields_are_in_the_page(public: type) -> None:
    """Every field has a row, and every row a field."""
    there = {field.name for field in dataclasses.fields(public) if not field.name.startswith("_")}
    listed = set(rows(section(public.__name__)))
    if public is Collectives:
        there -= {"trace", "signatures"}  # in a sentence below the table
    assert listed == there


@pytest.mark.parametrize("public", [RankTrace, Collectives], ids=lambda one: one.__name__)
def test_dtypes_are_those_of_the_columns(public: type) -> None:
    """A column's dtype in the page is that of its type."""
    columns = {
        name: DTYPES[hint] for name, hint in get_type_hints(public).items() if hint in DTYPES
    }
    assert len(columns) >= 10
    documented = rows(section(public.__name__))
    assert {name: documented[name][0] for name in columns} == columns


@pytest.mark.parametrize("door", [frd.load, frd.load_memory], ids=lambda one: one.__name__)
def test_arguments_are_in_the_page(door: object) -> None:
    """Every argument of the two functions has a row."""
    assert callable(door)
    assert set(inspect.signature(door).parameters) <= set(rows(TEXT.split("## Clocks")[0]))


def test_all_that_is_public_is_in_the_page() -> None:
    """A new function of `frd` needs a place in the page."""
    functions = [name for name, what in vars(frd).items() if inspect.isfunction(what)]
    assert functions == ["__dir__", "load", "load_memory"]
    assert dir(frd) == ["__version__", *functions[1:]]
    assert all(f"`frd.{name}`" in TEXT for name in functions[1:])


def test_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Top to bottom in one namespace, in a folder with dumps of a hang and telemetry."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dumps").mkdir()
    for rank in range(3):
        entries = [entry(at) for at in range(3 - (rank == 2))]
        if rank < 2:
            entries[2] |= {"state": "scheduled", "retired": False}
            entries[2]["time_discovered_completed_ns"] = None
        dump = as_json(document(entries, ranks=(0, 1, 2)))
        (tmp_path / "dumps" / f"rank_{rank}").write_bytes(dump)
    for rank in range(2):
        write(tmp_path / f"rank_{rank}.jsonl", [event(at, rank=rank) for at in range(20)])
    namespace: dict[str, object] = {}
    examples = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), namespace)  # noqa: S102  our own page
    said = capsys.readouterr().out
    assert "rank 0: 0.000 s" in said
    assert isinstance(analysis := namespace["analysis"], Analysis)
    assert json.dumps(analysis.to_json())
