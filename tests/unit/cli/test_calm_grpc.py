"""How the two daemons set gRPC up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_AT_IMPORT = """
import os, runpy, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(os.environ.get("GRPC_EXPERIMENTS"), flush=True)
            os._exit(0)
sys.meta_path.insert(0, Finder())
runpy.run_module(sys.argv.pop(1), run_name="__main__")
"""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("frd", ["serve", "--data-dir", "data"]), ("frd_agent", ["run", "--run-dir", "run"])],
)
def test_threads_of_the_event_engine_are_off(
    module: str, arguments: list[str], tmp_path: Path
) -> None:
    """gRPC reads the variable when it is imported: by then it is set, and gRPC knows the names."""
    command = [sys.executable, "-c", _AT_IMPORT, module, *arguments]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    value = _run(command, env, tmp_path).stdout.strip()
    assert "-event_engine_client" in value
    used = [sys.executable, "-c", "import grpc.aio; grpc.insecure_channel('127.0.0.1:1')"]
    assert not _run(used, env | {"GRPC_EXPERIMENTS": value}, tmp_path).stderr


def _run(command: list[str], env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
