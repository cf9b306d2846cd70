"""`make test-gpu` on machines that cannot run it: one line that names the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.machine import reason_to_skip

ROOT = Path(__file__).parents[3]
GIB = 1 << 30


@pytest.mark.parametrize(
    ("cuda", "devices", "nccl", "free", "reason"),
    [
        (None, 0, (), 0, "no CUDA build"),
        ("13.0", 0, (), 0, "no GPU: the NVIDIA driver is not loaded"),
        ("13.0", 1, (2, 28, 9), 80 * GIB, "NCCL 2.28.9 refuses to share a GPU: install"),
        ("13.0", 1, (2, 32, 3), 4 * GIB, "4096 MiB of GPU memory are free: 20480 needed"),
        ("13.0", 1, (2, 30, 0), 80 * GIB, ""),
        ("12.8", 8, (2, 21, 5), 0, ""),
    ],
)
def test_the_reason(
    cuda: str | None, devices: int, nccl: tuple[int, ...], free: int, reason: str
) -> None:
    """No CUDA build, no driver, an NCCL that is too old, too little memory; eight GPUs share
    nothing."""
    found = reason_to_skip(cuda, devices, lambda: nccl, lambda: free)
    assert reason in found
    assert bool(found) == bool(reason)


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


def test_this_torch_is_named() -> None:
    """Asked of a real interpreter: a reason, or versions."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.machine"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.startswith(("skipped: ", "torch "))
