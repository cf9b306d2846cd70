"""What the pages show to type: the shell blocks of a page, their lines, and the commands of a line.

A test that types a whole block takes it from here by `block("PAGE", "WORDS")`, one that types a
line by `line("PAGE", "WORDS")`, written so, with both as text: `test_every_command` finds these
calls, and so knows which lines some test runs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ("README.md", "docs/workstation.md", "docs/kubernetes.md", "docs/slurm.md")
"""Each of their commands is run, or has a reason why not."""
OTHERS: Final = sorted(
    str(path.relative_to(ROOT))
    for path in (
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("helm/frd/*.md"),
    )
    if str(path.relative_to(ROOT)) not in PAGES
)
_BLOCK: Final = re.compile(r"^( *)```(sh|console|bash)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_CALL: Final = re.compile(r'\b(block|line)\("([\w./-]+\.md)", "(.+?)"\)')
_INLINE: Final = re.compile(r"(?<!`)`((?:frd|frd-agent|pip|srun|sbatch|scancel|squeue) [^`]+)`")


@dataclass(frozen=True, slots=True)
class Block:
    page: str
    text: str

    @property
    def is_script(self) -> bool:
        """It is the content of a file, not typed line by line."""
        return self.text.startswith("#!")

    def lines(self) -> list[str]:
        return lines(self.text)


def lines(text: str) -> list[str]:
    """Those that have a command."""
    return [line for line in text.replace("\\\n", " ").splitlines() if commands(line)]


def blocks(page: str) -> list[Block]:
    found = _BLOCK.findall((ROOT / page).read_text("utf-8"))
    return [Block(page, re.sub(rf"^{indent}", "", text, flags=re.M)) for indent, _, text in found]


def block(page: str, words: str) -> str:
    """The one block of the page that has these words."""
    (found,) = (one.text for one in blocks(page) if words in one.text)
    return found


def line(page: str, words: str) -> str:
    """The one line of the page's blocks that has these words."""
    (found,) = (one for block in blocks(page) for one in block.lines() if words in one)
    return found


@cache
def taken() -> dict[tuple[str, str, str], Path]:
    """What tests type: ``block`` or ``line``, page and words, with the file of the test."""
    return {
        call: path
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for call in _CALL.findall(path.read_text("utf-8"))
    }


def shown(page: str) -> list[list[str]]:
    """The words of each command of the page's blocks."""
    return [words for block in blocks(page) for line in block.lines() for words in commands(line)]


def in_sentences(page: str) -> list[str]:
    """Commands with arguments between backticks, without the dots for more of them."""
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / page).read_text("utf-8"), flags=re.M | re.S)
    return [" ".join(found.replace("...", "").split()) for found in _INLINE.findall(text)]


def commands(line: str) -> list[list[str]]:
    """The words of each command of a line, without comments, redirections and assignments."""
    return list(_commands(line))


def _commands(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    is_target = False
    for token in [*lexer, ";"]:
        if is_target or re.fullmatch(r"[<>]+", token):
            is_target = not is_target
        elif re.fullmatch(r"[;&|()]+", token):
            if words:
                yield words
            words = []
        elif words or not re.fullmatch(r"\w+=.*", token):
            words.append(token)
