"""Ranks above 2^31 and times that no clock shows, in every file that `frd` reads: refused in one
line that names the file or the field, and never a traceback."""

from __future__ import annotations

import csv
import json
import math
import pickle
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

from frd.cli import BLIND, FAILED, FINDINGS_PRESENT, run
from frd.errors import DumpError
from frd.flight.decode import parse
from frd.flight.entry import Entry
from frd.forms import csv_cell
from frd.model import AlignedNs
from frd.offline.load.folder import load_trace
from frd.readers.pool import load_dump
from frd.service.journal.payloads import Dismissal, Settings, encode_finding, encode_payload
from frd.store.journal import Journal, JournalLimits
from frd.store.records import Record, RecordKind
from tests.unit.cli.shell import Shell
from tests.world.dump_files import as_json, document, entry
from tests.world.http_api import finding
from tests.world.io_traces import Call, Writer
from tests.world.telemetry_files import event, write

NUMBERS = (
    *(2**31, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 2**70, 10**400, -1, -(2**31), -(2**63)),
    *(-(2**70), 1e308, -1e308, 0.5, float("inf"), float("nan")),
)
OTHERS: tuple[Any, ...] = (
    *("2147483648", "9" * 5000, "-1", "x", "\ud800", "300000-01-01T00:00:00Z"),
    *(None, [], {}, True),
)
HOSTILE: tuple[Any, ...] = (*NUMBERS, *OTHERS)
FIELDS = sorted({*entry()} - {"frames"})
GOOD = as_json(document([entry(at) for at in range(3)], ranks=range(4)))


