"""Laws of the analysis of damaged dumps: whatever a file holds, an answer or one clear error.

Each seed takes a small job of some backend, format and story, damages files of some of its ranks,
and analyzes the folder. A seed that fails is in the name of the failure; `Damaged(seed)` makes the
same folder again.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from frd.errors import FrdError
from frd.model import Confidence
from frd.offline.analysis.analyze import Analysis, analyze
from frd.offline.load.folder import load_dumps
from tests.unit.cli.shell import Shell
from tests.world.dump_files import T0
from tests.world.seeds import seeds
from tests.world.small_dumps import Container, Kind, Story, encoded, job

SETS: Final = seeds(20_000)
PARTS: Final = 20
"""Tests that share the sets."""
PRINTED: Final = SETS // 50
"""Every so many sets, all tables and files are made too: they take most of the time."""
HOUR_NS: Final = 3_600_000_000_000

LOST: Final[tuple[Any, ...]] = (
    None,
    "x",
    float("nan"),
    -2.5,
    [],
    {},
    [None],
    2**63,
    -(2**63) - 1,
    2**70,
)
"""What takes the place of a value that is lost: nothing that a recorder could have meant."""
ODD: Final[tuple[Any, ...]] = (
    *LOST, True, -1, 0, 1, 2**31, 2**53 - 1, 2**60, 2**63 - 1, -(2**63), "", "9" * 30, "\ud800",
    float("inf"), 1e300, [[]], [[2**40] * 9], [[2**40] * 64] * 4, ["Float"] * 9, ["1", "name"],
    "nccl:send 0->9", "nccl:recv 0<-?", "nccl:all_reduce", "gloo:barrier",
    "[0, 99]", "[0, 0]", "[5]",
)  # fmt: skip
"""Others are possible, but wrong."""
TIMES: Final = ("time_created_ns", "time_discovered_completed_ns")
OFFSETS: Final = (-(2**40), -1000, 1000, 2**40, 2**53 - 10, 2**60, 5 * 10**18)
SHIFTED: Final = (
    "time_created_ns", "time_created_ns", "collective_seq_id", "op_id", "record_id", "pg_id",
    "p2p_seq_id", "timeout_ms", "time_discovered_completed_ns",
)  # fmt: skip
BAD_RANKS: Final = ("", "[", "0, 1", "[0, x]", "[-1, 0]", "[1048576]", "[" * 99, "None")


class Damaged:
    """A job of `kind`, of which some files are damaged."""

    def __init__(self, seed: int) -> None:
        self._rng = rng = random.Random(seed)
        self.kind = Kind(
            rng.choice(("nccl", "nccl", "gloo", "xccl", "ncclx")),
            rng.randrange(11),
            rng.choice(tuple(Container)),
            rng.choice(tuple(Story)),
            rng.choice((3, 3, 4, 5)),
        )
        self.documents: dict[int, Any] = deepcopy(job(self.kind))
        self.files: dict[int, bytes] = {}
        self.lost_of: int | None = None
        """The only rank that is damaged, and only by loss."""
        if rng.random() < 0.6:
            self.lost_of = rng.randrange(self.kind.world)
            self._lose(self.lost_of)
        else:
            for _ in range(rng.choice((1, 1, 2, 5, 20))):
                rng.choice((self._change, self._change, self._rearrange, self._shift))()
        for rank, value in self.documents.items():
            self.files.setdefault(rank, encoded(value, self.kind))
        if self.lost_of is None and len(self.files) > 1 and rng.random() < 0.2:
            one, other = rng.sample(sorted(self.files), 2)
            self.files[one], self.files[other] = self.files[other], self.files[one]

    def write(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for rank, data in self.files.items():
            path = folder / f"nccl_trace_rank_{rank}"
            path.write_bytes(data)
            os.utime(path, ns=(T0 + HOUR_NS, T0 + HOUR_NS))

    # -- damages -----------------------------------------------------------------------------

    def _lose(self, rank: int) -> None:
        """A part of one rank's dump is not there any more, or cannot be read; or its clock is far
        off. Without its last entries, or an entry's state, it is the dump of another moment."""
        rng, value = self._rng, self.documents[rank]
        match rng.randrange(7):
            case 0:
                data = encoded(value, self.kind)
                self.files[rank] = data[: rng.randrange(len(data))]
            case 1:
                value["entries"] = []
            case 2:
                del value["entries"][rng.randrange(len(value["entries"]) - 1)]
            case 3:
                for group in value["pg_config"].values():
                    group["ranks"] = rng.choice(BAD_RANKS)
            case 4:
                offset = rng.choice(OFFSETS)
                for row in value["entries"]:
                    for name in TIMES:
                        row[name] = row[name] and row[name] + offset
            case 5:
                name = rng.choice(sorted(value))
                value[name] = deepcopy(rng.choice(LOST))
            case _:
                row = rng.choice(value["entries"])
                row[rng.choice(sorted(row))] = deepcopy(rng.choice(LOST))

    def _change(self) -> None:
        """One value somewhere is another one, or its key is gone."""
        rng = self._rng
        of, key = rng.choice([*_places(self.documents)] or [({0: 0}, 0)])
        if rng.random() < 0.15:
            del of[key]
        elif rng.random() < 0.2 and type(of[key]) is int:
            of[key] += rng.choice((-1, 1, 1000, -(10**18), 2**60))
        else:
            of[key] = deepcopy(rng.choice(ODD))

    def _shift(self) -> None:
        """A whole column of one rank, or of all, is far from where it should be: another clock,
        a counter near its limit."""
        rng = self._rng
        name = rng.choice(SHIFTED)
        offset = rng.choice(OFFSETS)
        for rank in rng.choice(([*self.documents], [*self.documents][-1:])):
            document = self.documents[rank]
            rows = document.get("entries") if isinstance(document, dict) else None
            for row in rows if isinstance(rows, list) else ():
                if isinstance(row, dict) and type(row.get(name)) is int:
                    row[name] += offset
                    if name == TIMES[0] and type(row.get(TIMES[1])) is int:
                        row[TIMES[1]] += offset

    def _rearrange(self) -> None:
        """Entries, ranks or files are lost, doubled or exchanged."""
        rng = self._rng
        rank = rng.choice(sorted(self.documents) or [0])
        document = self.documents.get(rank)
        entries = document.get("entries") if isinstance(document, dict) else None
        if not isinstance(entries, list) or not entries:
            self.documents[rank] = rng.choice(({}, [], None, {"entries": [], "version": "2.10"}))
            return
        at = rng.randrange(len(entries))
        match rng.randrange(6):
            case 0:
                del entries[at]
            case 1:
                entries.insert(rng.randrange(len(entries)), entries[at])
            case 2:
                to = rng.randrange(len(entries))
                entries[at], entries[to] = entries[to], entries[at]
            case 3:
                for one in self.documents.values():
                    if isinstance(one, dict):
                        one["entries"] = []
            case 4:
                if len(self.documents) > 2:
                    del self.documents[rank]
            case _:
                data = encoded(document, self.kind)
                cut = rng.randrange(len(data))
                self.files[rank] = data[:cut] + rng.choice((b"", b"\0", data[cut + 1 :]))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """All containers within, with each of their keys."""
    keys: Any = ()
    if isinstance(value, dict):
        keys = [*value]
    elif isinstance(value, list):
        keys = range(len(value))
    for key in keys:
        yield value, key
        yield from _places(value[key])


