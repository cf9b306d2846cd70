"""frd names the first cause when distributed PyTorch training hangs, while it hangs.

`load` and `load_memory` return to Python what `frd analyze` prints: the analysis of a folder of
dumps, and of files of memory telemetry.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from frd.version import __version__ as __version__

__all__ = ["__version__", "load", "load_memory"]

if TYPE_CHECKING:
    from frd.offline.analysis.analyze import Analysis
    from frd.offline.memory.analysis import MemoryAnalysis


def __dir__() -> list[str]:
    return __all__


def load(
    path: str | os.PathLike[str],
    *,
    prefix: str | None = None,
    ranks: Collection[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
    transform_ft: int | None = None,
    stall_after_s: float | None = None,
) -> Analysis:
    """Analyze a folder of Flight Recorder dumps: findings, collectives, groups and ranks.

    Args:
        path: a folder (its subfolders are hosts), one that `frd dump` made or that holds several of
            these, or a single dump.
        prefix: what file names start with, before the rank; inferred when absent.
        ranks: load only these.
        progress: called after every file with the number done and the total.
        transform_ft: ranks in a torchft replica group, whose groups torchft numbers from 0.
        stall_after_s: how long an op must have waited when dumped to be a hang; by default as long
            as for the service that took the dumps, else 10.

    Raises:
        DumpError: the folder does not exist, or has no readable dump.
    """
    from frd.offline.analysis.analyze import analyze  # noqa: PLC0415  numpy only if needed
    from frd.offline.load.folder import load_dumps  # noqa: PLC0415

    *earlier, last = load_dumps(
        [path], prefix=prefix, ranks=ranks, progress=progress, transform_ft=transform_ft
    )
    return analyze(last, stall_after_s=stall_after_s, earlier=earlier)


def load_memory(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    clock_uncertainty_s: float = 1.0,
    min_rise_bytes: int = 1 << 26,
    warmup_s: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> MemoryAnalysis:
    """Analyze files of memory telemetry: which rank's memory rose first, and the use of each rank.

    Args:
        paths: one file or several of events of the "TelemetryEventV2" form, JSON lines or a JSON
            list, gzipped or not; in any order, with any ranks and jobs in each.
        clock_uncertainty_s: how far off the clock of each host may be, where there are several.
        min_rise_bytes: what is smaller is not a rise.
        warmup_s: rises within this long from a job's first sample do not count. By default all
            rises are found, and those of the job's start alarm only if they go on.
        progress: called after every chunk with the bytes read and the total.

    Raises:
        TelemetryError: no file has a sample.
        ConfigError: a time or a number of bytes that cannot be.
    """
    from frd.offline.memory import analyze  # noqa: PLC0415  see above

    options = analyze.MemoryOptions(clock_uncertainty_s, min_rise_bytes, warmup_s)
    return analyze.load_memory(paths, options, progress)
