"""The wheel alone, in an empty environment of each Python that frd supports: `make test-wheel`.

Dependencies come from the registry, as requirements/service.txt pins them; no extra is installed.
The job has its Python in another environment, which has torch and no frd, so the tap that it loads
is that of the wheel. With FRD_WHEEL_TORCH=1 torch is installed next to frd instead, which for some
Pythons is a download of gigabytes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT
from tests.world.daemons import first_line, free_address, launched, run_program, running, until
from tests.world.interpreters import interpreter

TORCH = re.findall(r"^torch==[\w.]+", (ROOT / "requirements/demo.txt").read_text(), re.MULTILINE)
NEXT_TO_FRD = os.environ.get("FRD_WHEEL_TORCH") == "1"
EXTRAS = ("dask", "matplotlib", "nats", "pyarrow", "httpx")
ABSENT = """
import importlib.util, sys
print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))
"""
pytestmark = pytest.mark.timeout(900)


def pip(python: str | Path, *arguments: str | Path) -> None:
    command = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ".")
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(params=["3.11", "3.12", "3.13"])
def programs(request: pytest.FixtureRequest, wheel: Path, tmp_path: Path) -> Path:
    """The folder of the programs of an environment that has the wheel."""
    subprocess.run([interpreter(request.param), "-m", "venv", tmp_path / "frd"], check=True)
    found = tmp_path / "frd/bin"
    pinned = ROOT / "requirements/service.txt"
    pip(found / "python", "install", "--no-deps", "--require-hashes", "-r", pinned)
    pip(found / "python", "install", "--no-index", wheel)
    if NEXT_TO_FRD:
        pip(found / "python", "install", *TORCH)
    return found


@pytest.fixture
def torch(programs: Path, tmp_path: Path) -> Path:
    """The Python of the job."""
    if NEXT_TO_FRD:
        return programs / "python"
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        pytest.skip("torch is not installed: make torch says why")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "job"], check=True)
    (inside,) = (tmp_path / "job/lib").glob("python*/site-packages")
    # A .pth file in that folder is not read, so frd, which is installed by one, stays away.
    (inside / "torch.pth").write_text(str(Path(torch.origin).parents[1]))
    return tmp_path / "job/bin/python"


@pytest.fixture
def env(programs: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "FRD_", "VIRTUAL"))}
    with tempfile.TemporaryDirectory(prefix="frd-") as runtime:
        yield kept | {
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "XDG_RUNTIME_DIR": runtime,
            "FRD_GRPC": free_address(),
            "FRD_HTTP": free_address(),
            "FRD_AGENT_METRICS": free_address(),
            "FRD_POLICY__STALL_AFTER_S": "3",
        }


def suspect_with_worker(env: dict[str, str], programs: Path) -> Any:
    """The suspect of the open finding, once it has the stack of its loader's worker."""
    asked = run_program([str(programs / "frd"), "findings", "--json"], env=env)
    suspects = [one for f in json.loads(asked.stdout)["findings"] for one in f["suspects"]]
    return next((one for one in suspects if "read_sample" in str(one.get("workers"))), None)


def test_a_worker_of_a_data_loader_is_named(
    programs: Path, torch: Path, env: dict[str, str], tmp_path: Path
) -> None:
    """`frd up`, then a job whose loader's worker reads a file that never comes: the finding has the
    stack of the worker, which only py-spy can read, and it came with the wheel."""
    said = run_program([str(programs / "python"), "-c", ABSENT, *EXTRAS])
    assert said.stdout.split() == list(EXTRAS)
    (script,) = (programs.parent / "lib").glob("python*/site-packages/frd/examples/starved.py")
    ranks: list[str | Path] = [torch, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    ranks += [script, "--rank", "1"]
    log = (tmp_path / "log").read_text
    with running([programs / "frd", "up"], without=("",), env=env, log=tmp_path / "log") as up:
        assert first_line(up).startswith("page: "), log()
        until(lambda: "connected" in log(), log)
        job = [programs / "frd-agent", "exec", "--", *ranks]
        with launched(job, without=("",), env=env, log=tmp_path / "log"):
            suspect = until(partial(suspect_with_worker, env, programs), log, 120)
    assert suspect["rank"] == 1
    assert "waits for its DataLoader worker" in suspect["doing"]
