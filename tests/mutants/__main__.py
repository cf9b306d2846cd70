"""`python -m tests.mutants [--only WORD]`: plants each mistake, and says which tests notice it.

Each mistake gets a process that plants it (`tests.mutants.plugin`) and runs its tests. Ends with 1
if a mistake survives or cannot be planted. The tests run once without a mistake first.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.mutants.table import MUTANTS, Mutant

ROOT: Final = Path(__file__).parents[2]
_OPTIONS: Final = ("-x", "-q", "--tb=no", "-p", "no:cacheprovider", "--timeout=600")
_TESTS_FAILED: Final = 1
_PATIENCE_S: Final = 1800


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORD", help="those with this in the name")
    parser.add_argument("--jobs", type=int, default=2, help="so many at a time (default 2)")
    options = parser.parse_args()
    chosen = [at for at, one in enumerate(MUTANTS) if options.only in one.name]
    files = sorted({file for at in chosen for file in _files(MUTANTS[at])})
    if clean := _pytest(files, "").returncode:
        print(f"mutants: the tests end with {clean} without any mistake", file=sys.stderr)
        return 2
    survived = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for at, outcome in zip(chosen, pool.map(_try, chosen), strict=True):
            survived += not outcome.startswith("killed")
            print(f"{MUTANTS[at].name}: {outcome}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} killed")
    return 1 if survived else 0


def _try(number: int) -> str:
    mutant = MUTANTS[number]
    ran = _pytest(_files(mutant), str(number))
    last = (ran.stdout.splitlines() or [""])[-1]
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if ran.returncode == _TESTS_FAILED and failed:  # a mistake that does not fit ends with 1, too
        return f"killed by {failed[0].split()[1]}"
    if ran.returncode == 0:
        return f"SURVIVED: {mutant.why}"
    return f"NOT TRIED: {(ran.stderr.splitlines() or [last])[-1]}"


def _files(mutant: Mutant) -> list[str]:
    paths = [Path("tests") / name for name in mutant.tests.split()]
    return [
        str(path) if (ROOT / path).is_dir() else f"{path.parent}/test_{path.name}.py"
        for path in paths
    ]


def _pytest(files: list[str], number: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", *_OPTIONS, "-p", "tests.mutants.plugin", *files],
        cwd=ROOT,
        env={**os.environ, "FRD_MUTANT": number, "CI": "1"},  # CI: the same examples each time
        check=False,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
    )


if __name__ == "__main__":
    sys.exit(main())
