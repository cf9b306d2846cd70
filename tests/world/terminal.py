"""What a command draws on a terminal of a given size, as text without escape sequences."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from typing import Final

_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


def on_terminal(*arguments: object, columns: int = 80, rows: int = 24) -> list[str]:
    """The lines that `frd ARGUMENTS` writes to a terminal."""
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
    command = [sys.executable, "-m", "frd", *map(str, arguments)]
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")},
        "TERM": "xterm-256color",
    }
    try:
        process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment)
    finally:
        os.close(its)
    written = bytearray()
    with process, os.fdopen(ours, "rb", buffering=0) as screen:
        while True:
            try:
                piece = screen.read(65_536)
            except OSError:  # EIO: the command has ended
                break
            if not piece:
                break
            written += piece
    return _ESCAPES.sub("", written.decode("utf-8", "replace")).splitlines()
