"""`make test-gpu` on machines that cannot run it: one line that names the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def run(folder: Path, python: str, **environ: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if name != "FRD_GPU_PYTHON"}
    return subprocess.run(
        [ROOT / "scripts" / "gpu", folder / "venv", python],
        cwd=ROOT, env=known | environ, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def script(folder: Path, text: str) -> str:
    """A program in place of an interpreter."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_no_driver_is_one_line(tmp_path: Path) -> None:
    """The command installs nothing and does not fail; the probe itself is asked of a real
    interpreter, whose driver cannot be loaded."""
    (tmp_path / "libcuda.so.1").write_text("")
    done = run(tmp_path, sys.executable, LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert "skipped: no NVIDIA driver" in done.stdout
    assert not (tmp_path / "venv").exists()


def test_a_broken_interpreter_or_driver_is_an_error(tmp_path: Path) -> None:
    """They are no reason to skip."""
    absent = run(tmp_path, "no-such-python")
    assert (absent.returncode, "cannot be run" in absent.stderr) == (1, True)
    broken = run(tmp_path, script(tmp_path, "echo 802"))
    assert (broken.returncode, "error 802" in broken.stderr) == (1, True)
