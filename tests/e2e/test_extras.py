"""frd as `pip install` gives it: the packages that only some commands need are missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.world.daemons import first_line, run_program, running

EXTRAS = ("dask", "distributed", "httpx", "matplotlib", "nats", "nkeys", "pyarrow", "zstandard")
WITHOUT_EXTRAS = f"""
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from {{package}}.cli import main
main()
"""


def command(package: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", WITHOUT_EXTRAS.replace("{package}", package), *arguments]


def test_the_service_starts_without_the_extras(tmp_path: Path) -> None:
    """`frd serve` without a cluster needs none of them."""
    addresses = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
    with running(command("frd", "serve", "--data-dir", str(tmp_path), *addresses)) as service:
        assert set(json.loads(first_line(service))) == {"grpc", "http"}


def test_commands_without_the_extras() -> None:
    """Other commands at least start."""
    for package, arguments in (
        ("frd", ("analyze", "--help")),
        ("frd", ("replay", "--help")),
        ("frd_agent", ("run", "--help")),
    ):
        done = run_program(command(package, *arguments))
        assert done.returncode == 0, done.stderr


def test_a_cluster_without_its_packages_is_a_clear_error(tmp_path: Path) -> None:
    """A section [cluster] names what to install."""
    config = tmp_path / "frd.toml"
    config.write_text('[cluster]\nservers = ["nats://127.0.0.1:1"]\nname = "a"\n')
    done = run_program(
        command("frd", "serve", "--config", str(config), "--data-dir", str(tmp_path / "data"))
    )
    assert done.returncode == 2, done.stderr
    assert "frd-daemon[cluster]" in done.stderr
    assert "Traceback" not in done.stderr
