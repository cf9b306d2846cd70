"""Signals end a command as Ctrl-C does, so that `with` blocks clean up; and its processes."""

from __future__ import annotations

import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOST_WAKE_UP_S: Final = 1.0
"""A signal just before a sleep takes effect after it."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within it, the first of SIGINT, SIGTERM and SIGHUP (the terminal closes) raises
    `KeyboardInterrupt`; later ones are ignored, so that they do not disturb the cleaning up.

    A signal that is ignored, as `nohup` and a shell's `&` leave some, stays ignored.
    """
    heeded = [number for number in _ENDS if signal.getsignal(number) is not signal.SIG_IGN]

    def interrupt(*_: object) -> NoReturn:
        for number in heeded:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_for_end(announce: Callable[[], None]) -> None:
    """Call `announce`, which says that a signal ends it, and return at the first signal of
    `ended_by_signals`; it may come before `announce` returns."""
    try:
        announce()
        while True:
            time.sleep(_LOST_WAKE_UP_S)
    except KeyboardInterrupt:
        return


def first_line(process: subprocess.Popen[bytes], within_s: float) -> bytes:
    """Of its stdout; empty if it ended before, or wrote none in time."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        return process.stdout.readline() if selector.select(within_s) else b""
