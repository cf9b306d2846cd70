"""Changes one place in the code of a function that is already loaded.

The source of the function is parsed, changed and compiled, and the function gets the new code. All
that imported the function before has the mistake, too. No file changes.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

Operators: TypeAlias = type[ast.operator] | type[ast.cmpop] | type[ast.boolop] | type[ast.unaryop]


@dataclass(frozen=True, slots=True)
class Swap:
    """One operator, or one name of a function or attribute, for another."""

    old: Operators | str
    new: Operators | str
    number: int = 0
    """Which one in the function, from 0, in the order of the text."""

    def apply(self, tree: ast.AST) -> bool:
        places = list(self._places(tree))
        if len(places) <= self.number:
            return False
        places[self.number]()
        return True

    def _places(self, tree: ast.AST) -> Iterator[Callable[[], None]]:
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr)]
        for node in sorted(nodes, key=lambda place: (place.lineno, place.col_offset)):
            match node:
                case ast.Compare(ops=ops):
                    for at, op in enumerate(ops):
                        if self._is_old(op):
                            yield lambda ops=ops, at=at: ops.__setitem__(at, self._made())  # type: ignore[misc]
                case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.UnaryOp(op=op) if self._is_old(op):
                    yield lambda node=node: setattr(node, "op", self._made())  # type: ignore[misc]
                case ast.Attribute(attr=name) if name == self.old:
                    yield lambda node=node: setattr(node, "attr", self.new)  # type: ignore[misc]
                case ast.Name(id=name) if name == self.old:
                    yield lambda node=node: setattr(node, "id", self.new)  # type: ignore[misc]

    def _is_old(self, op: ast.AST) -> bool:
        return not isinstance(self.old, str) and isinstance(op, self.old)

    def _made(self) -> ast.AST:
        assert not isinstance(self.new, str)
        return self.new()


@dataclass(frozen=True, slots=True)
class Without:
    """The function no longer calls this, where the call is a separate statement."""

    call: str

    def apply(self, tree: ast.AST) -> bool:
        for node in ast.walk(tree):
            for at, statement in enumerate(getattr(node, "body", [])):
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                    called = statement.value.func
                    if isinstance(called, ast.Attribute) and called.attr == self.call:
                        node.body[at] = ast.copy_location(ast.Pass(), statement)  # type: ignore[attr-defined]
                        return True
        return False


@dataclass(frozen=True, slots=True)
class Say:
    """One text for another."""

    old: str
    new: str

    def apply(self, tree: ast.AST) -> bool:
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value == self.old:
                node.value = self.new
                return True
        return False


@dataclass(frozen=True, slots=True)
class Instead:
    """Another function, which is compiled as if it stood in the module of the first one."""

    function: Callable[..., Any]

    def apply(self, tree: ast.AST) -> bool:
        (other,) = ast.parse(textwrap.dedent(inspect.getsource(self.function))).body
        (own,) = tree.body  # type: ignore[attr-defined]
        other.name = own.name  # type: ignore[attr-defined]
        tree.body = [other]  # type: ignore[attr-defined]
        return isinstance(other, type(own))


Edit: TypeAlias = Swap | Without | Say | Instead


def plant(package: str, function: str, edit: Edit) -> None:
    """
    Raises:
        LookupError: the package has not exactly one such function, or nothing in it fits the edit.
    """
    found = find(package, function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(found)))
    if not edit.apply(tree):
        raise LookupError(f"{package}: {function}: nothing in it is {edit}")
    flags = found.__code__.co_flags & annotations.compiler_flag  # as in its module
    code = compile(ast.fix_missing_locations(tree), "<mutant>", "exec", flags)
    found.__code__ = _inner(code, found.__name__)


def find(package: str, function: str) -> FunctionType:
    """A plain function, a method, a class method or a property, in any module of the package.

    Modules may move within the package. `Class.name` is a method; `name` is a function of a module,
    or, where there is none, a method of any class.
    """
    owner, _, name = function.rpartition(".")
    found: dict[str, list[Any]] = {"function": [], "method": []}
    for module in _modules(package):
        own = [member for member in vars(module).values() if _is_of(member, module)]
        classes = [
            member for member in own if inspect.isclass(member) and owner in ("", member.__name__)
        ]
        found["method"] += [vars(member)[name] for member in classes if name in vars(member)]
        found["function"] += [
            member for member in own if member is vars(module).get(name) and not owner
        ]
    fitting = found["function"] or found["method"]
    if len(fitting) != 1:
        raise LookupError(f"{package}: {len(fitting)} functions are named {function}")
    one = fitting[0]
    made: Any = one.fget if isinstance(one, property) else getattr(one, "__func__", one)
    one = inspect.unwrap(made)
    if not isinstance(one, FunctionType) or one.__closure__:
        raise LookupError(f"{package}: {function}: is no plain function")
    return one


def _modules(package: str) -> Iterator[ModuleType]:
    module = importlib.import_module(package)
    yield module
    for at in pkgutil.walk_packages(getattr(module, "__path__", []), f"{package}."):
        yield importlib.import_module(at.name)


def _is_of(one: object, module: ModuleType) -> bool:
    return getattr(one, "__module__", None) == module.__name__


def _inner(code: CodeType, name: str) -> CodeType:
    return next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
