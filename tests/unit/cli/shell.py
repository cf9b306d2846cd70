"""A command of `frd` in this process, and what it printed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from frd.cli import run


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
