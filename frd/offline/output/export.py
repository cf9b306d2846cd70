"""Files of an analysis: JSON, SQLite, Parquet or CSV by their ending, and the timeline.

JSON and SQLite hold all tables under the same names. Parquet, which holds one table a file, has the
spans of traces, else the entries, and the rest of the analysis in its metadata; CSV has the spans.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Final

from frd.errors import ConfigError
from frd.offline.analysis.analyze import Analysis
from frd.offline.io.analysis import IoAnalysis
from frd.offline.memory.analysis import MemoryAnalysis
from frd.offline.output.io_tables import io_tables
from frd.offline.output.table_files import (
    Content,
    Writers,
    check_new_file,
    write_csv,
    write_file,
    write_json,
    write_parquet,
    write_sqlite,
)
from frd.offline.output.tables import Table, tables
from frd.offline.output.timeline import Progress, write_timeline
from frd.store.new_path import new_path

_PACKING = 3
"""A third of the time of the usual level; the padding of a timeline goes either way."""
_WRITERS: Final[Writers] = {
    ".csv": write_csv,
    ".json": write_json,
    ".parquet": write_parquet,
    ".sqlite": write_sqlite,
}


def check_export(path: Path, *, traces: bool = False) -> None:
    """Refuse before any work is done what `export` would refuse after it.

    Raises:
        ConfigError: an ending that says no format, CSV without traces, or Parquet without pyarrow.
        StoreError: the file exists.
    """
    if path.suffix == ".csv" and not traces:
        raise ConfigError(
            f"output: {path}: CSV has the spans of traces: add --traces, or use .json, .parquet or "
            ".sqlite"
        )
    hint = "use .json, .parquet, .sqlite, or .csv with --traces"
    check_new_file(path, _WRITERS, hint)


def export(analysis: Analysis | None, path: Path, io: IoAnalysis | None = None) -> None:
    """Write the analysis of dumps, of traces or of both in the format that the ending says.

    Raises:
        ConfigError, StoreError: as `check_export`, and when the file cannot be written.
    """
    check_export(path, traces=io is not None)
    write_file(path, _WRITERS, _content(analysis, io))


def _content(analysis: Analysis | None, io: IoAnalysis | None) -> Content:
    document: dict[str, Any] = {}
    found: list[Table] = []
    facts: dict[str, str] = {}
    warnings: list[str] = []
    if analysis is not None:
        document |= analysis.to_json()
        found += tables(analysis)
        facts |= {
            "summary": analysis.summary,
            "clock_source": analysis.clock_source,
            "not_proven": json.dumps(list(analysis.not_proven)),
        }
        warnings += analysis.warnings
    if io is not None:
        document["io"] = io.to_json()
        found += io_tables(io)
        warnings += io.warnings
    return Content(document, found, facts, warnings)


def export_timeline(
    analysis: Analysis | None,
    path: Path,
    progress: Progress,
    io: IoAnalysis | None = None,
    memory: MemoryAnalysis | None = None,
) -> None:
    """Write the timeline of dumps, traces and memory; packed if the ending is ``.gz``.

    Raises:
        StoreError: the file exists or cannot be written.
    """
    with new_path(path) as staged, staged.open("wb") as out:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", _PACKING, out) as packed:
                write_timeline(analysis, packed, progress, io, memory)
        else:
            write_timeline(analysis, out, progress, io, memory)
