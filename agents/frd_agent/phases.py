"""Phases of a training program: `with frd_agent.phase("eval"):`, read by the tap.

It runs in the threads of the program, so it does no I/O, takes no lock, imports nothing heavy and
never raises. A phase costs a dictionary entry when it begins and when it ends; without a tap in the
process it costs a look at `sys.modules`. The tap's thread reads the open phases and those that have
ended on its ordinary ticks (`read`).

A phase that is shorter than `SHORTEST_NS` is not read: a program that changes its phase a thousand
times a second publishes nothing but the phases around them. What is kept is bounded: `MAX_DEPTH`
phases inside each other, `MAX_THREADS` threads and the main thread, `MAX_ENDED` phases that have
ended. Of a phase that begins beyond these limits only a count is kept, so that its end ends no
other phase.

Only errors of the interpreter itself are caught. A signal handler may raise in the middle of a
call, and its exception is the program's own: a timeout must reach the program.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast, overload

MAX_NAME = 64
"""Characters of a name."""
MAX_DEPTH = 8
MAX_THREADS = 64
MAX_ENDED = 32
MAX_BEYOND = 1_024
"""Pairs of a thread and a phase whose entries beyond a limit are counted."""
SHORTEST_NS = 500_000_000

_TAP = "_frd_tap"
"""The tap's name in `sys.modules`, however it was loaded."""
_COROUTINE = 0x80 | 0x100
"""Flags of the code of `async def` functions, and of generators that `types.coroutine` marks."""

Scope = tuple[tuple[str, ...], int, int]
"""Names, outermost first; since and until, CLOCK_REALTIME in ns; until is 0 while it goes on."""
_Open = tuple["Phase", str, int]

_stacks: dict[int, tuple[_Open, ...]] = {}
"""The open phases by thread, outermost first. Tuples are replaced, not changed: a reader in another
thread sees the phases before or after a change."""
_ended: deque[tuple[int, Scope]] = deque(maxlen=MAX_ENDED)
"""With the thread, in the order of their ends."""
_beyond: dict[tuple[int, int], int] = {}
"""How often a phase was entered beyond a limit and not left yet, by thread and id of the phase."""
_modules = sys.modules
_get_ident = sys.modules["_thread"].get_ident
_time_ns = time.time_ns

F = TypeVar("F", bound=Callable[..., Any])


class Phase:
    """A phase of the program: a context manager, and a decorator of functions.

    One object may be entered again and again, inside itself and by several threads. `name` may be
    anything: what is no string is shown as `str` shows it.
    """

    __slots__ = ("_name",)

    def __init__(self, name: object) -> None:
        # Only exact strings are kept: the tap's thread must destroy no object of the program.
        self._name = name if type(name) is str else _text_of(name)

    def __enter__(self) -> Phase:
        if _TAP in _modules and not _is_compiling():
            _begin(self)
        return self

    def __exit__(self, *_: object) -> None:
        if _TAP in _modules and not _is_compiling() and (_stacks or _beyond):
            _end(self)

    def __call__(self, function: F) -> F:
        """The function, with each of its calls in this phase."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _is_compiling():
                return function(*args, **kwargs)
            with self:
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await function(*args, **kwargs)

        flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
        wrapped: Any = call_async if flags & _COROUTINE else call
        return cast("F", wrapped)


def _is_compiling() -> bool:
    """torch.compile traces this code: it replaces the last call by True, and leaves the phase out.

    It could not trace the rest: it would break the graph or, with fullgraph, refuse the program.
    """
    is_compiling: Any = getattr(_modules.get("torch.compiler"), "is_compiling", None)
    return is_compiling is not None and is_compiling() is True


def _text_of(name: object) -> str:
    try:
        return str.__str__(str(name)[:MAX_NAME])
    except Exception:  # `str` of a user's object is a user's code
        return type(name).__name__


def _begin(phase: Phase) -> None:
    try:
        thread = _get_ident()
        stack = _stacks.get(thread, ())
        if len(stack) < MAX_DEPTH and (stack or len(_stacks) < MAX_THREADS or _is_main(thread)):
            _stacks[thread] = (*stack, (phase, phase._name, _time_ns()))
        elif (entries := _beyond.get((thread, id(phase)), 0)) or len(_beyond) < MAX_BEYOND:
            _beyond[thread, id(phase)] = entries + 1
    except (MemoryError, RecursionError):  # the program runs on
        return


def _is_main(thread: int) -> bool:
    ident: int | None = _modules["threading"].main_thread().ident  # the tap has imported it
    return thread == ident


def _end(phase: Phase) -> None:
    # No more frames than `_begin`: near the limit of recursion, what has begun can also end.
    try:
        thread = _get_ident()
        if _beyond and (entries := _beyond.pop((thread, id(phase)), 0)):
            if entries > 1:
                _beyond[thread, id(phase)] = entries - 1
            return
        stack = _stacks.get(thread, ())
        if not stack or stack[-1][0] is not phase:
            thread, stack = _around(phase, thread)
        if not stack:
            return  # it began before there was a tap, or beyond a limit
        *outer, (_, _, since_ns) = stack
        rest = tuple(outer) + _stacks.get(thread, ())[len(stack) :]
        if rest:
            _stacks[thread] = rest
        else:
            _stacks.pop(thread, None)
        until_ns = _time_ns()
        if until_ns - since_ns >= SHORTEST_NS:
            _ended.append((thread, (_names(stack), since_ns, until_ns)))
    except (MemoryError, RecursionError):
        return


def _around(phase: Phase, thread: int) -> tuple[int, tuple[_Open, ...]]:
    """The thread that has entered `phase`, and its phases up to that one. Phases of concurrent
    tasks do not end in the order of their beginnings, and a generator may end in another thread.
    """
    for ident in (thread, *list(_stacks)):
        stack = _stacks.get(ident, ())
        for depth in range(len(stack), 0, -1):
            if stack[depth - 1][0] is phase:
                return ident, stack[:depth]
    return thread, ()


def _names(stack: tuple[_Open, ...]) -> tuple[str, ...]:
    return tuple([name[:MAX_NAME] for _, name, _ in stack])


def read(main: int) -> list[Scope]:
    """The phases of the thread `main`, those that have ended first, then the open ones. If it has
    none, those of the thread that has entered one last."""
    stacks, ended, now_ns = dict(_stacks), list(_ended.copy()), _time_ns()
    if main not in stacks and all(thread != main for thread, _ in ended):
        begun = [(stack[-1][2], thread) for thread, stack in stacks.items()]
        begun += [(since_ns, thread) for thread, (_, since_ns, _) in ended]
        main = max(begun, default=(0, main))[1]
    stack = stacks.get(main, ())
    return [scope for thread, scope in ended if thread == main] + [
        (_names(stack[: depth + 1]), since_ns, 0)
        for depth, (_, _, since_ns) in enumerate(stack)
        if now_ns - since_ns >= SHORTEST_NS
    ]


def _forget() -> None:
    """In a forked child: the phases are those of its parent."""
    _stacks.clear()
    _beyond.clear()
    _ended.clear()


@overload
def phase(name: F) -> F: ...  # type: ignore[overload-overlap]  # a function is an object, too
@overload
def phase(name: object) -> Phase: ...
def phase(name: Any) -> Any:
    """A phase of that name. As a decorator without parentheses, the function's own name."""
    return Phase(name.__name__)(name) if type(name) is FunctionType else Phase(name)


os.register_at_fork(after_in_child=_forget)
