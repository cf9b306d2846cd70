"""Values that are made when they are first read: of 98,304 ranks, mostly a few are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")


def once(compute: Callable[[], T]) -> Callable[[], T]:
    """Computes when it is first called, and returns that from then on. `functools.cache` does so
    too, but to make one takes longer than most ticks leave for it."""
    found: list[T] = []

    def value() -> T:
        if not found:
            found.append(compute())
        return found[0]

    return value


class MadeOnce(Sequence[T], Generic[T]):
    """An immutable sequence that is made, as a whole, when it is first read."""

    def __init__(self, make: Callable[[], Sequence[T]]) -> None:
        self._made = once(make)

    def __len__(self) -> int:
        return len(self._made())

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[T]: ...
    def __getitem__(self, at: int | slice) -> T | Sequence[T]:
        return self._made()[at]

    def __iter__(self) -> Iterator[T]:
        return iter(self._made())


class LazySequence(Sequence[T], Generic[T]):
    """An immutable sequence whose items are made when they are asked for."""

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        if isinstance(at, slice):
            return [self._make(i) for i in range(*at.indices(self._count))]
        if not -self._count <= at < self._count:
            raise IndexError(at)
        return self._make(at % self._count)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as of a list
