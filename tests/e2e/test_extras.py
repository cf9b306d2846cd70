"""frd as `pip install` gives it: the packages that only some commands need are missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.world.daemons import first_line, run_program, running

EXTRAS = ("dask", "distributed", "httpx", "matplotlib", "nats", "nkeys", "pyarrow")
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


def command(package: str, *arguments: str, without: tuple[str, ...] = EXTRAS) -> list[str]:
    program = WITHOUT_EXTRAS.replace("{package}", package).replace(repr(EXTRAS), repr(without))
    return [sys.executable, "-c", program, *arguments]


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


@pytest.mark.parametrize("missing", ["httpx", "nats", "nkeys"])
def test_a_cluster_without_its_packages_is_a_clear_error(missing: str, tmp_path: Path) -> None:
    """A section [cluster] needs them all, and names what to install before anything starts."""
    config = tmp_path / "frd.toml"
    config.write_text('[cluster]\nservers = ["nats://127.0.0.1:1"]\nname = "a"\n')
    done = run_program(
        command(
            *("frd", "serve", "--config", str(config), "--data-dir", str(tmp_path / "data")),
            without=(missing,),
        )
    )
    assert (done.returncode, done.stderr) == (
        2,
        f"frd: error: cluster.servers: set, and {missing} is missing: "
        "pip install httpx nats-py nkeys\n",
    )
