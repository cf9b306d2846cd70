"""Whose clock is how far off in a folder of dumps: given, estimated, or known to be wrong."""

from __future__ import annotations

import pytest

from frd.model import AlignedNs, Kind, RankInfo
from frd.offline.analysis.analyze import analyze
from frd.offline.analysis.clocks import Clocks, clocks_of
from frd.offline.analysis.rows import rows_of
from tests.world.traces import MS, T0, Folder, Row


def step(seq: int, at: float) -> Row:
    return Row("nccl:all_reduce", seq, at=at, completed_at=at + 20.0)


def job(*errors_ms: float) -> Folder:
    """A rank a node, all in one group; each node's clock is ahead by its error."""
    folder = Folder().group("0", range(len(errors_ms)))
    for rank, error in enumerate(errors_ms):
        folder.rank(rank, *(step(seq, 100.0 * seq + error) for seq in range(1, 9)))
        folder.ranks[rank].info = RankInfo(rank, len(errors_ms), f"n{rank}", f"boot {rank}", 7)
    return folder


def given(folder: Folder, *offsets_ms: float, uncertainty_ms: float | None) -> None:
    """The folder has the offsets of the first ranks' clocks."""
    for rank, offset_ms in enumerate(offsets_ms):
        folder.ranks[rank].offset_ns = round(offset_ms * MS)
        if uncertainty_ms is not None:
            folder.ranks[rank].uncertainty_ns = round(uncertainty_ms * MS)


def clocks(folder: Folder) -> Clocks:
    return clocks_of(rows_of(folder.trace()))


# -- given -------------------------------------------------------------------------------------


def test_offsets_of_the_folder_are_used() -> None:
    """Rank 1's clock is 5 s ahead and the folder says so: the first to wait was rank 1."""
    folder = Folder().group("0", range(3)).rank(2)
    folder.rank(0, Row("nccl:all_reduce", 1, at=1_000, state="scheduled"))
    folder.rank(1, Row("nccl:all_reduce", 1, at=5_500, state="scheduled"))
    given(folder, 0, -5_000, 0, uncertainty_ms=0.12)
    found = analyze(folder.trace())
    assert found.clock_source == "given by the dump, ±120 µs"
    assert found.collectives[0].first_created_ns == T0 + 500 * MS
    assert set(found.clock_uncertainties_ns.values()) == {120_000}


def test_an_offset_without_a_bound() -> None:
    """The folder has no bound: collectives give one."""
    folder = job(0, 7_000)
    given(folder, 0, -7_000, uncertainty_ms=None)
    assert clocks(folder).offset_ns == {0: 0, 1: -7_000 * MS}
    assert clocks(folder).source == "estimated from 8 collectives, ±20 ms"
    silent = Folder().group("0", range(2)).rank(0, offset_ns=5).rank(1, offset_ns=6)
    assert clocks(silent).source == "given by the dump, without an uncertainty"
    assert clocks(silent).uncertainty_ns == {0: None, 1: None}


def test_clocks_drift_between_the_last_entry_and_the_dump() -> None:
    """Dumps taken 100 s after the last entry say less of it: 100 ppm of that."""
    folder = job(0, 0)
    folder.taken_at = AlignedNs(T0 + 800 * MS + 100_000 * MS)
    given(folder, 0, 0, uncertainty_ms=0.5)
    assert clocks(folder).source == "given by the dump, ±10 ms"


def test_nodes_that_the_folder_does_not_tell_of_are_estimated() -> None:
    """One node's agent had no clock yet: its bounds come from the others, and it is said so."""
    folder = job(0, 0, 3_000)
    given(folder, 0, 0, uncertainty_ms=0.1)
    found = clocks(folder)
    assert abs(found.offset_ns[2] + 3_000 * MS) <= 20 * MS
    assert found.source == (
        "2 clocks given by the dump, ±100 µs; 1 clock estimated from 8 collectives, ±20 ms"
    )


# -- estimated -----------------------------------------------------------------------------------


def test_clocks_that_agree_are_left_alone() -> None:
    """Completion comes after creation on every clock: nothing asks for a correction."""
    assert clocks(job(0, 5)).offset_ns == {0: 0, 1: 0}


def test_ranks_of_one_node_share_a_clock() -> None:
    """All identities name one boot: there is nothing to estimate."""
    folder = job(0, 0)
    for rank, dump in folder.ranks.items():
        dump.info = RankInfo(rank, 2, "n0", "boot", 7 + rank)
    assert clocks(folder).source == "one node, one clock"
    assert clocks(folder).uncertainty_ns == {0: 0, 1: 0}


