"""First causes of hangs in sends and receives: batches, pairs that do not match, early sends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from frd.model import Confidence, Kind, Reason
from frd.offline.analysis.analyze import Analysis, analyze
from tests.world.traces import Folder, Row

ALL_REDUCE = Row("nccl:all_reduce", 1, at=1, completed_at=2)
BOTH = {0: Reason.MISMATCH, 1: Reason.MISMATCH}


def op(name: str, *size: int, batch: int = 0, at: float = 4_000, done: bool = False) -> Row:
    state, shape = "completed" if done else "scheduled", (size or (4,),)
    return Row(
        f"nccl:{name}", 1, at=at, state=state, ins=shape, outs=shape, p2p=True, p2p_seq=batch
    )


def batch(*names: str, number: int = 1) -> list[Row]:
    """Ops of one call, and the entry that closes it."""
    return [op(name, batch=number) for name in (*names, "coalesced")]


def hang(*ranks: list[Row]) -> Analysis:
    folder = Folder().group("0", range(len(ranks)))
    for rank, rows in enumerate(ranks):
        folder.rank(rank, replace(ALL_REDUCE), *rows)
    return analyze(folder.trace())


def suspects(analysis: Analysis) -> dict[int, Reason]:
    (finding,) = analysis.findings
    return {suspect.rank: suspect.reason for suspect in finding.suspects}


def is_network(analysis: Analysis) -> bool:
    (finding,) = analysis.findings
    return not finding.suspects and finding.reason is Reason.NETWORK_OR_DEVICE


# -- what a rank waits in -----------------------------------------------------------------------


def test_a_batch_waits_in_each_of_its_ops() -> None:
    """Rank 2 posted neither its receive nor its send; the batch of rank 1 starts with the receive
    that rank 0 serves."""
    analysis = hang(batch("send 0->1"), batch("recv 1<-0", "send 1->2"), [], batch("recv 3<-2"))
    assert suspects(analysis) == {2: Reason.CPU_STUCK}
    assert analysis.findings[0].victims == (0, 1, 3)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (["send 0->1", "send 0->1", "recv 0<-1"], ["recv 1<-0", "recv 1<-0"]),
        (["send 0->1", "send 0->1"], ["recv 1<-0"]),
        (["send 0->1", "recv 0<-1"], ["recv 1<-0"]),
        (["recv 0<-1"], ["send 1->0", "send 1->0"]),
    ],
)
def test_batches_that_do_not_fit_each_other(mine: list[str], theirs: list[str]) -> None:
    """One batch has an op too many, or the other one too few: either rank may be wrong."""
    analysis = hang(batch(*mine), batch(*theirs))
    assert suspects(analysis) == {0: Reason.ORDER, 1: Reason.ORDER}
    assert {s.confidence for s in analysis.findings[0].suspects} == {Confidence.MEDIUM}


def done(rows: list[Row]) -> list[Row]:
    return [*rows[:-1], replace(rows[-1], state="completed")]


@pytest.mark.parametrize("turn", [1, -1])
def test_a_batch_does_not_wait_for_a_peer_that_has_served_it(turn: int) -> None:
    """A ring in which rank 2 posts nothing: the batch of rank 0 is over, so those of its neighbours
    wait for their other ends only. Batches end on each rank by themselves."""
    ring = [[f"send {r}->{(r + 1) % 4}", f"recv {r}<-{(r - 1) % 4}"][::turn] for r in range(4)]
    assert suspects(hang(done(batch(*ring[0])), batch(*ring[1]), [], batch(*ring[3]))) == {
        2: Reason.CPU_STUCK
    }


def test_a_reset_recorder_does_not_count_what_was_before() -> None:
    """The recorder of rank 1 was reset: its first receive is not the first of the channel, so it is
    not the one that rank 0 has served."""
    analysis = hang([op("send 0->1", batch=1, done=True)], [op("recv 1<-0", batch=9)])
    assert suspects(analysis) == {0: Reason.CPU_STUCK}


@pytest.mark.parametrize("posted", [1, 2])
def test_single_ops_wait_for_themselves_only(posted: int) -> None:
    """Ranks 0 and 1 exchange without batches: rank 1 sends when it has received. Nothing arrives,
    and rank 0's receive has no send yet: no rank is at fault."""
    mine = [op("send 0->1", batch=at + 1, at=4_000 + at) for at in range(posted)]
    analysis = hang([*mine, op("recv 0<-1", batch=9, at=4_010)], [op("recv 1<-0", batch=1)])
    assert is_network(analysis)


def test_a_ring_of_batches_that_are_all_matched() -> None:
    """Each of three ranks sends to the next and receives from the one before; nothing moves."""
    ring = [batch(f"send {r}->{(r + 1) % 3}", f"recv {r}<-{(r + 2) % 3}") for r in range(3)]
    analysis = hang(*ring)
    assert is_network(analysis)
    assert analysis.findings[0].victims == (0, 1, 2)


def test_a_ring_of_batches_behind_a_collective() -> None:
    """Rank 3 is idle. Rank 2 waits for it in an all_reduce that it entered before its batch, which
    holds up the batches of ranks 0 and 1."""
    ring = [batch(f"send {r}->{(r + 1) % 3}", f"recv {r}<-{(r + 2) % 3}") for r in range(3)]
    ring[2].insert(0, Row("nccl:all_reduce", 1, "1", at=3_990, state="scheduled"))
    folder = Folder().group("0", range(3)).group("1", [2, 3])
    for rank, rows in enumerate(ring):
        folder.rank(rank, replace(ALL_REDUCE), *rows)
    analysis = analyze(folder.rank(3).trace())
    assert suspects(analysis) == {3: Reason.CPU_STUCK}


