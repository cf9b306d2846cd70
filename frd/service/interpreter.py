"""How Python is set in a process that serves: for short pauses, at the cost of memory and turns."""

from __future__ import annotations

import gc
import sys
from typing import Final

_TURN_S: Final = 0.0005


def tune() -> None:
    """Call it once, before the event loop runs."""
    # A full collection walks every rank of every job: 0.2 s and more in which no message is read.
    # Long-lived objects have no cycles here, so full collections can be rare.
    gc.set_threshold(10_000, 20, 1_000)
    # Threads write the journal and render scrapes. With Python's 5 ms a turn, each of the thousand
    # messages a second would wait that long for them.
    sys.setswitchinterval(_TURN_S)
