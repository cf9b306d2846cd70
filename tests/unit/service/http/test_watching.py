"""What is watched is counted, and every reason why a hang could go unnoticed is a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from frd.engine.views import AttemptView, StatusView
from frd.forms import duration_text
from frd.model import AttemptKey, RankState
from frd.service.http.watching_json import watching_json
from frd.service.ingest.job_runs import Refusal
from frd.service.state import NodeView, ServiceState
from tests.world.views import NOW, TRAIN, attempt_view, node_view, rank_view


def attempt(
    states: Sequence[RankState], *, key: AttemptKey = TRAIN, world: int | None = None
) -> AttemptView:
    ranks = [rank_view(rank, state) for rank, state in enumerate(states)]
    over = all(state in (RankState.EXITED, RankState.FINISHED) for state in states)
    return attempt_view(ranks, key=key, world=world, ended=over)


def node(
    name: str, ranks: tuple[int, ...], *, up: bool = True, heard_s: float = 0.4, late: bool = False
) -> NodeView:
    hosts = {TRAIN: ranks} if ranks else {}
    return node_view(name, hosts, connected=up, reporting=up and not late, heard_s=heard_s)


def state(
    attempts: Sequence[AttemptView] = (), nodes: Sequence[NodeView] = (), **others: object
) -> ServiceState:
    made = ServiceState(StatusView(NOW, attempts, ()), nodes, evaluated_at=NOW)
    return replace(made, **others)  # type: ignore[arg-type]


def blind(of: ServiceState, job: str | None = None) -> list[str]:
    found: list[str] = watching_json(of, job=job)["blind"]
    return found


LIVE, FINISHED = RankState.LIVE, RankState.FINISHED


def test_a_watched_job_is_counted() -> None:
    """Two agents, three ranks of which one has finished: nothing is blind."""
    job = attempt([LIVE, RankState.SILENT, FINISHED])
    shown = watching_json(state([job], [node("a", (0, 2)), node("b", (1,), heard_s=2.0)]))
    assert shown == {"jobs": 1, "ranks": 2, "agents": 2, "last_heard_s": 0.4, "blind": []}


def test_ranks_that_are_refused() -> None:
    """There is no room for a job, and another one has the name of a job that runs: each job has its
    sentence."""
    refused = [Refusal("other", 1, "why"), Refusal("train", 8, "another running job has its name")]
    shown = state([attempt([LIVE])], [node("a", (0,))], refused_ranks=refused)
    assert blind(shown) == [
        "other: a rank is not watched: why",
        "train: 8 ranks are not watched: another running job has its name",
    ]
    assert blind(shown, "train") == blind(shown)[1:]


def test_incidents_without_a_finding() -> None:
    """The job has as many findings open as it may."""
    job = replace(attempt([LIVE]), not_opened=900)
    (text,) = blind(state([job], [node("a", (0,))]))
    assert text.startswith("train: 900 more findings are not shown: as many as policy.max_find")


def test_no_agent_at_all() -> None:
    """Before the first agent, after the last one, and a service that has evaluated nothing."""
    (text,) = blind(state())
    assert text.startswith("no agent has connected since the service started: start `frd-agent")
    (text,) = blind(state([attempt([FINISHED])], [node("a", (0,), up=False)]))
    assert text.startswith("no agent is connected: start `frd-agent run`")
    assert blind(state([attempt([FINISHED])], [node("a", (0,), up=False)]), "train") == []
    assert "has not evaluated yet" in blind(state(evaluated_at=None))[0]


def test_an_agent_of_running_ranks_is_gone() -> None:
    """The sentence names job, node, age and ranks; ranks that finished are not named."""
    job = attempt([LIVE, LIVE, LIVE, FINISHED])
    nodes = [node("a", (0,)), node("b", (1, 2, 3), up=False, heard_s=185.0)]
    shown = watching_json(state([job], nodes))
    assert shown["blind"] == [
        "train: the agent on b is gone, last heard 3 min ago, no agent watches ranks 1-2: "
        "it said no goodbye: if the node is up, start `frd-agent run` there"
    ]
    assert (shown["jobs"], shown["ranks"], shown["agents"]) == (1, 1, 1)
    stopped = [nodes[0], replace(nodes[1], stopped=True)]
    assert watching_json(state([job], stopped))["blind"] == [
        "train: the agent on b is stopped, last heard 3 min ago, no agent watches ranks 1-2: "
        "start `frd-agent run` there"
    ]


def test_many_agents_are_one_sentence() -> None:
    """Six agents gone: the first three are named."""
    nodes = [node(f"n{rank}", (rank,), up=False) for rank in range(6)]
    (text,) = blind(state([attempt([LIVE] * 6)], nodes))
    assert text.startswith("train: 6 agents on n0, n1, n2 and 3 more are gone, last heard 0.4 s")
    assert "no agent watches ranks 0-5" in text


def test_an_agent_that_is_silent_or_expected() -> None:
    """Connected but not heard of; configured but never seen; of a job that ended neither counts."""
    nodes = [node("a", (0,)), node("b", (1,), late=True, heard_s=15.0)]
    (text,) = blind(state([attempt([LIVE, LIVE])], nodes))
    assert "the agent on b is silent, last heard 15 s ago, no agent watches rank 1: see" in text
    expected = {"train": 3, "never started": 1}
    shown = blind(state([attempt([LIVE])], [node("a", (0,))], expected_agents=expected))
    assert shown == [
        "train: 1 of 3 expected agents have been seen: start `frd-agent run` there",
    ]
    over = state([attempt([FINISHED])], [node("a", (0,))], expected_agents=expected)
    assert blind(over) == []


def test_ranks_that_have_not_been_seen() -> None:
    """Half of a job starts without frd: the other half is named."""
    (text,) = blind(state([attempt([LIVE, LIVE], world=4)], [node("a", (0, 1))]))
    assert text.startswith("train: ranks 2-3 of 4 have not been seen: do they start with")


def test_one_job_only() -> None:
    """The gone agent of another job is not mentioned for this job."""
    other = attempt([LIVE], key=AttemptKey("other", 0))
    nodes = [node("a", (0,)), replace(node("b", (), up=False), ranks={other.key: (0,)})]
    seen = state([attempt([LIVE]), other], nodes)
    assert blind(seen, "train") == []
    assert len(blind(seen)) == len(blind(seen, "other")) == 1
    shown = watching_json(seen, job="train")
    assert (shown["jobs"], shown["ranks"], shown["agents"]) == (1, 1, 1)


def test_durations() -> None:
    """Two units at most, and no unit that is zero."""
    said = {
        -1: "0.0 s",
        0.44: "0.4 s",
        9.96: "10 s",
        59: "59 s",
        62: "62 s",
        99.7: "2 min",
        3570: "1 h",
    }
    said |= {7500: "2 h 5 min", 86_399: "1 d", 273_600: "3 d 4 h", 200: "3 min"}
    assert {seconds: duration_text(seconds) for seconds in said} == said


OLD = "torch 2.7.0 keeps no record of Gloo: use torch 2.10 or later"


def test_collectives_that_cannot_be_read() -> None:
    """One sentence for each reason, with its ranks, of those that live and that an agent watches;
    of many reasons the most common ones."""
    unread = dict.fromkeys((0, 1, 2, 4, 5), OLD) | {3: "x"}
    job = replace(attempt([LIVE] * 4 + [FINISHED, LIVE]), unread=unread)
    watched = state([job], [node("a", (0, 1, 2, 3, 4)), node("b", (5,), up=False)])
    assert blind(watched)[-2:] == [
        f"train: the collectives of ranks 0-2 cannot be read: {OLD}",
        "train: the collectives of rank 3 cannot be read: x",
    ]
    many = replace(attempt([LIVE] * 6), unread={rank: f"reason {rank}" for rank in range(6)})
    said = blind(state([many], [node("a", tuple(range(6)))]))
    assert said[2:] == [
        "train: the collectives of rank 2 cannot be read: reason 2",
        "train: nor can those of ranks 3-5: `frd status` has the reasons",
    ]
    over = replace(attempt([FINISHED]), unread={0: OLD})
    assert blind(state([over], [node("a", (0,))])) == []
