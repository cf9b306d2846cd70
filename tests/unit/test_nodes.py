"""Which agents are missed: those that hosted a rank nobody else has taken over."""

from __future__ import annotations

from frd.model import AlignedNs, AttemptKey
from frd.service.clocks import Clocks
from frd.service.nodes import Nodes

KEY = AttemptKey("job", 0)
NOW = AlignedNs(1_790_000_000_000_000_000)


def hosting(**ranks: list[int]) -> Nodes:
    """Connected nodes by boot id, each with its ranks; stream i speaks for the i-th."""
    nodes = Nodes(Clocks())
    for stream, (boot_id, hosted) in enumerate(ranks.items()):
        nodes.connected(boot_id, f"node {boot_id}", stream, NOW)
        nodes.hosts(boot_id, [(KEY, rank) for rank in hosted])
    return nodes


def listed(nodes: Nodes) -> dict[str, tuple[int, ...]]:
    return {view.boot_id: view.ranks.get(KEY, ()) for view in nodes.views(NOW, 5.0)}


def test_an_agent_that_vanished_stays_listed_while_its_attempt_is_remembered() -> None:
    """One of two agents is gone: it is missing, until the attempt is forgotten."""
    nodes = hosting(a=[0, 1], b=[2, 3])
    nodes.disconnected("b", 1)
    assert listed(nodes) == {"a": (0, 1), "b": (2, 3)}
    nodes.keep(set())
    assert listed(nodes) == {"a": ()}


def test_a_node_whose_ranks_went_on_elsewhere_is_not_missed() -> None:
    """A node dies, and its ranks are started on another one in the same attempt."""
    nodes = hosting(a=[0, 1], b=[2, 3])
    nodes.disconnected("b", 1)
    nodes.connected("c", "node c", 2, NOW)
    nodes.hosts("c", [(KEY, 2)])
    assert listed(nodes) == {"a": (0, 1), "b": (3,), "c": (2,)}
    nodes.hosts("c", [(KEY, 3)])
    assert listed(nodes) == {"a": (0, 1), "c": (2, 3)}


def test_an_agent_that_hosted_nothing_leaves_nothing() -> None:
    """Whoever connects and goes again under ever new names fills no memory."""
    nodes = hosting(a=[0], b=[])
    nodes.disconnected("b", 1)
    assert listed(nodes) == {"a": (0,)}
