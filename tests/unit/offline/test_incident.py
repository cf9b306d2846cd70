"""Files of an earlier incident or another attempt in the folder: their ranks have no dump."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import frd
from frd.errors import DumpError
from frd.model import Confidence, GroupInfo
from frd.offline.analysis.analyze import Analysis, analyze
from frd.offline.load.folder import load_trace
from tests.world.dump_files import T0, as_torch, document, entry

HOUR = 3_600
S = 1_000_000_000


def steps(last: int, *, waits: bool, at_s: float = 0.0, first: int = 1, **more: Any) -> list[Any]:
    """One all_reduce a second from `at_s` on; the rank waits in the last one, or all are over."""
    rows = []
    for record, seq in enumerate(range(first, last + 1)):
        created = T0 + int((at_s + record) * S)
        rows.append(
            entry(
                record + (first > 1),
                collective_seq_id=seq,
                time_created_ns=created,
                time_discovered_completed_ns=created + 10_000_000,
                **more,
            )
        )
    if waits:
        rows[-1] |= {"state": "scheduled", "retired": False, "time_discovered_completed_ns": None}
    return rows


def write(
    folder: Path,
    rank: int,
    rows: Sequence[Any],
    world: Iterable[int] = range(4),
    age_s: float = 0.0,
    **changes: Any,
) -> None:
    """`age_s`: how much older the file is than those of the others."""
    path = folder / f"nccl_trace_rank_{rank}"
    path.write_bytes(as_torch(document(rows, [*world], **changes)))
    written = T0 + (4 * HOUR - int(age_s)) * S
    os.utime(path, ns=(written, written))


def named(found: Analysis) -> dict[int, Confidence]:
    return {s.rank: s.confidence for finding in found.findings for s in finding.suspects}


def left_out(found: Analysis) -> list[str]:
    return [warning for warning in found.warnings if "of another time or job" in warning]


OLD = -2 * HOUR


@pytest.mark.parametrize("waits", [False, True])
def test_a_file_of_an_earlier_incident_is_no_evidence(tmp_path: Path, waits: bool) -> None:
    """Ranks 0 and 3 wait for rank 1; rank 2's file is two hours old, healthy or of another hang."""
    for rank in (0, 3):
        write(tmp_path, rank, steps(7, waits=True))
    write(tmp_path, 1, steps(6, waits=False))
    write(tmp_path, 2, steps(4, waits=waits, at_s=OLD), age_s=2 * HOUR)
    found = frd.load(tmp_path)
    assert list(named(found)) == [1]
    assert found.missing_ranks == (2,)
    assert found.findings[0].unknown == (2,)
    (warning,) = left_out(found)
    assert "nccl_trace_rank_2" in warning
    assert "when rank" in warning


def test_two_old_files(tmp_path: Path) -> None:
    """Ranks 0 and 1 wait, and both others left files of an hour ago: nothing is known of them."""
    for rank in (0, 1):
        write(tmp_path, rank, steps(7, waits=True))
    for rank in (2, 3):
        write(tmp_path, rank, steps(3, waits=True, at_s=OLD / 2), age_s=HOUR)
    found = frd.load(tmp_path)
    assert (named(found), found.missing_ranks) == ({}, (2, 3))


def test_all_files_but_one_are_old(tmp_path: Path) -> None:
    """The one rank of now waits; the majority of the files is of two hours ago, and is named."""
    write(tmp_path, 0, steps(7, waits=True))
    for rank in (1, 2, 3):
        write(tmp_path, rank, steps(4, waits=rank != 2, at_s=OLD), age_s=2 * HOUR)
    found = frd.load(tmp_path)
    assert named(found) == {}
    assert set(found.ranks) == {0}
    (warning,) = left_out(found)
    assert "ranks 1-3" in warning


def test_a_real_culprit_is_as_old_as_the_wait(tmp_path: Path) -> None:
    """Rank 2 exited after #6 and wrote its file; the others waited for half an hour."""
    for rank in (0, 1, 3):
        write(tmp_path, rank, steps(7, waits=True))
    write(tmp_path, 2, steps(6, waits=False), age_s=HOUR / 2)
    found = frd.load(tmp_path)
    assert named(found) == {2: Confidence.HIGH}
    assert left_out(found) == []


def test_a_culprit_that_was_idle_before_the_first_wait_wrote_its_file_with_the_others(
    tmp_path: Path,
) -> None:
    """All were idle for twenty minutes, then three joined #7: age alone proves nothing."""
    for rank in range(4):
        rows = steps(6, waits=False)
        if rank != 2:
            rows += [entry(6, **steps(7, waits=True, first=7, at_s=1_200)[0] | {"record_id": 6})]
        write(tmp_path, rank, rows)
    assert named(frd.load(tmp_path)) == {2: Confidence.HIGH}


