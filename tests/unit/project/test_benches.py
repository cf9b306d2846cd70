"""Benches run from the repository's root by `python bench/NAME.py`, wherever frd is installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.world.daemons import run_program

ROOT = Path(__file__).parents[3]
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
