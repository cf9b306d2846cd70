"""The mutation check: plant one fault at a time, and see which test notices.

    python -m tests.mutants [--list] [--only NAME ...] [--jobs N]

Every fault is planted in a copy of the working tree of its own. The tests that belong to its module
run first; what they let pass has to face all unit and property tests and the simulation. A test
that fails without the fault, too, has caught nothing. Examples are not drawn by chance, so one tree
gives one answer. Ends with 1 when a fault survives, or cannot be tried.

This takes long and proves nothing of the product, only of its tests: it is for people who change
tests, and for releases.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.mutants.mutant import Mutant
from tests.mutants.planted import MUTANTS

ROOT: Final = Path(__file__).parents[2]
_WHOLE: Final = ("tests/unit", "tests/property", "tests/sim")
_NOT_THE_TABLE: Final = "--ignore=tests/unit/test_mutants.py"
"""It would notice every fault, by its text."""
_PATIENCE_S: Final = 1800.0
_LONGEST_TEST_S: Final = 600
"""A busy machine is slow, which catches nothing; a test that never ends does."""
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


class Verdict(StrEnum):
    CAUGHT = "caught"
    SURVIVED = "survived"
    UNTRIED = "untried"
    """The tests could not run, or fail without the fault, too."""


@dataclass(frozen=True, slots=True)
class Outcome:
    mutant: Mutant
    verdict: Verdict
    by: str
    """The test that caught it, or why it could not be tried."""
    took_s: float


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    if unknown := set(options.only) - {mutant.name for mutant in MUTANTS}:
        print(f"mutants: {', '.join(sorted(unknown))}: no such fault: see --list", file=sys.stderr)
        return 2
    chosen = [one for one in MUTANTS if not options.only or one.name in options.only]
    if options.list:
        for one in chosen:
            print(f"{one.name:28} {one.module.file}: {one.why}")
        return 0
    begun = time.monotonic()
    counts: Counter[Verdict] = Counter()
    with _clean_copy() as clean, ThreadPoolExecutor(options.jobs) as pool:
        for outcome in pool.map(partial(_try, clean), chosen):
            counts[outcome.verdict] += 1
            print(
                f"{outcome.verdict:8} {outcome.mutant.name:28} {outcome.took_s:6.1f} s"
                f"  {outcome.by or outcome.mutant.why}",
                flush=True,
            )
    caught = counts[Verdict.CAUGHT]
    print(
        f"{caught} of {len(chosen)} caught ({caught / len(chosen):.1%}),"
        f" {counts[Verdict.SURVIVED]} survived, {counts[Verdict.UNTRIED]} could not be tried,"
        f" in {(time.monotonic() - begun) / 60:.0f} minutes"
    )
    return 0 if caught == len(chosen) else 1


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.mutants", description="The mutation check.")
    parser.add_argument("--list", action="store_true", help="say which faults there are")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these faults only")
    parser.add_argument("--jobs", type=int, default=2, help="so many at a time (default 2)")
    return parser.parse_args(arguments)


# -- copies --------------------------------------------------------------------------------------


@contextmanager
def _clean_copy() -> Iterator[Path]:
    """The working tree without what git ignores, compiled."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    with TemporaryDirectory(prefix="frd-mutants-") as folder:
        clean = Path(folder) / "clean"
        for name in filter(None, listed):
            if (ROOT / name).is_file() and not (ROOT / name).is_symlink():
                (clean / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, clean / name)
        _check_origin(clean)
        _run(clean, "-m", "compileall", "-q", "frd", "agents", "tests")
        yield clean


def _check_origin(copy: Path) -> None:
    """An editable install must not have the tests of a copy try the original."""
    told = _run(copy, "-c", "import frd, frd_agent\nfor m in frd, frd_agent: print(m.__file__)")
    if not all(Path(line).is_relative_to(copy) for line in told.stdout.splitlines()):
        raise SystemExit(f"mutants: {told.stdout.split()}: imported from beside the copy {copy}")


def _run(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env={
            **os.environ,
            "PYTHONPATH": f"{copy}:{copy / 'agents'}",
            "CI": "1",  # the same examples each time, see tests/conftest.py
        },
        check=False,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
    )


# -- one fault -----------------------------------------------------------------------------------


def _try(clean: Path, mutant: Mutant) -> Outcome:
    begun = time.monotonic()
    with TemporaryDirectory(prefix=f"{mutant.name}-", dir=clean.parent) as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(clean, copy)
        file = copy / mutant.module.file
        try:
            file.write_text(mutant.planted(file.read_text()))
            verdict, by = _judge(clean, copy, mutant.module.tests)
        except (ValueError, subprocess.TimeoutExpired) as error:
            verdict, by = Verdict.UNTRIED, str(error)
    return Outcome(mutant, verdict, by, time.monotonic() - begun)


def _judge(clean: Path, copy: Path, first: Sequence[str]) -> tuple[Verdict, str]:
    whole = [folder for folder in _WHOLE if (copy / folder).is_dir()]
    for tests in (first, ["-n", "2", _NOT_THE_TABLE, *whole]):
        result = _pytest(copy, *tests)
        if result.returncode == 0:
            continue
        failed = _FAILED.search(result.stdout)
        if failed is None:
            return Verdict.UNTRIED, " / ".join(result.stdout.splitlines()[-3:])
        if _pytest(clean, failed[1]).returncode != 0:
            return Verdict.UNTRIED, f"{failed[1]} fails without the fault, too"
        return Verdict.CAUGHT, failed[1]
    return Verdict.SURVIVED, ""


def _pytest(copy: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    options = ("-x", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider")
    return _run(copy, "-m", "pytest", *options, f"--timeout={_LONGEST_TEST_S}", *tests)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
