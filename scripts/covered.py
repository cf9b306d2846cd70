"""Lines and branches that no test of `make coverage` ran.

One line per part: the share of its lines and of its branches that tests ran; then each line and
branch that they did not run, by file. Lines and branches have separate shares, because a common one
hides branches among many lines. A part with a share below `LEAST` is an error.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from coverage import Coverage
from coverage.exceptions import CoverageException

LEAST: Final = 0.95


def main() -> int:
    try:
        files = _measured()
    except CoverageException as error:
        print(f"frd: coverage: {error}: run make coverage", file=sys.stderr)
        return 1
    parts: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, file in files.items():
        parts[_part(name)].append(file["summary"])
    short = [part for part, summaries in sorted(parts.items()) if not _is_covered(part, summaries)]
    for name, file in sorted(files.items()):
        if left := [*map(str, file["missing_lines"]), *_branches(file)]:
            print(f"  {name}: {', '.join(left)}")
    for part in short:
        print(f"frd: coverage: {part}: below {LEAST:.0%}: write the missing tests", file=sys.stderr)
    return 1 if short else 0


def _part(name: str) -> str:
    """The package for frd, the file for the agent, of which only single files are measured."""
    return name if name.startswith("agents/") else "/".join(Path(name).parts[:2])


def _measured() -> dict[str, dict[str, Any]]:
    """The entries of coverage's JSON report, by file."""
    found = Coverage()
    found.load()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        found.json_report(outfile=str(report))
        files: dict[str, dict[str, Any]] = json.loads(report.read_text("utf-8"))["files"]
    return files


def _is_covered(part: str, summaries: Iterable[dict[str, Any]]) -> bool:
    """Print the line of a part; true if tests ran enough of it."""
    total: defaultdict[str, int] = defaultdict(int)
    for summary in summaries:
        for what, count in summary.items():
            total[what] += count if isinstance(count, int) else 0
    lines = total["covered_lines"] / max(total["num_statements"], 1)
    branches = total["covered_branches"] / max(total["num_branches"], 1)
    print(
        f"{part}: {lines:.1%} of {total['num_statements']:,} lines, "
        f"{branches:.1%} of {total['num_branches']:,} branches"
    )
    return min(lines, branches) >= LEAST


def _branches(file: dict[str, Any]) -> list[str]:
    """Branches that were never taken, from lines that were run."""
    return [
        f"{start} to {'the end' if end < 0 else end}"
        for start, end in file["missing_branches"]
        if start not in file["missing_lines"]
    ]


if __name__ == "__main__":
    sys.exit(main())
