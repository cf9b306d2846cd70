"""The service's log on stderr: one line an event, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final

from frd.config import LogOptions
from frd.forms import utc_text

_TEXT: Final = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s"


def configure(options: LogOptions) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if options.format == "json" else _text_lines())
    logging.basicConfig(level=options.level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel("WARNING")  # its start and stop are part of ours


def _text_lines() -> logging.Formatter:
    formatter = _TextLines(_TEXT, datefmt="%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    return formatter


class _TextLines(logging.Formatter):
    """What peers call themselves can neither begin a line of its own nor steer a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = "".join(
            char if char.isprintable() else ascii(char)[1:-1] for char in record.message
        )
        return super().formatMessage(record)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": utc_text(int(record.created * 1e9)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
