"""A rank with a loader, traced by DFTracer: traced_loader.py OUT DATA [fork|kill|quote].

Reads every file in DATA, computes after each. With ``fork``, a child reads them again; with
``kill``, the process kills itself instead of finalizing the trace; with ``quote``, an argument of
each step has a quote in it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.modules["torch"] = None  # type: ignore[assignment]  # which dftracer imports if it can: 2 s

from dftracer.python import (  # type: ignore[import-not-found]  # noqa: E402
    ai,
    dft_fn,
    dftracer,
)


def load(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    total = 0
    while data := os.read(descriptor, 1 << 16):
        total += len(data)
    os.close(descriptor)
    return total


def main() -> None:
    out, data, *modes = sys.argv[1:]
    log = dftracer.initialize_log(logfile=str(Path(out, "job")), data_dir=data, process_id=-1)
    dft_fn("job").log_metadata("rank", os.environ["RANK"])
    files = sorted(Path(data).iterdir())

    def loader() -> Iterator[int]:
        yield from map(load, files)

    for step, _ in enumerate(ai.dataloader.fetch.iter(loader())):
        with ai.compute.forward as span:
            note = {"args": {"note": 'a,b"c'}} if "quote" in modes else {}
            span.update(epoch=0, step=step, **note)
            time.sleep(0.01)
    if "kill" in modes:
        os.kill(os.getpid(), signal.SIGKILL)
    if "fork" in modes:
        child = os.fork()
        if not child:
            load(next(path for path in files if path.is_file()))
            log.finalize()
            os._exit(0)
        os.waitpid(child, 0)
    log.finalize()


main()
