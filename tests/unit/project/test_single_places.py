"""What only one place of the program does, so that nothing else has to be looked through for it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parents[3]


def name_of(node: ast.expr) -> str:
    """The last part of a name or an attribute, without underscores before it."""
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name.lstrip("_")
        case _:
            return ""


def asks_agents(node: ast.AST) -> bool:
    """``self._inquiries.ask(...)``, and a reference to it."""
    return isinstance(node, ast.Attribute) and (
        (node.attr, name_of(node.value)) == ("ask", "inquiries")
    )


def makes_request(node: ast.AST) -> bool:
    """The messages to agents; requests of HTTP are of other modules."""
    return isinstance(node, ast.ImportFrom) and (
        node.module == "frd.wire.messages" and "Request" in {one.name for one in node.names}
    )


def reads_tables(node: ast.AST) -> bool:
    """``attempt.tables``: what is known of ranks and groups, which changes with each message."""
    return isinstance(node, ast.Attribute) and node.attr == "tables"


def where(holds: Callable[[ast.AST], bool], source: str) -> list[int]:
    return [getattr(node, "lineno", 0) for node in ast.walk(ast.parse(source)) if holds(node)]


def modules_where(holds: Callable[[ast.AST], bool], folder: str) -> set[str]:
    paths = (ROOT / folder).rglob("*.py")
    found = (path for path in paths if where(holds, path.read_text("utf-8")))
    return {str(path.relative_to(ROOT)) for path in found}


def folders(modules: Iterable[str]) -> set[str]:
    return {str(Path(module).parent) for module in modules}


def test_one_place_asks_agents() -> None:
    """A rank is asked on one of the engine's occasions, or because a person wants a dump: who adds
    another way adds an occasion."""
    assert folders(modules_where(asks_agents, "frd")) == {"frd/service/evidence"}
    assert modules_where(makes_request, "frd/service") == {"frd/service/evidence/inquiries.py"}


def test_the_tables_of_an_attempt_are_the_engines() -> None:
    """Sessions fill them. The rest of the service reads views, which do not change."""
    assert folders(modules_where(reads_tables, "frd/service")) <= {"frd/service/ingest"}
    assert "frd/engine/evaluation.py" in modules_where(reads_tables, "frd/engine")


DECIDE: Final = ("coverage", "decisions", "incident", "incidents", "leaks", "report", "rise")
"""Modules of `frd.engine.memory` that only `frd.engine` imports, as those of the walk below."""
WALK: Final = ("excursions", "series", "trend", "recent")


@pytest.mark.parametrize("module", ["frd.service.app", "frd.offline.memory.analyze"])
def test_one_model_of_memory(module: str) -> None:
    """The service and `frd analyze --memory` load every module of it."""
    script = (
        f"import sys, {module}\n"
        "print(*(name for name in sys.modules if name.startswith('frd.engine.memory')))"
    )
    folder = ROOT / "frd/engine/memory"
    names = [path.relative_to(ROOT).with_suffix("") for path in folder.rglob("*.py")]
    modules = {".".join(name.parts).removesuffix(".__init__") for name in names}
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert set(loaded.stdout.decode().split()) == modules


def test_what_is_offline_decides_nothing_about_memory() -> None:
    """It reads files, feeds their samples to the engine and shows what comes out."""
    deciding = {f"frd.engine.memory.{name}" for name in DECIDE}
    deciding |= {f"frd.engine.memory.walk.{name}" for name in WALK}
    for path in sorted((ROOT / "frd/offline").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not imported & deciding, path
    assert not (ROOT / "frd/offline/memory/rises").exists()
