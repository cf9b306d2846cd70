"""How many seeds a property test tries: a tenth in `make test`, all in `make sim`."""

from __future__ import annotations

import os
from typing import Final

ALL: Final = bool(os.environ.get("FRD_ALL_SEEDS"))


def seeds(count: int) -> int:
    """`count` with FRD_ALL_SEEDS in the environment, else a tenth of it."""
    return count if ALL else max(count // 10, 4)
