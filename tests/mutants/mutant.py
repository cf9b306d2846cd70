"""What a planted fault is: a place in the code, and what might have been written there instead."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Module:
    """A file of the product and the tests that are about it, quick ones first."""

    file: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault. `old` occurs exactly once in its file, and `why` says what was got wrong."""

    name: str
    module: Module
    old: str
    new: str
    why: str

    def planted(self, text: str) -> str:
        """The text of the file with the fault in it.

        Raises:
            ValueError: the table is behind the code.
        """
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: {self.module.file}: its text occurs {found} times")
        return text.replace(self.old, self.new)