@pytest.mark.parametrize("last", [6, 7])
def test_an_old_file_that_contradicts_nothing(tmp_path: Path, last: int) -> None:
    """The earlier hang was in the same step: rank 2's old file has as many ops as the others, but
    it ends long before their wait begins, and it was written long before their files."""
    for rank in (0, 1, 3):
        write(tmp_path, rank, steps(7, waits=True))
    write(tmp_path, 2, steps(last, waits=last == 7, at_s=OLD), age_s=2 * HOUR)
    found = frd.load(tmp_path)
    assert (named(found), found.missing_ranks) == ({}, (2,))
    (warning,) = left_out(found)
    assert "its file" in warning


@pytest.mark.parametrize("waits", [False, True])
def test_an_earlier_attempt_had_come_further(tmp_path: Path, waits: bool) -> None:
    """After a restart seqs begin again; rank 2's file of before has higher ones."""
    for rank in (0, 3):
        write(tmp_path, rank, steps(7, waits=True))
    write(tmp_path, 1, steps(6, waits=False))
    write(tmp_path, 2, steps(50, waits=waits, at_s=OLD), age_s=2 * HOUR)
    found = frd.load(tmp_path)
    assert list(named(found)) == [1]
    assert len(left_out(found)) == 1


@pytest.mark.parametrize(("now", "before"), [(4, 8), (8, 4)])
def test_another_world_is_another_attempt(tmp_path: Path, now: int, before: int) -> None:
    """The job was restarted with fewer or more ranks, and files of before are still there."""
    for rank in range(max(now, before)):
        is_now = rank < now and (now < before or rank != 3)
        world, at_s = (now, 0.0) if is_now else (before, float(OLD))
        rows = steps(7 if rank != 2 else 6, waits=rank != 2, at_s=at_s)
        write(tmp_path, rank, rows, range(world), age_s=0 if is_now else 2 * HOUR)
    found = frd.load(tmp_path)
    assert list(named(found)) == [2]
    assert found.trace.world_size == now
    assert found.missing_ranks == (() if now < before else (3,))
    (warning,) = left_out(found)
    assert f"its job has {before} ranks, and that of the newest dump {now}" in warning


def test_the_world_is_known_from_the_configuration_alone(tmp_path: Path) -> None:
    """The rings have only ops of a subgroup; what the old files say of the whole job counts."""
    for rank in range(8):
        now, tp = rank < 4, {"process_group": ("5", "TP"), "pg_id": 1}
        members = range(4) if now else range(4, 8)
        config = {
            "0": {"name": "0", "desc": "default_pg", "ranks": str([*range(4 if now else 8)])},
            "5": {"name": "5", "desc": "TP", "ranks": str([*members])},
        }
        rows = steps(9, waits=True, first=5, at_s=0.0 if now else OLD, **tp)
        rows = rows[:-1] if rank in (2, 6) else rows
        write(tmp_path, rank, rows, pg_config=config, pg_status={}, age_s=0 if now else 2 * HOUR)
    found = frd.load(tmp_path)
    assert list(named(found)) == [2]
    assert found.trace.world_size == 4
    assert [info.ranks for info in found.trace.groups] == [(0, 1, 2, 3)] * 2


def test_replicas_with_worlds_that_share_no_rank_are_one_job(tmp_path: Path) -> None:
    """Two jobs of one fault-tolerant training, each with ranks and a hang of its group."""
    for rank in range(4):
        world = range(2) if rank < 2 else range(2, 4)
        rows = steps(7 if rank in (0, 2) else 6, waits=rank in (0, 2))
        write(tmp_path, rank, rows, world)
    found = frd.load(tmp_path)
    assert set(named(found)) == {1, 3}
    assert left_out(found) == []


def test_a_dump_that_was_taken_a_moment_earlier_is_not_accused(tmp_path: Path) -> None:
    """Dumps of a running job: rank 2 was dumped just before its peers completed #6 with it."""
    for rank in (0, 1, 3):
        write(tmp_path, rank, steps(7, waits=True))
    write(tmp_path, 2, steps(5, waits=False), age_s=1)
    found = frd.load(tmp_path)
    assert named(found) == {}
    assert found.findings[0].unknown == (2,)
    assert left_out(found) == []


# -- torchft ---------------------------------------------------------------------------------------
# Replicas of torchft number their ranks from 0: without the option their groups exclude them.


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
