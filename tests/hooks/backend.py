"""Builds `backend.cpp` for the torch of this interpreter, once for all tests of a machine.

As a program: OUT, the library. That is a process of its torch, so that no test has to import it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("backend.cpp")
FORMS: Final = ("late", "issue")
"""A thread pushes completion about once a second; the hook retires an op when it is issued."""
_NAME: Final = "hooked_backend"
_HOOK: Final = "include/torch/csrc/distributed/c10d/hooks/FlightRecorderHook.hpp"


def why_not() -> str:
    """Why it cannot be built here; empty if it can."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return "torch is not installed"
    if not Path(spec.submodule_search_locations[0], _HOOK).exists():
        return "torch has no FlightRecorderHook, which came with 2.15"
    missing = [program for program in ("c++", "ninja") if shutil.which(program) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def library() -> Path:
    """The built library, from a folder of temporary files if it was built before."""
    text = SOURCE.read_bytes() + importlib.metadata.version("torch").encode()
    name = f"frd-{_NAME}-{hashlib.sha256(text).hexdigest()[:12]}.so"
    built = Path(tempfile.gettempdir()) / name
    if not built.exists():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "tests.hooks.backend", folder]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert not done.returncode, done.stdout + done.stderr
            partial = built.with_name(f"{name}.{os.getpid()}")
            shutil.copy(Path(folder) / f"{_NAME}.so", partial)
            partial.replace(built)
    return built


def main() -> None:
    from torch.utils.cpp_extension import load

    load(
        name=_NAME,
        sources=[str(SOURCE)],
        build_directory=sys.argv[1],
        extra_cflags=["-O0"],
        is_python_module=False,
    )


if __name__ == "__main__":
    main()
