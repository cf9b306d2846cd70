"""Times that are written into the engine: few, in one place, each with the reason for its value.

A *constant of time* is a name of a module for a number of seconds or nanoseconds. Each is a place
where a verdict may change when a job is slower or faster than those that were thought of, so there
are few; what users may set is in `frd.engine.policy` instead and does not count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[3] / "frd/engine"
MODULES = [path for path in sorted(ENGINE.rglob("*.py")) if path.name != "policy.py"]
MOST = 46
"""Constants of time in the engine; seven are of questions to ranks and their answers, and five
were keys of the policy that no site had to set."""
MEMORY = [
    *sorted((ENGINE / "memory").rglob("*.py")),
    *(ENGINE.parent / "offline/memory" / name for name in ("analysis.py", "analyze.py", "feed.py")),
]
"""What decides about memory, live and of files."""
MOST_OF_MEMORY = 31
"""Numbers there; a verdict may hang on each."""
UNITS = {
    *(10.0**digits for digits in (3, 6, 9)),
    *(1 << bits for bits in (10, 20, 30, 40, 50)),
}
"""Nanoseconds, and bytes."""
SECOND = "SECOND"
"""The unit is no constant."""
_A_TIME = re.compile(r"_(ns|us|ms|s)(_PER_[A-Z]+)?$", re.IGNORECASE)
_A_SECOND = 1_000_000_000


@dataclass(frozen=True)
class Constant:
    name: str
    reason: str


def is_number(node: ast.expr) -> bool:
    """A literal that is more than nothing or the smallest step."""
    return (
        isinstance(node, ast.Constant)
        and type(node.value) in (int, float)
        and (node.value not in (0, 1) or (isinstance(node.value, float) and node.value > 0))
    )


def name_of(node: ast.expr) -> str:
    """The last part of a name, an attribute, or the function that is called."""
    match node:
        case ast.Name(name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
            return name
        case ast.Call(func=function):
            return name_of(function)
        case ast.BinOp(left, ast.Mult() | ast.Div() | ast.FloorDiv(), right):
            return "_ns" if is_unit(left) or is_unit(right) else name_of(left) or name_of(right)
        case _:
            return ""


def is_time(node: ast.expr) -> bool:
    return bool(_A_TIME.search(name_of(node)))


def is_unit(node: ast.expr) -> bool:
    return name_of(node) == SECOND or (isinstance(node, ast.Constant) and node.value == _A_SECOND)


def is_multiple(node: ast.expr) -> bool:
    """A number, and the unit."""
    parts = [part for part in ast.walk(node) if isinstance(part, ast.expr)]
    numbers = [part for part in parts if is_number(part) and not is_unit(part)]
    return bool(numbers) and any(map(is_unit, parts))


def constants(tree: ast.Module) -> Iterator[Constant]:
    """The constants of time of a module, each with the docstring below it."""
    for statement, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        match statement:
            case ast.Assign(targets=[ast.Name(name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(name), value=ast.expr() as value):
                pass
            case _:
                continue
        if name != SECOND and (_A_TIME.search(name) or is_multiple(value)):
            match after:
                case ast.Expr(ast.Constant(str(text))):
                    yield Constant(name, text)
                case _:
                    yield Constant(name, "")


def literals(tree: ast.Module) -> Iterator[int]:
    """The lines with a time as a literal: in a function, or as the default of a parameter.

    That is a number of seconds (``30 * SECOND``), or a number that is added to a time, compared
    with one, chosen instead of one, or passed as one.
    """
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(args=args):
                named = [*args.posonlyargs, *args.args][-len(args.defaults) :], args.defaults
                only = args.kwonlyargs, args.kw_defaults
                pairs = [pair for some in (named, only) for pair in zip(*some, strict=False)]
                found = [d for arg, d in pairs if d and is_number(d) and _A_TIME.search(arg.arg)]
                if found:
                    yield node.lineno
                for part in (part for line in node.body for part in ast.walk(line)):
                    if isinstance(part, ast.expr | ast.keyword | ast.Assign) and is_literal(part):
                        yield part.lineno


def is_literal(node: ast.AST) -> bool:
    match node:
        case ast.BinOp(left, ast.Mult() | ast.Div() | ast.FloorDiv(), right):
            pair = (left, right)
            return any(map(is_unit, pair)) and any(is_number(n) and not is_unit(n) for n in pair)
        case ast.BinOp(left, ast.Add() | ast.Sub(), right):
            operands = [left, right]
        case ast.Compare(left, comparators=others):
            operands = [left, *others]
        case ast.Call(ast.Name("min" | "max"), args):
            operands = args
        case ast.keyword(arg=str(name), value=value):
            return bool(_A_TIME.search(name)) and is_number(value)
        case ast.Assign(targets=[target], value=value):
            return is_time(target) and is_number(value)
        case _:
            return False
    return any(map(is_number, operands)) and any(map(is_time, operands))


def numbers(tree: ast.AST) -> Iterator[float]:
    """Literals but 0, 1 and 2, and those that convert units."""
    match tree:
        case ast.BinOp(ast.Constant(int(left)), ast.LShift(), ast.Constant(int(right))) if (
            left << right in UNITS
        ):
            return
        case ast.BinOp(ast.Constant(int(left)), ast.Pow(), ast.Constant(int(right))) if (
            left**right in UNITS
        ):
            return
        case ast.Constant(int() | float() as value) if value not in {0, 1, 2, *UNITS}:
            yield value
        case _:
            for part in ast.iter_child_nodes(tree):
                yield from numbers(part)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def test_there_are_few_constants_of_time() -> None:
    """Every time that has a name, over all modules of the engine."""
    found = [constant for path in MODULES for constant in constants(parsed(path))]
    assert len(found) <= MOST, [constant.name for constant in found]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ENGINE)))
def test_each_constant_of_time_has_its_reason(path: Path) -> None:
    """A docstring below the name, and no time without a name."""
    tree = parsed(path)
    unexplained = [constant.name for constant in constants(tree) if not constant.reason]
    assert not unexplained
    assert not list(literals(tree))


def test_there_are_few_numbers_in_what_decides_about_memory() -> None:
    """Over all of its modules; minutes and hours in texts for people are units."""
    found = {path.name: list(numbers(parsed(path))) for path in MEMORY}
    found["text.py"] = [number for number in found["text.py"] if number not in (60, 3600)]
    assert sum(map(len, found.values())) <= MOST_OF_MEMORY, found
