"""A policy that is replaced while attempts live: whatever decides by it decides by the new one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from frd.engine.engine import Engine
from frd.engine.policy import Policy
from frd.model import AlignedNs, AttemptKey, GroupInfo, RankInfo, SeriesInfo, SeriesKind

KEY = AttemptKey("job", 0)
T0 = AlignedNs(1_700_000_000_000_000_000)


def other(policy: Policy) -> Policy:
    """A policy of which no value is like before."""
    values = {field.name: getattr(policy, field.name) for field in fields(policy)}
    return replace(policy, **{name: value * 4 for name, value in values.items()})


def engine(policy: Policy) -> Engine:
    """One that knows a job, its ranks, a group and a memory series."""
    made = Engine(policy)
    attempt = made.attempt(KEY, 4, T0)
    for rank in range(4):
        made.rank(attempt, RankInfo(rank, 4, f"n{rank}", f"b{rank}", 10 + rank), T0)
    attempt.group(GroupInfo("0", "default_pg", (0, 1, 2, 3)))
    attempt.memory.series(SeriesInfo(0, SeriesKind.DEVICE_USED, "GPU-0"))
    made.advance(T0)
    return made


def parts(thing: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """All that can be reached from `thing` within frd, numbers and policies."""
    if id(thing) in seen or isinstance(thing, str | bytes | type | count):
        return
    seen.add(id(thing))
    if isinstance(thing, bool | int | float | Policy):
        yield path, thing
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from parts(value, f"{path}[{key}]", seen)
    elif isinstance(thing, list | tuple | set | frozenset):
        for at, value in enumerate(thing):
            yield from parts(value, f"{path}[{at}]", seen)
    elif isinstance(thing, np.ndarray):
        yield path, thing.tolist()
    else:
        names = set(getattr(thing, "__dict__", ()))
        for kind in type(thing).__mro__:
            names |= set(getattr(kind, "__slots__", ()))
        if is_dataclass(thing):
            names |= {field.name for field in fields(thing)}
        for name in sorted(names):
            if hasattr(thing, name):
                yield from parts(getattr(thing, name), f"{path}.{name}", seen)


def known(of: Engine) -> dict[str, Any]:
    return dict(parts(of, "engine", set()))


def test_nothing_is_left_of_the_old_policy() -> None:
    """An engine that adopted a policy is, part for part, one that has had it all along."""
    before = Policy()
    after = other(before)
    adopted = engine(before)
    assert known(adopted) != known(engine(after))
    adopted.adopt(after)
    assert known(adopted) == known(engine(after))
    assert sum(isinstance(value, Policy) for value in known(adopted).values()) == 1
