"""frd names the first cause when distributed PyTorch training hangs, while it hangs.

`load` is the door to it from Python: the analysis of a folder of dumps, as `frd analyze` prints it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frd.offline.analysis import Analysis

__version__ = "0.1.0"


def load(
    path: str | os.PathLike[str],
    *,
    prefix: str | None = None,
    ranks: Collection[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
    transform_ft: int | None = None,
) -> Analysis:
    """What a folder of Flight Recorder dumps says: findings, collectives, groups and ranks.

    Args:
        path: a folder (its subfolders are hosts), one that `frd dump` made, or a single dump.
        prefix: what file names start with, before the rank; inferred when absent.
        ranks: load only these.
        progress: told after every file how many are done, of how many.
        transform_ft: ranks in a torchft replica group, whose groups torchft numbers from 0.

    Raises:
        DumpError: there is no folder, or no readable dump in it.
    """
    from frd.offline.analysis import analyze  # noqa: PLC0415  numpy only for those who ask
    from frd.offline.folder import load_trace  # noqa: PLC0415

    trace = load_trace(
        path, prefix=prefix, ranks=ranks, progress=progress, transform_ft=transform_ft
    )
    return analyze(trace)
