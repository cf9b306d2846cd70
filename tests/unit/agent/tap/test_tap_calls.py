"""What the tap shares with the program that it is in: only what its text names."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

from frd_agent import tap

TREE = ast.parse(Path(tap.__file__).read_text("utf-8"))
FORBIDDEN = {"tempfile", "logging", "warnings", "locale", "multiprocessing", "subprocess", "random"}
"""They keep state that a program changes, or locks that a fork may find held."""


def imported() -> dict[str, str]:
    """Names in the tap's code, with the module that each is, or comes from; not of types only."""
    names: dict[str, str] = {}
    for node in ast.walk(TREE):
        match node:
            case ast.Import():
                names |= {alias.asname or alias.name: alias.name for alias in node.names}
            case ast.ImportFrom(module=module) if module not in (
                *("__future__", "typing", "types", "collections.abc"),
            ):
                names |= {alias.name: f"{module}.{alias.name}" for alias in node.names}
    return names


def used() -> dict[str, set[str]]:
    """By module: the attributes of it that the code reads."""
    known, found = imported(), dict[str, set[str]]()
    for name, origin in known.items():
        module, _, attribute = origin.partition(".")
        found.setdefault(module, set()).update({attribute} - {""})
        for node in ast.walk(TREE):
            match node:
                case ast.Attribute(value=ast.Name(id=of), attr=attr) if of == name:
                    found[module].add(attr)
    return found


def listed() -> dict[str, set[str]]:
    """By module: what the text of the tap names."""
    text = (tap.__doc__ or "").partition("The tap shares no lock")[2]
    return {
        module: set(re.findall(r"\w+", names))
        for module, names in re.findall(r"`(\w+)`: ([\w,\s]+)[;.]", text)
    }


def is_constant(module: str, name: str) -> bool:
    """As a limit, a flag or a signal; or what the interpreter left of an error."""
    value = getattr(importlib.import_module(module), name, None)
    return (name.isupper() and not callable(value)) or name.startswith(("last_", "__"))


def test_all_calls_are_named_in_its_text() -> None:
    """The modules that it imports and the functions of theirs that it uses are those of the list
    in its text, with a reason for each."""
    calls = {
        module: {name for name in names if not is_constant(module, name)}
        for module, names in used().items()
    }
    assert listed() == calls
    assert not FORBIDDEN & calls.keys()


def test_nothing_is_imported_or_opened_as_text_on_its_thread() -> None:
    """Imports are at the head of the file, where the program's thread runs them. `open` may import
    a codec, and reads the warnings' filters."""
    inside = [
        node
        for function in ast.walk(TREE)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
    ]
    assert not [node.lineno for node in inside if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {
        node.func.id
        for node in inside
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not {"open", "print", "input", "__import__", "exec", "eval"} & names
