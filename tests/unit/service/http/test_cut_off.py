"""A replica that NATS does not answer asks the others for its cells, over real listeners."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from frd.service.http.peers.client import PeerClient
from frd.service.http.peers.questions import CutOff
from tests.unit.service.http.three import token_file
from tests.world.http_cluster import PLAIN, Cluster, cluster


def taken_from(made: Cluster, *, connected: bool = False) -> dict[int, str]:
    """The cells that frd-0 learns to have lost, and where their agents should go. `connected`: NATS
    answers frd-0."""
    member, taken = made.members["frd-0"], dict[int, str]()
    state = member.service.state.cluster
    assert state is not None
    view = replace(state.view, connected=connected)
    client = PeerClient(PLAIN)
    cut_off = CutOff(client, lambda: view, lambda: member.cells, taken.__setitem__)
    made.run(cut_off.look())
    made.run(client.close())
    return taken


def test_a_replica_that_is_cut_off_learns_who_has_its_cells(tmp_path: Path) -> None:
    """NATS does not answer one replica, and answers the others, of which one has taken two of its
    cells over: the agents of those go there. The question needs no token, and while NATS answers
    there is none. A supervisor who asks for readiness does not learn which cells a replica has."""
    with cluster(tmp_path, {}, token_file=token_file(tmp_path)) as made:
        assert taken_from(made) == {}
        other = made.members["frd-1"]
        other.cells |= {3, 7}
        other.asked.clear()
        assert taken_from(made, connected=True) == {}
        assert not other.asked
        assert taken_from(made) == {3: "frd-1:9373", 7: "frd-1:9373"}
        assert "frd-cells" not in made.ask("frd-1", "/-/ready").headers


def test_all_keep_what_they_have_while_nats_answers_none(tmp_path: Path) -> None:
    """NATS answers no replica, and two of them have one cell: the older owner cannot know which it
    is, and keeps it. A replica that does not answer at all changes nothing."""
    with cluster(tmp_path, {}) as made:
        made.members["frd-1"].cells |= {3}
        made.show(made.urls(), connected=False)
        made.stop("frd-2")
        assert taken_from(made) == {}
        asked = [(method, target) for method, target, _ in made.members["frd-1"].asked]
        assert asked == [("GET", "/-/ready")]