FORMULAS = ("=cmd|' /C calc'!A0", "+1", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\uff1d1")


def is_no_json(value: object) -> bool:
    return value == "\ud800" or (isinstance(value, float) and not math.isfinite(value))


def analyzed(shell: Shell, *words: str | Path) -> Any:
    """Ends with one of its exit codes, whatever it found; not with an exception."""
    shell._capsys.readouterr()
    code = run(["analyze", *map(str, words), "--json"])
    out, err = shell._capsys.readouterr()
    if code in (0, FINDINGS_PRESENT, BLIND):
        return json.loads(out)
    assert re.fullmatch(r"frd: error: [^\n]+\n", err), err
    return {"warnings": [err]}


@pytest.mark.parametrize("name", FIELDS)
def test_fields_of_entries(shell: Shell, tmp_path: Path, name: str) -> None:
    """Each value in each field, as JSON and as a pickle: an entry within its limits, or a warning
    that names the entry; the analysis goes on."""
    in_json = [value for value in HOSTILE if not is_no_json(value)]
    in_pickles = [one for one in HOSTILE if not isinstance(one, int) or abs(one) < 2**63]
    for rank, values in enumerate((in_json, in_pickles)):
        whole = document([entry(at, **{name: value}) for at, value in enumerate(values)])
        data = pickle.dumps(whole, 2) if rank else json.dumps(whole).encode()
        (tmp_path / f"rank_{rank}").write_bytes(data)
        dump = load_dump(tmp_path / f"rank_{rank}")
        left_out = [one for one in dump.warnings if re.match(r"entry \d+: .*: left out", one)]
        assert len(dump.entries) + len(left_out) == len(values)
        for one in dump.entries:
            msgspec.convert(msgspec.to_builtins(one), Entry)
    (tmp_path / "rank_2").write_bytes(GOOD)
    analyzed(shell, tmp_path)


@pytest.mark.parametrize("op", ["all_reduce", "all_to_all", "_all_gather_base"])
def test_sizes_at_their_limits(shell: Shell, tmp_path: Path, op: str) -> None:
    """Tensors of 2^2560 elements, more than any column holds: every table is written."""
    sizes = {"input_sizes": [[2**40] * 64] * 3, "output_sizes": [[2**40] * 64]}
    rows = [entry(at, profiling_name=f"nccl:{op}", **sizes) for at in range(2)]
    for rank in range(2):
        (tmp_path / f"rank_{rank}").write_bytes(as_json(document(rows[: 2 - rank])))
    analyzed(shell, tmp_path, "--entries", "--collectives")
    for name in ("all.sqlite", "all.json", "all.parquet"):
        analyzed(shell, tmp_path, "--output", tmp_path / name)
        assert (tmp_path / name).stat().st_size


def headers() -> Iterator[dict[str, Any]]:
    for value in HOSTILE:
        for ranks in ([0, 1, value], str([0, 1, value])):
            yield {"pg_config": {"0": {"name": value, "desc": value, "ranks": ranks}}}
        yield {"pg_config": {"0": {"name": "0", "desc": "d", "ranks": [0, 1, value]}}}
        counters = ("last_enqueued_collective", "last_started_collective")
        yield {"pg_status": {str(value)[:30]: dict.fromkeys(counters, value)}}
        for name in ("version", "comm_lib_version", "pg_config", "pg_status", "entries"):
            yield {name: value}


def test_headers_of_dumps(shell: Shell, tmp_path: Path) -> None:
    """Members, counters and all else that is not an entry, in a file each."""
    for rank, header in enumerate(headers()):
        (tmp_path / f"rank_{rank}").write_text(json.dumps(document([entry()]) | header))
    trace = load_trace(tmp_path)
    assert all(rank < 2**20 for group in trace.groups for rank in group.ranks)
    analyzed(shell, tmp_path)


def test_a_version_that_holds_itself() -> None:
    """Its text would be endless: the error names only its type."""
    lists: list[Any] = []
    for _ in range(60):
        lists = [lists, lists]
    with pytest.raises(DumpError, match="version 'list'"):
        parse(pickle.dumps({"version": lists}, 2), source="x")


@pytest.mark.parametrize("rank", [2**20, 2**31, 9_999_999_999, int("9" * 200)])
def test_names_of_files(shell: Shell, tmp_path: Path, rank: int) -> None:
    """A rank that no job has is left out with a warning; its digits are no shorter rank's."""
    for name in (rank, 0, 1, 7):
        (tmp_path / f"rank_{name}").write_bytes(GOOD)
    assert list(load_trace(tmp_path).ranks) == [0, 1, 7]
    warnings = analyzed(shell, tmp_path)["warnings"]
    assert [one for one in warnings if f"rank_{rank}: rank {rank}: not below 1048576" in one]
    analyzed(shell, tmp_path / f"rank_{rank}")


IDENTITY = {
    **{"rank": 0, "world_size": 4, "node": "n", "boot_id": "b", "pid": 1, "local_rank": 0},
    **{"torch_version": "2", "backends": ["nccl"], "devices": [], "source": "x"},
    **{"clock_offset_s": 0.1, "clock_uncertainty_s": 0.1, "taken_at_ns": 1, "node_time_ns": 2},
}
SUMMARY = {
    **{"job": "j", "attempt": 0, "folder": "f", "failed": {"1": "x"}},
    **{"taken_at": "2026-01-01T00:00:00Z", "stall_after_s": 3.0},
}


@pytest.mark.parametrize(
    ("of", "name"),
    [*(("identity", name) for name in IDENTITY), *(("summary", name) for name in SUMMARY)],
)
def test_files_next_to_dumps(shell: Shell, tmp_path: Path, of: str, name: str) -> None:
    """What `frd dump` wrote, and another program changed."""
    more = ("0001-01-01T00:00:00", "9999-12-31T23:59:59-23:59", {str(2**31): "x"}, {"-1": "x"})
    (tmp_path / "f").mkdir()
    (tmp_path / "f.meta").mkdir()
    (tmp_path / "f" / "rank_0").write_bytes(GOOD)
    for value in (2**31, 2**63, -1, 1e308, "9" * 5000, None, *more):
        change = {of: {name: value}}
        identity = IDENTITY | change.get("identity", {})
        (tmp_path / "f.meta" / "rank_0.json").write_text(json.dumps(identity))
        (tmp_path / "summary.json").write_text(json.dumps(SUMMARY | change.get("summary", {})))
        analyzed(shell, tmp_path)
        info = load_trace(tmp_path).ranks[0].info
        assert info is None or (info.rank, info.world_size) in ((0, 4), (0, 0))


@pytest.mark.parametrize("name", sorted(event()))
def test_recordings_of_memory(shell: Shell, tmp_path: Path, name: str) -> None:
    """Each value in each field of an event."""
    events = [event(at / 10, **{name: value}) for at, value in enumerate(HOSTILE)]
    good = [event(at / 10) for at in range(40)]
    path = write(tmp_path / "a.jsonl", good + events)
    analyzed(shell, "--memory", path)


@pytest.mark.parametrize("name", ["pid", "tid", "ts", "dur", "ph", "name", "cat", "args"])
def test_traces_of_io(shell: Shell, tmp_path: Path, name: str) -> None:
    """Each value in each field of a call."""
    calls = [Call("read", 10 * at, 5, file="/a") for at in range(3)]
    lines = [*Writer("v2.2", 1).lines(calls)]
    (row,) = [json.loads(one) for one in lines if '"read"' in one][:1]
    lines += [json.dumps(row | {name: value}) for value in HOSTILE]
    (tmp_path / "a.pfw").write_text("\n".join(lines) + "\n")
    analyzed(shell, "--traces", tmp_path)


def changed(document: Any, value: Any) -> Iterator[Any]:
    """`document` with `value` in place of each of its parts."""
    yield value
    if isinstance(document, dict):
        for key, part in document.items():
            yield from (document | {key: one} for one in changed(part, value))
    elif isinstance(document, list) and document:
        yield from ([one, *document[1:]] for one in changed(document[0], value))


def journal_of(folder: Path, kind: RecordKind, payloads: list[Any]) -> Path:
    now = AlignedNs(1_800_000_000_000_000_000)
    settings = encode_payload(Settings())
    journal = Journal(
        folder, settings=settings, preamble=lambda: (), begun_at=now, limits=JournalLimits()
    )
    for payload in payloads:
        text = json.dumps(payload).replace('"DEEP"', "[" * 3000 + "]" * 3000)
        journal.append([Record(kind, now, 1, text.encode())])
    journal.append([Record(RecordKind.TICK, AlignedNs(now + 1), 0, b"")])
    journal.close()
    return folder


def replayed(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    for words in ([], ["--json"]):
        assert run(["replay", str(folder), *words]) in (0, FAILED, FINDINGS_PRESENT)
        assert "Traceback" not in capsys.readouterr().err


def test_findings_in_journals(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each value in each place of a finding that was open: a warning, or the finding is shown."""
    values: tuple[Any, ...] = (
        2**31,
        2**63 - 1,
        2**70,
        -(2**63),
        1e308,
        "300000-01-01T00:00:00Z",
        [[[]]],
        None,
    )
    restored = json.loads(encode_finding(finding(1)))
    del restored["id"]
    whole = [one for value in values for one in changed(restored, value)]
    payloads = [
        {"id": f"{n:x}"} | one if isinstance(one, dict) else one for n, one in enumerate(whole)
    ]
    replayed(capsys, journal_of(tmp_path / "j", RecordKind.RESTORED, payloads))


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (RecordKind.SETTINGS, json.loads(encode_payload(Settings()))),
        (RecordKind.DISMISSED, json.loads(encode_payload(Dismissal("a", "b")))),
        (RecordKind.LEARNED, {"job": "j", "learned_at": 5, "groups": [["g", 2, [[1, 2, 3]]]]}),
    ],
)
def test_other_payloads_in_journals(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: RecordKind, payload: Any
) -> None:
    """Refused in one line, also lists inside of lists that are too deep for a decoder."""
    for number, value in enumerate((2**63, 1e308, "DEEP")):
        for at, one in enumerate(islice(changed(payload, value), 4)):
            replayed(capsys, journal_of(tmp_path / f"{number}-{at}", kind, [one]))


def test_pickled_keys(tmp_path: Path) -> None:
    """Numbers are keys up to 32 bits: of longer ones, thousands can have one hash."""
    for key, is_one in ((5, True), ("a", True), (1.5, True), (2**40, False), (None, False)):
        data = pickle.dumps({"version": "2.10", "pg_status": {key: {}}}, 2)
        if is_one:
            assert parse(data, source="x").version == "2.10"
        else:
            with pytest.raises(DumpError, match="a key that is no string or number"):
                parse(data, source="x")


def test_cells_that_a_spreadsheet_would_execute(shell: Shell, tmp_path: Path) -> None:
    """A text that begins like a formula gets a quote; numbers stay numbers."""
    calls = [Call(name, 10 * at, 5, file=f"{name}/a") for at, name in enumerate(FORMULAS)]
    (tmp_path / "a.pfw").write_text("\n".join(Writer("v2.2", 1).lines(calls)) + "\n")
    analyzed(shell, "--traces", tmp_path, "--output", tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert {row["name"] for row in rows} == {f"'{name}" for name in FORMULAS}
    assert {row["file"] for row in rows} == {f"'{name}/a" for name in FORMULAS}
    assert all(row["start_ns"].isdecimal() for row in rows)
    assert [csv_cell(value) for value in (-3.5, -1, "a=1", "")] == [-3.5, -1, "a=1", ""]
