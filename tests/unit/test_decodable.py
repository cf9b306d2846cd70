"""msgspec knows all classes that it decodes before threads use them."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import msgspec

import frd
import frd_agent
from frd.decodable import decodable


def is_known(form: type) -> bool:
    """Whether msgspec has collected the fields of a class, as far as its insides show it."""
    if issubclass(form, msgspec.Struct):
        return any(type(held).__name__ == "StructInfo" for held in gc.get_referents(form))
    return "__msgspec_cache__" in vars(form)


def modules() -> Iterator[tuple[ModuleType, ast.Module]]:
    """Those that use msgspec, and their sources; a few others are scripts."""
    for package in (frd, frd_agent):
        (folder,) = package.__path__
        for path in Path(folder).rglob("*.py"):
            if "import msgspec" in (source := path.read_text()):
                name = ".".join(path.relative_to(Path(folder).parent).with_suffix("").parts)
                yield import_module(name.removesuffix(".__init__")), ast.parse(source)


def structs(of: type[msgspec.Struct] = msgspec.Struct) -> Iterator[type[msgspec.Struct]]:
    """Without those that others extend."""
    for struct in of.__subclasses__():
        if struct.__subclasses__():
            yield from structs(struct)
        else:
            yield struct


def named(module: ModuleType, source: ast.Module) -> Iterator[type]:
    """Classes that the source names where it decodes: ``type=NAME``, and NAME as an argument."""
    for call in ast.walk(source):
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("msgspec."):
            forms = [keyword.value for keyword in call.keywords if keyword.arg == "type"]
            for form in (*forms, *call.args[1:]):
                found = getattr(module, form.id, None) if isinstance(form, ast.Name) else None
                if isinstance(found, type) and found.__module__.startswith("frd"):
                    yield found


def test_a_decorated_class_is_known() -> None:
    @dataclass
    class Plain:
        number: int

    class Struct(msgspec.Struct):
        number: int

    assert (is_known(Plain), is_known(Struct)) == (False, False)
    assert [decodable(Plain), decodable(Struct)] == [Plain, Struct]
    assert (is_known(Plain), is_known(Struct)) == (True, True)


def test_all_that_is_decoded_is_known() -> None:
    """Two threads that decode a new class at the same time end the process."""
    of_calls = {form for module in modules() for form in named(*module)}
    of_modules = {form for form in structs() if form.__module__.startswith("frd")}
    assert len(of_calls) > 10
    assert len(of_modules) > 20
    assert not {str(form) for form in of_calls | of_modules if not is_known(form)}
