"""Strongly connected components, and nothing else.

Tarjan's algorithm (SIAM J. Comput. 1(2), 1972) without recursion, because a chain of waiting may
be as long as a job has ranks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

N = TypeVar("N", bound=Hashable)


def components(edges: Mapping[N, Sequence[N]]) -> list[list[N]]:
    """The strongly connected components, each after all that it leads to.

    Every node is a key of `edges`; nodes that only receive have an empty sequence.
    """
    index: dict[N, int] = {}
    low: dict[N, int] = {}
    on_stack: set[N] = set()
    stack: list[N] = []
    found: list[list[N]] = []

    def enter(node: N) -> tuple[N, Iterator[N]]:
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        return node, iter(edges[node])

    for root in edges:
        if root in index:
            continue
        work = [enter(root)]
        while work:
            node, rest = work[-1]
            for target in rest:
                if target not in index:
                    work.append(enter(target))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    members = [stack.pop()]
                    while members[-1] != node:
                        members.append(stack.pop())
                    on_stack.difference_update(members)
                    found.append(members)
    return found
