"""What both daemons say of themselves: a log on stderr, one line per event, as text or as JSON, and
to systemd, when they are ready.

In systemd's journal each line has the priority of its level. systemd's protocol is one datagram, so
`notifier` speaks it itself: a library would be one more dependency for ten lines.

Logged text may contain names chosen by peers, so the text form escapes unprintable characters, and
an event is always one line.
"""

from __future__ import annotations

import json
import logging
import socket
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Final, TextIO

from frd.forms import utc_text
from frd.usage import plain, priority

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
"""States of a daemon, for `notifier`."""
_TEXT: Final = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s"


def configure(level: str, form: str) -> None:
    """`level` is a level of `logging` in lower case, `form` is ``text`` or ``json``. The last call
    wins."""
    handler = _Stderr(sys.stderr)
    text = _TextLines(_TEXT, datefmt="%Y-%m-%dT%H:%M:%S")
    handler.setFormatter(_JsonLines() if form == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Uvicorn logs its start and stop, and each invalid request, which any client can send.
    logging.getLogger("uvicorn").setLevel("ERROR")
    # httpx logs each request that it sends, httpcore what is in it.
    for client in ("httpx", "httpcore"):
        logging.getLogger(client).setLevel("WARNING")
    # gRPC warns of each call that is open when the service stops, as asked.
    logging.getLogger("grpc._cython.cygrpc").setLevel("ERROR")


def notifier(environ: MutableMapping[str, str]) -> Callable[[str], None]:
    """A function that sends a state to the supervisor of this process, if there is one.

    Its address is taken out of `environ`: child processes must not speak for this one.
    """
    address = environ.pop("NOTIFY_SOCKET", "")
    if address.startswith("@"):  # in the abstract namespace
        address = "\0" + address[1:]

    def notify(state: str) -> None:
        if not address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.sendto(state.encode(), address)
        except OSError as error:
            log = logging.getLogger(__name__)
            log.warning("NOTIFY_SOCKET: %s: %s not sent", error.strerror, state)

    return notify


class _Stderr(logging.StreamHandler[TextIO]):
    def format(self, record: logging.LogRecord) -> str:
        """The journal takes each line of a traceback for one entry."""
        first = priority(record.levelno)
        return first + super().format(record).replace("\n", f"\n{first}")


class _TextLines(logging.Formatter):
    """Names chosen by peers can neither start a new line nor control a terminal."""

    converter = staticmethod(time.gmtime)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = plain(record.message)
        return super().formatMessage(record)


class _JsonLines(logging.Formatter):
    """A traceback is a text with line breaks in it, on the one line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "ts": utc_text(int(record.created * 1e9)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
