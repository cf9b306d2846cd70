"""A command of `frd` in this process, and what it printed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from frd.cli import run

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Printed:
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def words(self) -> str:
        """The output without line breaks and columns."""
        return " ".join(self.out.split())

    @property
    def error(self) -> str:
        """The line that says what is wrong; there is one."""
        assert self.err.startswith("frd: error: ")
        assert self.err.count("\n") == 1
        return self.err


class Shell:
    def __init__(self, capsys: pytest.CaptureFixture[str], *options: str) -> None:
        self._capsys = capsys
        self._options = options

    def __call__(self, *words: str | Path, code: int = 0) -> Printed:
        """Fails unless the command ends with the exit code `code`."""
        self._capsys.readouterr()
        assert run([*map(str, words), *self._options]) == code
        return Printed(*self._capsys.readouterr())

    def drawn(self, *words: str | Path, code: int = 0, columns: int = 80) -> Printed:
        """The same on a terminal of so many columns, without the colours."""
        window = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(columns)}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in window.items():
                patch.setenv(name, value)
            printed = self(*words, code=code)
        return Printed(*(_STYLE.sub("", text) for text in (printed.out, printed.err)))