def test_a_pair_that_is_stuck_looks_at_what_its_ranks_posted_after_it() -> None:
    """Without batches: the pair of ranks 0 and 1 is in flight at both ends, and rank 2 has not
    posted the receive of rank 1's next send."""
    analysis = hang(
        [op("send 0->1", batch=1)],
        [op("recv 1<-0", batch=1), op("send 1->2", batch=2, at=4_001)],
        [],
    )
    assert suspects(analysis) == {2: Reason.CPU_STUCK}


# -- pairs that do not match ----------------------------------------------------------------------


def test_a_receive_that_is_larger_than_its_send() -> None:
    """Rank 1 waits for more than rank 0 sends: of two, either may be wrong."""
    analysis = hang([op("send 0->1", 1)], [op("recv 1<-0", 3)])
    assert suspects(analysis) == BOTH
    (finding,) = analysis.findings
    assert finding.kind is Kind.MISMATCH
    assert {s.confidence for s in finding.suspects} == {Confidence.MEDIUM}
    assert "Rank 1 receives [[3]] where rank 0 sends [[1]]" in finding.summary


def test_sizes_that_differ_within_batches() -> None:
    """The second op of rank 0's batch is smaller than what rank 1 receives; the ring of three is
    held up by it."""
    ring = [batch(f"send {r}->{(r + 1) % 3}", f"recv {r}<-{(r + 2) % 3}") for r in range(3)]
    ring[0][0] = op("send 0->1", 2, 8, batch=1)
    assert suspects(hang(*ring)) == BOTH


def test_another_dtype() -> None:
    """The sizes are the same, the dtypes are not."""
    receive = replace(op("recv 1<-0"), out_dtypes=("Half",))
    analysis = hang([op("send 0->1")], [receive])
    assert suspects(analysis) == BOTH
    assert "receives float16 where rank 0 sends float32" in analysis.findings[0].summary


@pytest.mark.parametrize("lacking", [{"ins": ()}, {"in_dtypes": ()}, {"outs": ((9,),)}])
def test_what_a_send_does_not_say_is_not_compared(lacking: dict[str, Any]) -> None:
    """A recorder without the input of sends, or that writes something else as their output; and a
    receive of another shape with as many elements."""
    send = replace(op("send 0->1", 2, 3), **lacking)
    assert is_network(hang([send], [op("recv 1<-0", 6)]))


def test_a_receive_from_any_source_has_a_known_sender_if_only_one_is_left() -> None:
    """Ranks 0 and 2 send to rank 1, which has a receive from rank 2 and one from any source."""
    receives = [op("recv 1<-?", 3), op("recv 1<-2", at=4_001)]
    analysis = hang([op("send 0->1", 1)], receives, [op("send 2->1")])
    assert suspects(analysis) == BOTH
    analysis = hang([op("send 0->1", 1)], receives[:1], [op("send 2->1", 1)])
    assert is_network(analysis), "it is unknown which send it takes"


def test_a_send_that_completed_early_shifts_what_is_in_flight() -> None:
    """Rank 0 sends shapes and data in turn. The last shape went out, and its data waits; rank 1's
    device hangs in the receive of the shape. The send and the receive in flight are no pair."""
    sent = [op("send 0->1", size, at=at, done=True) for at, size in enumerate([1, 4, 1])]
    received = [op("recv 1<-0", size, at=at, done=True) for at, size in enumerate([1, 4])]
    assert is_network(hang([*sent, op("send 0->1", 4)], [*received, op("recv 1<-0", 1)]))
    got_it = op("recv 1<-0", 1, at=3, done=True)
    aligned = hang([*sent, op("send 0->1", 4)], [*received, got_it, op("recv 1<-0", 1)])
    assert suspects(aligned) == BOTH


def test_sends_pair_in_order_of_posting() -> None:
    """Each rank has two ops in flight; with the sizes in the same order, all pairs match."""
    sends = [op("send 0->1", size, batch=size, at=4_000 + size) for size in (1, 2)]
    receives = [op("recv 1<-0", size, batch=size, at=4_000 + size) for size in (1, 2)]
    assert is_network(hang(sends, receives))
    assert suspects(hang(sends, [op("recv 1<-0", 2), op("recv 1<-0", 1)])) == BOTH
    assert suspects(hang(sends, [op("recv 1<-0", 2)])) == BOTH, "the first of each"


def test_ops_that_are_not_counted_are_not_compared() -> None:
    """The ring of rank 1 has lost its first record: how many receives came before is unknown."""
    folder = Folder().group("0", range(2))
    folder.rank(0, replace(ALL_REDUCE), op("send 0->1", 1))
    first = replace(ALL_REDUCE, record_id=1)
    folder.rank(1, first, replace(op("recv 1<-0", 3), record_id=2))
    assert is_network(analyze(folder.trace()))


def test_a_rank_that_is_absent_elsewhere_is_named_too() -> None:
    """Ranks 0 and 1 disagree, and rank 2, which rank 1's batch needs as well, never came."""
    analysis = hang(
        [op("send 0->1", 1, batch=1)],
        [op("recv 1<-0", 3, batch=1), op("send 1->2", batch=1)],
        [],
    )
    assert suspects(analysis) == {**BOTH, 2: Reason.CPU_STUCK}


def test_a_pair_that_completes_is_no_finding() -> None:
    """NCCL takes a receive that is larger than its send, if both end."""
    analysis = hang([op("send 0->1", 1, done=True)], [op("recv 1<-0", 3, done=True)])
    assert not analysis.findings
