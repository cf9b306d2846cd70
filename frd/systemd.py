"""What both daemons say to systemd: when they are ready, and how grave a line of their log is.

Both protocols are a few lines of text, so this module speaks them itself: a library would be one
more dependency for ten lines. Outside systemd nothing is sent, and lines stay as they are.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable, MutableMapping
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
_PRIORITIES: Final = (
    (logging.ERROR, "<3>"),
    (logging.WARNING, "<4>"),
    (logging.INFO, "<6>"),
    (logging.DEBUG, "<7>"),
)


def notifier(environ: MutableMapping[str, str]) -> Callable[[str], None]:
    """A function that sends a state, such as `READY`, to the supervisor of this process.

    The address is taken out of `environ`: child processes must not speak for this one.
    """
    address = environ.pop("NOTIFY_SOCKET", "")
    if address.startswith("@"):  # in the abstract namespace
        address = "\0" + address[1:]

    def notify(state: str) -> None:
        if address:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                    sock.sendto(state.encode(), address)
            except OSError as error:
                log = logging.getLogger(__name__)
                log.warning("NOTIFY_SOCKET: %s: %s not sent", error.strerror, state)

    return notify


def priority(level: int) -> str:
    """What a line of this level of `logging` begins with if stderr goes to systemd's journal, which
    removes it and stores the priority; otherwise empty."""
    try:
        stderr = os.fstat(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # closed, or replaced by what is no file
        return ""
    if os.environ.get("JOURNAL_STREAM") != f"{stderr.st_dev}:{stderr.st_ino}":
        return ""
    return next((text for least, text in _PRIORITIES if level >= least), "<7>")
