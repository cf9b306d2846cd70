"""`python -m scripts.mutants [PATH ..]`: mutation testing of `frd/engine`, or of some of its files.

mutmut changes one operator, constant or call at a time and runs the tests that reach the changed
function. It works in `.mutants`, a copy of the tree, so that editing may go on. Only unit tests
that import the engine and start no process run: seconds for a mutant, not minutes. A mutant that
survives shows a line that no test checks, or a change without effect; a person must decide which.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
WORK: Final = ROOT / ".mutants"
_COPIED: Final = ("frd", "agents", "tests", "docs", "examples", "README.md", "pyproject.toml")
_STARTS_SOMETHING: Final = re.compile(r"subprocess|asyncio|multiprocessing")
_RESULT: Final = re.compile(r"^\s+(\S+): ([\w ]+)$", re.MULTILINE)
_CONFIG: Final = """
[tool.mutmut]
source_paths = ["frd"]
only_mutate = {only}
also_copy = ["agents", "docs", "examples", "README.md"]
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = ["-p", "no:cacheprovider", "-W", "ignore::DeprecationWarning"]
"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("python -m scripts.mutants", description=__doc__)
    parser.add_argument("paths", nargs="*", default=["frd/engine"], metavar="PATH")
    parser.add_argument(
        "--jobs", type=int, default=2, help="number of mutants at a time (default 2)"
    )
    options = parser.parse_args(arguments)
    only = [path if path.endswith(".py") else f"{path.rstrip('/')}/*" for path in options.paths]
    if unknown := [path for path in options.paths if not (ROOT / path).exists()]:
        parser.error(f"{', '.join(unknown)}: no such file: name files or folders of frd/engine")
    _copy(only)
    mutmut = [sys.executable, "-m", "mutmut"]
    run = [*mutmut, "run", "--max-children", str(options.jobs)]
    ran = subprocess.run(run, cwd=WORK, env={**os.environ, "CI": "1"}, check=False)
    if ran.returncode:
        return ran.returncode
    command = [*mutmut, "results", "--all", "true"]
    output = subprocess.run(command, cwd=WORK, check=True, capture_output=True, text=True).stdout
    results = _RESULT.findall(output)
    for name, result in results:
        if result != "killed":
            print(f"{result:10} {name}")
    counts = Counter(result for _, result in results)
    print(", ".join(f"{count} {result}" for result, count in counts.most_common()))
    print(f"a mutant's change: cd {WORK.name} && ../.venv/bin/mutmut show NAME")
    return 0


def _copy(only: Sequence[str]) -> None:
    shutil.rmtree(WORK, ignore_errors=True)
    for name in _COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, WORK / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, WORK / name)
    config = _CONFIG.format(only=_toml(only), tests=_toml(tests()))
    with (WORK / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write(config)


def tests() -> list[str]:
    """Test files that import the engine and start no process and no event loop."""
    files = sorted((ROOT / "tests/unit").rglob("test_*.py"))
    texts = {file: file.read_text("utf-8") for file in files}
    return [
        str(file.relative_to(ROOT))
        for file, text in texts.items()
        if "frd.engine" in text and not _STARTS_SOMETHING.search(text)
    ]


def _toml(names: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
