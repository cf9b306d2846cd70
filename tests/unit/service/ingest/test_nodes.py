"""Which agents are missing: those that hosted a rank that no other agent has taken over."""

from __future__ import annotations

from frd.model import AlignedNs, AttemptKey, NodeNs, NodeRawNs
from frd.service.clocks.agent_clocks import AgentClock, guess
from frd.service.clocks.real_time import RealTime
from frd.service.ingest.nodes import Nodes
from frd.wire.messages import PROTOCOL, Hello

KEY = AttemptKey("job", 0)
NOW = AlignedNs(1_790_000_000_000_000_000)


def greeting(key: tuple[str, str]) -> Hello:
    return Hello(PROTOCOL, "0", f"node {key[0]}", *key, NodeNs(NOW), NodeRawNs(1))


class Agents:
    """Streams come and go; agent `s` of host `h` is written ``h/s``."""

    def __init__(self, **ranks: list[int]) -> None:
        """An agent on its own host for each of `ranks`."""
        self.nodes = Nodes()
        self._streams = 0
        self._open: dict[str, int] = {}
        for host, hosted in ranks.items():
            self.connect(f"{host}/1", hosted)

    def connect(self, agent: str, ranks: list[int], of: AttemptKey = KEY) -> None:
        self._streams += 1
        self._open[agent] = self._streams
        key = self.key(agent)
        clock = AgentClock(key[0], guess(NodeNs(NOW), NOW), RealTime())
        now = AlignedNs(NOW + self._streams)
        self.nodes.connected(key, greeting(key), clock, self._streams, now)
        self.nodes.heard(key, now)
        self.nodes.hosts(key, [(of, rank) for rank in ranks])

    def leave(self, agent: str) -> None:
        self.nodes.disconnected(self.key(agent), self._open.pop(agent))

    @staticmethod
    def key(agent: str) -> tuple[str, str]:
        host, _, session = agent.partition("/")
        return host, session

    @property
    def listed(self) -> list[tuple[str, bool, tuple[int, ...]]]:
        views = self.nodes.views(NOW, 5.0)
        return sorted((v.boot_id, v.connected, v.ranks.get(KEY, ())) for v in views)


def test_a_lost_agent_stays_listed() -> None:
    """One of two agents is gone: it is listed until the attempt is forgotten; one that hosted no
    rank is not remembered."""
    agents = Agents(a=[0, 1], b=[2, 3], c=[])
    agents.leave("b/1")
    agents.leave("c/1")
    assert agents.listed == [("a", True, (0, 1)), ("b", False, (2, 3))]
    agents.nodes.keep(set())
    assert agents.listed == [("a", True, ())]


def test_a_node_whose_ranks_moved_is_not_missing() -> None:
    """A node dies, and its ranks are started on another one in the same attempt."""
    agents = Agents(a=[0, 1], b=[2, 3])
    agents.leave("b/1")
    agents.connect("c/1", [2])
    assert agents.listed == [("a", True, (0, 1)), ("b", False, (3,)), ("c", True, (2,))]
    agents.nodes.hosts(("c", "1"), [(KEY, 3)])
    assert agents.listed == [("a", True, (0, 1)), ("c", True, (2, 3))]


def test_two_agents_of_one_host_are_two() -> None:
    """Each watches its own ranks; when one goes, it is missing though the other is there. Both have
    gone and come back in the other order: each has its own ranks again."""
    agents = Agents(a=[0, 1])
    agents.connect("a/2", [2, 3])
    assert agents.listed == [("a", True, (0, 1)), ("a", True, (2, 3))]
    agents.leave("a/2")
    assert agents.listed == [("a", False, (2, 3)), ("a", True, (0, 1))]
    agents.leave("a/1")
    agents.connect("a/3", [0, 1])
    agents.connect("a/4", [2, 3])
    assert agents.listed == [("a", True, (0, 1)), ("a", True, (2, 3))]


def test_a_restarted_agent_has_the_ranks_that_it_finds() -> None:
    """The agent restarts and reports one of its ranks: of the other one it says nothing, so it is
    missing as before."""
    agents = Agents(a=[0, 1], b=[2])
    agents.leave("a/1")
    agents.connect("a/2", [1])
    assert agents.listed == [("a", False, (0,)), ("a", True, (1,)), ("b", True, (2,))]
    agents.nodes.hosts(("a", "2"), [(KEY, 0)])
    assert agents.listed == [("a", True, (0, 1)), ("b", True, (2,))]


def test_a_restart_before_the_old_stream_ends() -> None:
    """The new process connects while the old stream is still open, and reports its ranks."""
    agents = Agents(a=[0, 1], b=[2])
    agents.connect("a/2", [1, 0])
    agents.leave("a/1")
    assert agents.listed == [("a", True, (0, 1)), ("b", True, (2,))]


def test_a_reconnect_is_not_another_agent() -> None:
    """The connection is lost and opened again under the same session."""
    agents = Agents(a=[0])
    agents.leave("a/1")
    agents.connect("a/1", [0])
    agents.nodes.disconnected(("a", "1"), 99)
    assert agents.listed == [("a", True, (0,))]


def test_no_agent_inherits_ranks() -> None:
    """Two jobs share a host. The agent of one is gone: neither an agent that has no rank, nor that
    of the other job, nor one of the same job in another run directory replaces it."""
    agents = Agents(a=[0, 1])
    agents.leave("a/1")
    agents.connect("a/2", [])
    agents.connect("a/3", [0, 1], of=AttemptKey("other", 0))
    agents.connect("a/4", [2])
    assert ("a", False, (0, 1)) in agents.listed
    assert [ranks for _, is_up, ranks in agents.listed if is_up] == [(), (), (2,)]


def test_a_goodbye_of_one_job_is_not_that_of_the_agent() -> None:
    """An agent watches two jobs, each on its stream; one is over, then the agent is killed. The
    last goodbye, and the word that it was asked to stop, are the agent's."""
    agents = Agents(a=[0])
    clock = AgentClock("a", guess(NodeNs(NOW), NOW), RealTime())
    agents.nodes.connected(("a", "1"), greeting(("a", "1")), clock, 77, NOW)
    agents.nodes.said_goodbye(("a", "1"), 77)
    agents.nodes.disconnected(("a", "1"), 77)
    agents.leave("a/1")
    assert [view.stopped for view in agents.nodes.views(NOW, 5.0)] == [False]
    agents.connect("a/1", [0])
    agents.nodes.asked_to_stop(("a", "1"))
    agents.leave("a/1")
    assert [view.stopped for view in agents.nodes.views(NOW, 5.0)] == [True]


def test_goodbyes_of_all_streams_are_the_agents() -> None:
    """An agent that says only goodbye ends both of its streams before either is closed."""
    agents = Agents(a=[0])
    clock = AgentClock("a", guess(NodeNs(NOW), NOW), RealTime())
    agents.nodes.connected(("a", "1"), greeting(("a", "1")), clock, 77, NOW)
    agents.nodes.said_goodbye(("a", "1"), 77)
    assert [view.stopped for view in agents.nodes.views(NOW, 5.0)] == [False]
    agents.nodes.said_goodbye(("a", "1"), 1)
    assert [view.stopped for view in agents.nodes.views(NOW, 5.0)] == [True]
