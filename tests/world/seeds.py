"""How much a property test tries: a part of it in `make test`, all in `make sim`."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import settings

ALL: Final = bool(os.environ.get("FRD_ALL_SEEDS"))


def seeds(count: int, part: int = 10) -> int:
    """`count` with FRD_ALL_SEEDS in the environment, else one in `part` of them, but four."""
    return count if ALL else max(count // part, 4)


def examples(count: int) -> settings:
    """`count` examples of a law with FRD_ALL_SEEDS in the environment, else a fifth of them, but
    thirty."""
    return settings(max_examples=max(seeds(count, 5), 30))
