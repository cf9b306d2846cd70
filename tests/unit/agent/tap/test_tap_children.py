"""What the tap records of the end of a child of multiprocessing, which prints its exception itself
or not at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from frd_agent import tap

PROGRAM = f"""
import multiprocessing, os, signal, sys
from importlib.util import module_from_spec, spec_from_file_location

def load():  # as an import of torch.distributed does
    spec = spec_from_file_location("_frd_tap", {str(Path(tap.__file__))!r})
    module = sys.modules["_frd_tap"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.Stage.close = lambda self: os.write(1, (str(said(module)) + "\\n").encode())
    module.install()

def said(module):
    record = module._exit_record(1)
    line = record["frames"][0][2] if record.get("frames") else ""
    return record["detail"] + " " + line if line else record["detail"] or record["kind"]

if __name__ != "__main__" or sys.argv[1] == "fork":
    load()

def read():
    raise ValueError("bad batch")

def raises():
    read()

def exits():  # as torch.multiprocessing.spawn
    try:
        read()
    except Exception:
        sys.exit(1)

def exits_later():
    try:
        read()
    except Exception:
        pass
    sys.exit(1)

def is_done():
    try:
        read()
    except Exception:
        sys.exit(0)

def terminated():
    def handler(*_):
        sys.exit(143)
    signal.signal(signal.SIGTERM, handler)
    try:
        read()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

def returns():
    pass

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    for way in (raises, exits, exits_later, is_done, terminated, returns):
        child = context.Process(target=way)
        child.start()
        child.join()
"""
READ = "ValueError: bad batch read"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_exception_of_a_child(method: str, tmp_path: Path) -> None:
    """Children end by an exception, by sys.exit while they handle one and after that, by a handler
    of SIGTERM, and by themselves: the record has the exception that ended them, and no other."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-W", "error", str(script), method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:6] == [READ, READ, "clean", "clean", READ, "clean"], done
