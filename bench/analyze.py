"""`frd analyze` and torchfrtrace on the same folder of dumps, in one run on one machine.

Both run as separate processes, as users run them, with the files in the page cache. Memory
is the largest sum of resident memory over a program and all of its children, looked at every few
milliseconds. The bare `pickle.load` of the same files says what reading them costs any program that
unpickles, before it has looked at anything.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

from bench.dump_folder import PREFIX, write_folder
from bench.program import Run
from bench.report import show

EXIT_FINDINGS: Final = 3

_PICKLE_LOAD: Final = """
import pathlib, pickle, sys, time
begin = time.perf_counter()
for path in pathlib.Path(sys.argv[1]).iterdir():
    with path.open("rb") as file:
        pickle.load(file)
print(time.perf_counter() - begin)
"""
_LOAD: Final = """
import sys, time
from frd.offline.load.folder import load_trace
begin = time.perf_counter()
load_trace(sys.argv[1])
print(time.perf_counter() - begin)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--entries", type=int, default=2_000)
    parser.add_argument("--no-torchfrtrace", action="store_true", help="ours and pickle.load only")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="frd-bench-") as scratch:
        folder = Path(scratch, "dumps")
        absent = write_folder(folder, options.ranks, options.entries)
        result = measure(folder, absent, with_torchfrtrace=not options.no_torchfrtrace)
    result = {"ranks": options.ranks, "entries": options.entries, **result}
    show(result, as_json=options.json)


def measure(folder: Path, absent: int, *, with_torchfrtrace: bool) -> dict[str, Any]:
    """Ours between two runs of theirs would be fairer still; one of theirs takes a minute."""
    size = sum(len(path.read_bytes()) for path in folder.iterdir())
    ours = Run([sys.executable, "-m", "frd", "analyze", str(folder), "--json"])
    if ours.code != EXIT_FINDINGS or not _blames(ours.output, absent):
        sys.exit(f"bench: frd analyze: {ours.code}: {ours.output[-500:].decode()}: not the verdict")
    pickle_load_s = float(_python(_PICKLE_LOAD, folder))
    result = {
        "bytes": size,
        "frd_s": ours.seconds,
        "frd_load_s": float(_python(_LOAD, folder)),
        "frd_rss_bytes": ours.peak_bytes,
        "pickle_load_s": pickle_load_s,
        "ratio_to_pickle_load": ours.seconds / pickle_load_s,
    }
    if with_torchfrtrace:
        program = "torch.distributed.flight_recorder.fr_trace"
        theirs = Run([sys.executable, "-m", program, str(folder), "--prefix", PREFIX])
        result |= {
            "torchfrtrace_s": theirs.seconds,
            "torchfrtrace_rss_bytes": theirs.peak_bytes,
            "speedup": theirs.seconds / ours.seconds,
            "rss_share": ours.peak_bytes / theirs.peak_bytes,
        }
    return result


def _blames(output: bytes, absent: int) -> bool:
    """The verdict is the right one: being fast and wrong is no figure."""
    findings = json.loads(output)["findings"]
    return [[s["rank"] for s in finding["suspects"]] for finding in findings] == [[absent]]


def _python(code: str, folder: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", code, str(folder)], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


if __name__ == "__main__":
    main()
