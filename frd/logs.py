"""The log of both daemons on stderr: one line per event, as text or as JSON.

Logged text may contain names chosen by peers, so the text form escapes unprintable characters, and
an event is always one line.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final

from frd.forms import utc_text
from frd.usage import plain

_TEXT: Final = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s"


def configure(level: str, form: str) -> None:
    """`level` as logging has it, in lower case; `form` is ``text`` or ``json``. Another call
    replaces the first."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if form == "json" else _text_lines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Its start and stop are part of ours, and it warns of each invalid request: any client can
    # send those.
    logging.getLogger("uvicorn").setLevel("ERROR")


def _text_lines() -> logging.Formatter:
    formatter = _TextLines(_TEXT, datefmt="%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    return formatter


class _TextLines(logging.Formatter):
    """Names chosen by peers can neither start a new line nor control a terminal."""

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
