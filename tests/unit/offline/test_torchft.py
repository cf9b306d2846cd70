"""Replicas of torchft number their ranks from 0: without the option their groups exclude them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from frd.errors import DumpError
from frd.model import GroupInfo
from frd.offline.analysis.analyze import Analysis, analyze
from frd.offline.load.folder import load_trace
from tests.world.dump_files import as_torch, document, entry

OPTION = "--transform-ft --group-world-size N"
Groups = Mapping[str, tuple[str, Sequence[int]]]
"""Description and ranks by name."""


def dump(folder: Path, rank: int, groups: Groups, ops: Mapping[str, int], waits: str = "") -> None:
    """A dump of so many ops of each group, and one more of a group that the rank waits in."""
    rows: list[dict[str, Any]] = []
    for number in range(1, max(ops.values(), default=0) + 1):
        for name, count in ops.items():
            if number <= count:
                rows.append(op(len(rows), name, groups[name][0], number))
    for name in groups:
        if name == waits:
            number = ops[name] + 1
            rows.append(
                op(len(rows), name, groups[name][0], number)
                | {"state": "scheduled", "time_discovered_completed_ns": None, "retired": False}
            )
    config = {
        name: {"name": name, "desc": desc, "ranks": str(list(ranks))}
        for name, (desc, ranks) in groups.items()
    }
    folder.mkdir(exist_ok=True)
    content = document(rows, pg_config=config, pg_status={})
    (folder / str(rank)).write_bytes(as_torch(content))


def op(at: int, name: str, desc: str, number: int) -> dict[str, Any]:
    return entry(at, process_group=(name, desc), collective_seq_id=number, op_id=number)


def analyzed(folder: Path, size: int | None = None) -> Analysis:
    return analyze(load_trace(folder, transform_ft=size))


def accused(analysis: Analysis) -> list[int]:
    return [one.rank for finding in analysis.findings for one in finding.suspects]


QUORUM = "torchft_quorum_9_rank_1"


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    """Three replicas of two ranks; rank 3 has not joined its replica's collective 5, so that rank 2
    waits for it, and the ranks of other replicas for these two."""
    folder = tmp_path / "torchft_quorum_9"
    for rank in range(6):
        across = ("", (0, 2, 4)) if rank % 2 == 0 else ("", (1, 3, 5))
        name = "" if rank % 2 == 0 else QUORUM
        groups = {"0": ("default_pg", (0, 1)), name: across}
        joined = 4 if rank in (2, 3) else 5
        waits = {2: "0", 3: "none"}.get(rank, name)
        dump(folder, rank, groups, {"0": joined, name: 4}, waits)
    return folder


def test_the_option_is_given(hanging: Path) -> None:
    """The dumps of a hang in the second replica: a warning names the ranks, a group and the option;
    no rank is accused, and the summary says what was not judged."""
    analysis = analyzed(hanging)
    (warning,) = analysis.warnings
    assert "ranks 2-5 recorded in groups that exclude them, as in 'default_pg' of ranks 0-1" in (
        warning
    )
    assert OPTION in warning
    assert accused(analysis) == []
    assert analysis.findings
    assert "ops of ranks 2-5 in groups that exclude them are not judged" in analysis.summary


def test_with_the_option_the_rank_is_named(hanging: Path) -> None:
    """The same dumps with the option: rank 3, and nothing is left to say."""
    analysis = analyzed(hanging, 2)
    assert accused(analysis) == [3]
    assert analysis.warnings == ()
    assert "not judged" not in analysis.summary


def test_a_group_without_a_name_has_a_label(hanging: Path) -> None:
    """The group of rank 0 of each replica has no name and no description."""
    labels = {group.label: list(group.info.ranks) for group in analyzed(hanging, 2).groups}
    assert labels["(no name)"] == [0, 2, 4]
    assert GroupInfo("", "undefined").label == GroupInfo("", "").label == "(no name)"


@pytest.mark.parametrize("replicas", [2, 3])
def test_groups_numbered_by_replica(tmp_path: Path, replicas: int) -> None:
    """An older torchft counts replicas in the groups across them: rank 2 has not joined, which only
    the option shows; also for more replicas than a replica has ranks."""
    folder = tmp_path / "torchft_quorum_9"
    for rank in range(2 * replicas):
        name = f"torchft_quorum_9_rank_{rank % 2}"
        joined = 4 if rank % 2 == 0 else 5
        waits = name if rank % 2 == 0 and rank != 2 else "none"
        dump(folder, rank, {name: ("undefined", range(replicas))}, {name: joined}, waits)
    plain = analyzed(folder)
    assert OPTION in plain.warnings[0]
    assert accused(plain) == []
    assert accused(analyzed(folder, 2)) == [2]


def test_healthy_replicas_are_no_all_clear(tmp_path: Path) -> None:
    """Only half of the ops was judged; with the option all of them were."""
    folder = tmp_path / "dumps"
    for rank in range(4):
        dump(folder, rank, {"0": ("default_pg", (0, 1))}, {"0": 5})
    plain, whole = analyzed(folder), analyzed(folder, 2)
    assert plain.summary != whole.summary == "the dumps show no communication fault"
    assert plain.summary == (
        "the judged ops show no communication fault; "
        "ops of ranks 2-3 in groups that exclude them are not judged"
    )
    assert not plain.fault


def test_numbers_of_hosts_accuse_no_rank(tmp_path: Path) -> None:
    """Hosts 2 to 5 of a job of ranks 0 to 3: host 3 is behind, but that is not rank 3."""
    folder = tmp_path / "dumps"
    for host in range(2, 6):
        joined, waits = (3, "") if host == 3 else (4, "0")
        dump(folder, host, {"0": ("default_pg", range(4))}, {"0": joined}, waits)
    analysis = analyzed(folder)
    assert accused(analysis) == []
    assert "ranks 4-5 recorded in groups that exclude them" in analysis.warnings[0]


def test_only_a_later_replica(tmp_path: Path) -> None:
    """Without the option no file is of a member of a group: that is an error that gives it."""
    folder = tmp_path / "dumps"
    for rank in (2, 3):
        dump(folder, rank, {"0": ("default_pg", (0, 1))}, {"0": 5})
    with pytest.raises(DumpError, match=f"the names say ranks 2-3, the groups .*{OPTION}"):
        analyzed(folder)
    assert not analyzed(folder, 2).fault


def test_a_spare_rank_is_no_outsider(tmp_path: Path) -> None:
    """Rank 2 recorded nothing: nothing of it was left out."""
    folder = tmp_path / "dumps"
    for rank in range(3):
        dump(folder, rank, {"0": ("default_pg", (0, 1))}, {"0": 5} if rank < 2 else {})
    assert analyzed(folder).warnings == ()


def test_a_size_beyond_all_ranks(hanging: Path) -> None:
    """The user writes a huge number: the groups stay as they are."""
    assert analyzed(hanging, 10**12).trace.world_size == 6
