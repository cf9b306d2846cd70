"""What only one place of the program does, so that nothing else has to be looked through for it."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import pytest

from tests.world.daemons import run_program

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


# -- web files -------------------------------------------------------------------------------------
# The files of the web page: small, readable, licensed, and free of what its policy forbids.


WEB = ROOT / "frd/web"
OWN = sorted(path for path in WEB.rglob("*.js") if "vendor" not in path.parts)
MOST_BYTES = 350_000
MOST_LINES = 300


def test_the_page_is_small() -> None:
    """All that a browser may load is below 350 kB, uncompressed."""
    assert sum(path.stat().st_size for path in WEB.rglob("*") if path.is_file()) < MOST_BYTES


def test_every_vendored_file_is_the_one_of_the_notice() -> None:
    """NOTICE has the digest of each file of others, and names none that is absent."""
    notice = (WEB / "NOTICE").read_text()
    stated = dict(re.findall(r"^(vendor/\S+)\n(?:  .*\n)*?  sha256: +(\w{64})$", notice, re.M))
    found = {
        path.relative_to(WEB).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (WEB / "vendor").iterdir()
    }
    assert stated == found
    assert "Apache License" in notice
    assert "Permission is hereby granted, free of charge" in notice


def test_the_wheel_has_the_notice() -> None:
    """The licences travel with what they permit."""
    assert '"frd/web/NOTICE"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.relative_to(WEB).as_posix())
def test_a_module_is_readable_and_harmless(path: Path) -> None:
    """It says what it does, fits a morning, keeps nothing in the browser, and makes no markup or
    code of text."""
    text = path.read_text()
    assert text.startswith("/**\n * ")
    assert len(text.splitlines()) <= MOST_LINES
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function"
    forbidden += r"|localStorage|sessionStorage|document\.cookie|https?://"
    assert re.findall(forbidden, text) == []


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.relative_to(WEB).as_posix())
def test_imports_lead_to_files(path: Path) -> None:
    """Relative paths only: the policy admits no import map, and no other host."""
    for target in re.findall(r'(?:from|import)\s+"([^"]+)"', path.read_text()):
        assert target.startswith(("./", "../")), target
        assert (path.parent / target).resolve().is_file(), target


def test_the_page_loads_all_modules_early() -> None:
    """index.html names each module, so that a browser asks for all of them together."""
    named = set(re.findall(r'(?:href|src)="/web/([^"]+\.js)"', (WEB / "index.html").read_text()))
    modules = {path.relative_to(WEB).as_posix() for path in OWN}
    assert named == modules | {"vendor/standalone.module.js", "vendor/uPlot.iife.min.js"}


def test_the_page_has_nothing_inline() -> None:
    """No script, style or handler in the markup, and nothing of another host."""
    page = (WEB / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\son\w+=|https?://", page) == []
    assert "<noscript>" in page


# -- `make test-gpu` on machines that cannot run it: one line that names the reason ----------------


def run(folder: Path, python: str, **environ: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if name != "FRD_GPU_PYTHON"}
    return subprocess.run(
        [ROOT / "scripts" / "gpu", folder / "venv", python],
        cwd=ROOT, env=known | environ, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def script(folder: Path, text: str) -> str:
    """A program in place of an interpreter."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_no_driver_is_one_line(tmp_path: Path) -> None:
    """The command installs nothing and does not fail; the probe itself is asked of a real
    interpreter, whose driver cannot be loaded."""
    (tmp_path / "libcuda.so.1").write_text("")
    done = run(tmp_path, sys.executable, LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert "skipped: no NVIDIA driver" in done.stdout
    assert not (tmp_path / "venv").exists()


def test_a_broken_interpreter_or_driver_is_an_error(tmp_path: Path) -> None:
    """They are no reason to skip."""
    absent = run(tmp_path, "no-such-python")
    assert (absent.returncode, "cannot be run" in absent.stderr) == (1, True)
    broken = run(tmp_path, script(tmp_path, "echo 802"))
    assert (broken.returncode, "error 802" in broken.stderr) == (1, True)


# -- benches ---------------------------------------------------------------------------------------
# Benches run from the repository's root by `python bench/NAME.py`, wherever frd is installed.


PROGRAM = """
import json, runpy, sys

root, *benches = sys.argv[1:]
path = [folder for folder in sys.path if folder not in ("", root)]
failed = {}
for bench in benches:
    for name in [n for n in sys.modules if n.split(".")[0] in ("bench", "tests")]:
        del sys.modules[name]
    sys.path[:] = [root + "/bench", *path]  # what `python bench/NAME.py` gives
    sys.argv[:] = [bench, "--help"]
    try:
        runpy.run_path(bench, run_name="__main__")
        failed[bench] = "knows no --help"
    except SystemExit as end:
        if end.code:
            failed[bench] = f"exit code {end.code}"
    except ImportError as error:
        failed[bench] = str(error)
print()
print(json.dumps(failed))
"""
"""Starts all of them in one process, which imports numpy and frd only once."""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder on the path that holds frd and its agent and nothing else of the repository."""
    for package in ("frd", "agents/frd_agent"):
        (tmp_path / Path(package).name).symlink_to(ROOT / package)
    return tmp_path


def test_benches_start_from_the_root(installed: Path) -> None:
    """`--help` of every bench works although neither `bench` nor `tests` is installed."""
    benches = [
        str(file) for file in sorted((ROOT / "bench").glob("*.py")) if "--json" in file.read_text()
    ]
    assert len(benches) >= 8
    output = run_program(
        [sys.executable, "-c", PROGRAM, str(ROOT), *benches],
        env={"PYTHONPATH": str(installed)},
        cwd=ROOT,
        check=True,
    ).stdout
    assert json.loads(output.splitlines()[-1]) == {}
