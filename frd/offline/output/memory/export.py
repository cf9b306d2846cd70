"""The samples of a recording and what was found in them, as one file: JSON lines, CSV, Parquet or
SQLite by its ending.

All formats have a row a sample, in the order of time over all ranks. SQLite has the rest as tables,
JSON lines as lines of another ``type`` before the samples, Parquet in its metadata; CSV has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import msgspec

from frd.forms import encodable, json_bytes
from frd.offline.analysis.analyze import Analysis
from frd.offline.memory.analysis import MemoryAnalysis
from frd.offline.output.export import (
    Content,
    Writers,
    check_new_file,
    write_csv,
    write_file,
    write_parquet,
    write_sqlite,
)
from frd.offline.output.memory.samples import Clocks, clocks_of, ranks_of, samples_table, shift_ns
from frd.offline.output.tables import FINDING, Batch, Columns, Table, of_objects

Progress = Callable[[int, int], None]
"""Called with the number of samples that are written, and of all."""

_RANK: Final[Columns] = {
    "job": ("str", lambda row: encodable(row[0].job)),
    "rank": ("int", lambda row: row[0].rank),
    "hosts": ("str[]", lambda row: encodable([*row[1].hosts])),
    "processes": ("str[]", lambda row: encodable([*row[1].processes])),
    "samples": ("int", lambda row: row[1].samples),
    "offset_ns": ("int", lambda row: row[0].offset_ns),
    "uncertainty_ns": ("int", lambda row: row[0].uncertainty_ns),
    "clock": ("str", lambda row: encodable(row[0].source)),
    "memory": ("str", lambda row: row[1].what),
    "first_bytes": ("int", lambda row: row[1].first_bytes),
    "peak_bytes": ("int", lambda row: row[1].peak_bytes),
    "last_bytes": ("int", lambda row: row[1].last_bytes),
    "capacity_bytes": ("int", lambda row: row[1].capacity_bytes or None),
}
"""Of the clock and the memory of a rank."""
_RISE: Final = {
    "job": "str",
    "ranks": "int[]",
    "suspects": "json",
    "series": "str",
    "device": "str",
    "onset_earliest_ns": "int",
    "onset_latest_ns": "int",
    "end_ns": "int",
    "bytes": "int",
    "bytes_per_s": "int",
    "peak_bytes": "int",
    "fell_back": "bool",
    "alarming": "bool",
    "common_cause": "bool",
    "next_rank": "int",
    "lead_s": "float",
    "unknown": "int[]",
    "whose": "str",
    "phase": "json",
    "text": "str",
}
_GAIN: Final = {
    "job": "str",
    "series": "str",
    "path": "str[]",
    "source": "str",
    "spans": "int",
    "ranks": "int",
    "bytes_gained": "int",
    "most_bytes": "int",
    "most_rank": "int",
    "seconds": "float",
    "shared": "bool",
}


def check_memory_export(path: Path) -> None:
    """Refuse before any work is done what `export_memory` would refuse after it.

    Raises:
        ConfigError: an ending that says no format, or Parquet without pyarrow.
        StoreError: the file exists.
    """
    hint = "with --memory use .jsonl, .csv, .parquet or .sqlite"
    check_new_file(path, _WRITERS, f"{hint} (--json prints the verdict without samples)")


def not_in(path: Path) -> str:
    """What the format of a file leaves out; empty if nothing."""
    if path.suffix != ".csv":
        return ""
    return (
        "ranks, missing ranks, clock offsets, rises and findings: CSV has the samples; .jsonl, "
        ".parquet and .sqlite have all"
    )


def export_memory(
    analysis: MemoryAnalysis,
    path: Path,
    dumps: Analysis | None,
    progress: Progress,
) -> None:
    """Write the samples on one clock, and all that was found.

    Args:
        offsets: Clocks by rank from a folder of dumps; None if there is none.

    Raises:
        ConfigError, StoreError: as `check_memory_export`, and when the file cannot be written.
    """
    check_memory_export(path)
    clocks = clocks_of(analysis, dumps)
    content = _content(analysis, clocks, progress, with_text=path.suffix in _FOR_READING)
    write_file(path, _WRITERS, content)


def _content(
    analysis: MemoryAnalysis, clocks: Clocks, progress: Progress, *, with_text: bool
) -> Content:
    samples = _watched(
        samples_table(analysis, clocks, with_text=with_text),
        sum(usage.samples for job in analysis.jobs for usage in job.ranks.values()),
        progress,
    )
    several = len(analysis.jobs) > 1
    ranks = [
        (clocks[job.job, rank], usage) for job in analysis.jobs for rank, usage in job.ranks.items()
    ]
    document = analysis.to_json()
    document["clocks"]["ranks"] = {
        f"{clock.job}/{clock.rank}" if several else str(clock.rank): asdict(clock)
        for clock in clocks.values()
    }
    return Content(
        document,
        [
            of_objects("ranks", ranks, _RANK),
            _of_json(
                "missing_ranks",
                [{"job": job.job, "rank": r} for job in analysis.jobs for r in job.missing_ranks],
                {"job": "str", "rank": "int"},
            ),
            _of_json("rises", [*_rises(analysis, clocks)], _RISE),
            _of_json("phases", [one.to_json() for one in analysis.phase_gains], _GAIN),
            of_objects("findings", analysis.findings, FINDING),
            samples,
        ],
        {"summary": encodable(analysis.summary), "clock_source": analysis.clock_source},
        analysis.warnings,
    )


def _watched(table: Table, total: int, progress: Progress) -> Table:
    """The same table, whose batches report how far it is."""

    def batches() -> Iterator[Batch]:
        done = 0
        for batch in table.batches():
            yield batch
            done += len(batch[0])
            progress(done, total)

    return replace(table, batches=batches)


def _of_json(name: str, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> Table:
    """A row an object, with those of its values that are `columns`."""
    values = {key: (kind, itemgetter(key)) for key, kind in columns.items()}
    return of_objects(name, encodable(rows), values)


def _rises(analysis: MemoryAnalysis, clocks: Clocks) -> Iterator[dict[str, Any]]:
    """As `Rise.to_json`, with times as numbers of aligned ns."""
    for rise in analysis.rises:
        shift = shift_ns(clocks, rise.job, ranks_of(rise))
        earliest, latest, end = (at + shift for at in (*rise.onset, rise.end_ns))
        yield rise.to_json() | {
            "onset_earliest_ns": earliest,
            "onset_latest_ns": latest,
            "end_ns": end,
        }


# -- JSON lines ----------------------------------------------------------------------------------


def _write_jsonl(content: Content, path: Path) -> None:
    """A line a row; its ``type`` is the table. What few lines say comes before the samples."""
    first = {"type": "analysis", **content.facts, "warnings": list(content.warnings)}
    encoder = msgspec.json.Encoder()
    with path.open("wb") as out:
        out.write(json_bytes(first) + b"\n")
        *small, samples = content.tables
        for table in small:
            for row in table.rows():
                out.write(json_bytes({"type": table.name.removesuffix("s"), **row}) + b"\n")
        names = ("type", *samples.columns)
        for batch in samples.batches():
            kind = [samples.name.removesuffix("s")] * len(batch[0])
            rows = zip(kind, *batch, strict=True)
            out.write(encoder.encode_lines([dict(zip(names, row, strict=True)) for row in rows]))


_WRITERS: Final[Writers] = {
    ".csv": write_csv,
    ".jsonl": _write_jsonl,
    ".parquet": write_parquet,
    ".sqlite": write_sqlite,
}
_FOR_READING: Final = (".csv", ".jsonl")
"""Formats that have the time as text as well."""
