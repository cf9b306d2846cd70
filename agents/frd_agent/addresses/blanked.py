"""Blanks what looks like a secret on a command line. Too much rather than too little: people need
to recognize the program, not to run it again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

BLANK: Final = "REDACTED"

_NAME: Final = (
    r"(?:passw|passphrase|secret|credential|cookie|authorization|bearer|token(?!s|iz)"
    r"|(?:api|access|private|account|auth)[-_.]?key|signature"
    r"|(?<![a-z])(?:key|pwd|pass|pat|auth|jwt|sig)(?![a-z]))"
)
"""In the name of an option, a variable or a header whose value is a secret."""
_VALUE: Final = r"""(?:(?:bearer|basic)\s+)?(?:"[^"]*"|'[^']*'|[^\s"',;&})]+)"""
_SECRET_NAME: Final = re.compile(_NAME, re.IGNORECASE)
_PATTERNS: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), rf"\1{BLANK}")
    for pattern in (
        r"(://)[^/\s]*(?=@)",  # scheme://user:password@host
        r"""((?:cookie|authorization)["']?\s{0,3}:\s{0,3})[^"'\n]+""",  # the whole header
        rf"""({_NAME}[\w.-]{{0,64}}["']?\s{{0,3}}[=:]\s{{0,3}}){_VALUE}""",  # also inside of texts
        rf"(--?[\w.-]{{0,64}}?{_NAME}[\w.-]{{0,64}}\s{{1,3}}){_VALUE}",  # of ``sh -c``
        r"\b(hf_|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|sk-|nvapi-|AKIA|ASIA|eyJ)[\w.-]{8,}",
    )
)
"""Keep what the group matches."""


def blanked(words: Sequence[str]) -> str:
    """A command line that a shell would split into `words`, without their secrets."""
    shown = [_blanked(*pair) for pair in zip(words, ("", *words), strict=False)]
    return shown[0] if len(shown) == 1 else shlex.join(shown)  # one word: its title was set


def _blanked(word: str, before: str) -> str:
    if before.startswith("-") and not word.startswith("--") and _is_secret(before):
        return BLANK
    name, equals, _ = word.partition("=")
    if equals and _is_secret(name):
        return f"{name}={BLANK}"
    for pattern, kept in _PATTERNS:
        word = pattern.sub(kept, word)
    return word


def _is_secret(name: str) -> bool:
    return not {"=", " "} & set(name) and _SECRET_NAME.search(name) is not None