# -- the laws ------------------------------------------------------------------------------------


def answered(folder: Path) -> Analysis | None:
    """The analysis of a folder, or None for one clear error."""
    try:
        *earlier, last = load_dumps((folder,))
        found = analyze(last, earlier=earlier)
    except FrdError as error:
        refused = str(error)
    else:
        refused = ""
    assert "\n" not in refused, "an error is one line"
    if refused:
        return None
    broken = [text for text in found.warnings if "cannot be read (" in text]
    assert not broken, "no file breaks its reader"
    json.dumps(found.to_json(), allow_nan=False)
    return found


def accused(found: Analysis, *confidences: Confidence) -> set[int]:
    """The suspects of all findings, with these confidences or any."""
    return {
        s.rank
        for finding in found.findings
        for s in finding.suspects
        if not confidences or s.confidence in confidences
    }


@cache
def accused_before(kind: Kind, folder: Path) -> frozenset[int]:
    """The suspects of the whole job."""
    whole = Damaged(0)
    whole.kind, whole.files = kind, {r: encoded(one, kind) for r, one in job(kind).items()}
    whole.write(folder)
    found = answered(folder)
    assert found is not None
    return frozenset(accused(found))


def judge(seed: int, folder: Path) -> None:
    damaged = Damaged(seed)
    damaged.write(folder)
    found = answered(folder)
    if found is None:
        return
    assert accused(found) <= {*found.ranks}, "a suspect is a rank with a dump"
    assert {*found.ranks} <= {*range(damaged.kind.world)}, "a dump is of a rank with a file"
    if damaged.lost_of is not None:
        may_be = accused_before(damaged.kind, folder) | {damaged.lost_of}
        assert accused(found, Confidence.HIGH) <= may_be, "a loss accuses no other rank for sure"


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed files are read in this process: each is small."""
    monkeypatch.setattr("frd.readers.pool.is_packed", lambda path: False)


RIGHT: Final = {
    Story.WELL: set[int](),
    Story.LATE: {1},
    Story.MISMATCH: {1},
    Story.RING: set[int](),
    Story.RING_LATE: {1},
    Story.GROUPS: {1},
}


@pytest.mark.parametrize("container", Container)
@pytest.mark.parametrize("story", Story)
def test_the_whole_jobs_are_judged_right(
    story: Story, container: Container, tmp_path: Path
) -> None:
    """The jobs that are damaged below, in formats 2.1 to 2.10 of NCCL."""
    for minor in range(1, 11):
        kind = Kind("nccl", minor, container, story)
        assert accused_before(kind, tmp_path / "dumps") == RIGHT[story]


@pytest.mark.parametrize("part", range(PARTS))
def test_no_damage_ends_the_analysis_or_accuses_others(part: int, tmp_path: Path) -> None:
    """Values, keys, entries or whole files are lost or wrong: the answer is JSON, or one line says
    what is wrong; a loss in one rank's file makes no other rank a sure suspect."""
    failed = {}
    for seed in range(part, SETS, PARTS):
        try:
            judge(seed, tmp_path / "dumps")
        except Exception as problem:
            failed[seed] = f"{type(problem).__name__}: {str(problem).splitlines()[:1]}"
    assert not failed


@pytest.mark.parametrize("seed", range(0, SETS, PRINTED))
def test_all_that_is_printed_and_written_of_damaged_dumps(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All tables, the page, the timeline and the export of the same folders: each is made, or one
    line says why not."""
    folder = tmp_path / "dumps"
    Damaged(seed).write(folder)
    if (found := answered(folder)) is None:
        return
    frd = Shell(capsys)
    code = 3 if found.findings else 0
    words = ("analyze", folder)
    frd(*words, "--entries", "--collectives", "--stacks", code=code)
    frd(*words, "--entries", "--collectives", "--json", code=code)
    out = [tmp_path / name for name in ("out.json", "out.pftrace", "out.html")]
    frd(*words, "--output", out[0], "--timeline", out[1], "--html", out[2], code=code)
    assert json.loads(out[0].read_text())
    assert all(path.stat().st_size for path in out)
