"""Other versions of Python on this machine, and a torch for them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def interpreter(version: str) -> str:
    """A Python of this version, such as ``3.9``, or else a skip."""
    places = [
        shutil.which(f"python{version}"),
        *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")),
    ]
    for place in filter(None, places):
        asked = subprocess.run([place, "-c", VERSION], capture_output=True, text=True, check=False)
        if asked.stdout.strip() == version:  # and not a shim that says it is not chosen
            return place
    pytest.skip(f"no Python {version} on this machine")


def fake_torch(folder: Path) -> Path:
    """`folder`, with a torch that can be imported, and whose process groups never come."""
    package = folder / "torch"
    (package / "distributed").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "distributed" / "__init__.py").touch()
    return folder
