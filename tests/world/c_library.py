"""Shared libraries in C that replace one of the system in a test."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def shared_library(source: Path, target: Path, *options: str) -> str:
    """The path of `target`, compiled from `source`; skips the test if there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    given = ["-shared", "-fPIC", "-Wall", "-Werror", *options]
    subprocess.run([compiler, *given, "-o", str(target), str(source)], check=True)
    return str(target)
