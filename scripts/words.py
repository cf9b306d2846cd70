"""words [--lower]: a lint for words of a private dialect.

Counts words and phrases in code (names, comments, strings), tests and docs. For each folder
and word, `scripts/words.json` has a ceiling. A use above it fails with file, line, word and a plain
alternative. ``--lower`` writes ceilings that have fallen; no ceiling ever rises by itself.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
CEILINGS: Final = Path(__file__).with_suffix(".json")
SUFFIXES: Final = {
    *(
        ".css",
        ".html",
        ".js",
        ".md",
        ".py",
        ".proto",
        ".sbatch",
        ".service",
        ".sh",
        ".toml",
        ".tpl",
    ),
    *(".txt", ".yaml"),
}
EXCEPT: Final = (
    "frd/v1/", "frd/web/vendor/", "scripts/words.py", "tests/golden/", "tests/frozen/"
)  # fmt: skip

PLAIN: Final = {
    "told": "reported, sent, shown",
    "tells?|telling": "report, send, show, say",
    "nobody": "no rank, no agent, none",
    "somebody": "another rank, another process",
    "everybody": "all ranks, all users",
    "those who|one who|he who": "the ranks that, the process that",
    "whom|whose word": "the rank that",
    "whoever": "any process that, the code that",
    "anew|afresh": "again, from the start",
    "beside": "next to, in addition to, with",
    "of (?:its|their|his) own": "its own, separate",
    "at once": "immediately; or: together",
    "(?<!there.)(?:is|are) none": "is not one, there is no",
    "for want of": "because ... is missing",
    "all the same": "nevertheless, anyway",
    "(?:the|one's|his|its) word of": "reported by",
    "likewise": "also, too",
    "stands": "is, is at",
    "lies": "is, is within",
    "as (?:it|they) does?": "like",
    "held against": "compared with",
    "comes? of": "results from",
}
"""Pattern to plain alternative. A space matches any white space, a line break in a comment too."""


class Use(NamedTuple):
    """One use of a word: where, and which pattern it matches."""

    path: str
    line: int
    found: str
    word: str


def area_of(path: str) -> str:
    """The folder whose ceiling counts: ``frd/engine``, ``docs``; all tests are one."""
    levels = path.split("/")[:-1]
    return "tests" if levels[:1] == ["tests"] else "/".join(levels[:2]) or "."


def uses() -> Iterator[Use]:
    """Every use in every tracked text file."""
    space = r"\s+(?:#\s+)?"
    patterns = {
        word: re.compile(rf"(?<![A-Za-z])(?:{word.replace(' ', space)})(?![A-Za-z])")
        for word in PLAIN
    }
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for path in names.split("\0"):
        if Path(path).suffix not in SUFFIXES or path.startswith(EXCEPT):
            continue
        if not (ROOT / path).exists():  # removed, and not committed yet
            continue
        text = (ROOT / path).read_text("utf-8", "replace")
        for word, pattern in patterns.items():
            for match in pattern.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                yield Use(path, line, " ".join(match[0].split()), word)


def main(arguments: list[str]) -> int:
    found: dict[str, dict[str, list[Use]]] = defaultdict(lambda: defaultdict(list))
    for use in uses():
        found[area_of(use.path)][use.word].append(use)
    ceilings: dict[str, dict[str, int]] = json.loads(CEILINGS.read_text("utf-8"))
    over = False
    for area, words in sorted(found.items()):
        for word, where in sorted(words.items()):
            ceiling = ceilings.get(area, {}).get(word, 0)
            if len(where) <= ceiling:
                continue
            over = True
            print(f"{area}: {len(where)} uses of {word!r}, at most {ceiling} are allowed:")
            for use in where:
                print(f"  {use.path}:{use.line}: {use.found!r}: write {PLAIN[word]}")
    if over:
        print("words: see the words of CONTRIBUTING.md; code that moved: move its ceiling, too")
        return 1
    if "--lower" in arguments:
        lowered = {
            area: {word: len(where) for word, where in sorted(words.items())}
            for area, words in sorted(found.items())
        }
        CEILINGS.write_text(json.dumps(lowered, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