def test_bounds_travel_from_group_to_group() -> None:
    """Rank 2 shares no group with rank 0, but rank 1 shares one with both."""
    folder = Folder().group("1", [0, 1]).group("2", [1, 2])
    both = [Row("nccl:all_reduce", 1, g, at=50, completed_at=60) for g in ("1", "2")]
    folder.rank(0, both[0]).rank(1, *both)
    folder.rank(2, Row("nccl:all_reduce", 1, "2", at=9_050, completed_at=9_060))
    found = clocks(folder)
    assert abs(found.offset_ns[2] - found.offset_ns[0] + 9_000 * MS) <= 41 * MS


def test_nothing_completed() -> None:
    """Gloo records no times of completion: the nodes' own clocks are all there is."""
    folder = job(0, 7_000)
    for dump in folder.ranks.values():
        for row in dump.rows:
            row.completed_at = None
    assert clocks(folder).source == "unsynchronized: no collective that completed at a known time"
    assert clocks(folder).uncertainty_ns == {0: None, 1: None}


# -- order -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("apart_ms", "uncertainty_ms", "tied"),
    [(30, 10, False), (30, 20, True), (30_000, None, True), (0.5, 0.1, False)],
)
def test_an_order_is_known_beyond_both_uncertainties_only(
    apart_ms: float, uncertainty_ms: float | None, tied: bool
) -> None:
    """Rank 0 waits for 2 and rank 1 for 3, and rank 4 for both of them: who was missed first?"""
    folder = Folder().group("0", [0, 1, 4]).group("1", [0, 2]).group("2", [1, 3])
    folder.rank(0, Row("nccl:all_reduce", 1, "1", at=50, state="scheduled"))
    folder.rank(1, Row("nccl:all_reduce", 1, "2", at=50 + apart_ms, state="scheduled"))
    folder.rank(2).rank(3).rank(4, Row("nccl:all_reduce", 1, "0", at=60, state="scheduled"))
    given(folder, *[0] * 5, uncertainty_ms=uncertainty_ms)
    (finding,) = analyze(folder.trace()).findings
    assert [suspect.rank for suspect in finding.suspects] == [2, 3]
    assert [suspect.tied for suspect in finding.suspects] == [tied, tied]
    assert finding.suspects[0].onset_at == T0 + 50 * MS


# -- wrong -----------------------------------------------------------------------------------------


def test_a_given_clock_that_is_wrong_is_named() -> None:
    """Node 2's offset is off by 2.5 s: three others agree on that, and they stay as they are."""
    folder = job(0, 0, 2_500, 0)
    given(folder, *[0] * 4, uncertainty_ms=0.1)
    found = analyze(folder.trace())
    (finding,) = found.findings
    assert finding.kind is Kind.CLOCK_UNSYNCHRONIZED
    assert finding.headline == "The clock of n2 (rank 2) is wrong or has stepped"
    assert "by 2.5 s or more" in finding.summary
    assert (found.fault, found.clock_uncertainties_ns[2]) == (False, None)
    assert found.clock_uncertainties_ns[3] == 100_000
    assert found.clock_source == (
        "3 clocks given by the dump, ±100 µs; 1 clock unsynchronized: contradicted by collectives"
    )
    assert "no communication fault, but the clock of n2" in found.summary


@pytest.mark.parametrize("stepped", [0, 1, 2])
def test_a_step_in_the_middle_is_found_without_any_help(stepped: int) -> None:
    """One of three clocks is set back by 3 s half way: no offset fits, whichever it was."""
    folder = job(0, 0, 0)
    folder.ranks[stepped].rows[4:] = [step(at, 100.0 * at - 3_000) for at in range(5, 9)]
    found = clocks_of(rows_of(folder.trace()))
    assert [one.name for one in found.domains if one.off_by_ns] == [f"n{stepped}"]


def test_of_two_clocks_that_contradict_each_other_nobody_knows_which() -> None:
    """Two nodes, one of them stepped: both are named."""
    folder = job(0, 0)
    folder.ranks[1].rows[4:] = [step(at, 100.0 * at - 3_000) for at in range(5, 9)]
    assert [finding.kind for finding in analyze(folder.trace()).findings] == [
        Kind.CLOCK_UNSYNCHRONIZED,
        Kind.CLOCK_UNSYNCHRONIZED,
    ]


@pytest.mark.parametrize("error_s", [-60.0, 7.0])
def test_json_tells_offsets_and_how_exact_they_are(error_s: float) -> None:
    """No rank completes an all_reduce before the last one joined: two clocks cannot be apart by
    that. By rank, in seconds; null where nothing bounds them."""
    document = analyze(job(0, 1_000 * error_s).trace()).to_json()["clocks"]
    assert document["source"] == "estimated from 8 collectives, ±20 ms"
    assert document["offset_s"]["1"] == pytest.approx(-error_s, abs=0.02)
    assert document["uncertainty_s"]["1"] == pytest.approx(0.02, abs=0.001)
