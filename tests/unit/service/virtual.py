"""Tests whose time passes only when all tasks wait."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from tests.world.virtual_time import run_virtual

P = ParamSpec("P")


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run the coroutine function `test` in virtual time."""

    @functools.wraps(test)
    def run(*args: P.args, **fixtures: P.kwargs) -> None:
        run_virtual(test(*args, **fixtures))

    return run
