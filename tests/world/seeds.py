"""How many seeds a property test tries: a tenth in `make test`, all in `make sim`."""

from __future__ import annotations

import os


def seeds(count: int) -> int:
    """`count` with FRD_ALL_SEEDS in the environment, else a tenth of it."""
    return count if os.environ.get("FRD_ALL_SEEDS") else max(count // 10, 4)
