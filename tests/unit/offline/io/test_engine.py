"""Which engine reads traces, and what is wrong with a Dask cluster before anything is read."""

from __future__ import annotations

import importlib.util
import socket
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from frd.cli import USAGE, run
from frd.errors import ServiceUnavailable
from frd.offline.io.engine import Distributed, engine_for, local_cluster
from tests.world.io_traces import Call, Writer, write_trace

SPEC = importlib.util.find_spec("frd")


class Cluster:
    """A client of Dask, and what processes of its cluster answer when they look for frd."""

    def __init__(self, scheduler: object, *workers: object) -> None:
        self._scheduler = scheduler
        self._workers = {f"tcp://n1:{number}": one for number, one in enumerate(workers)}

    def __call__(self, address: str, *, timeout: float) -> Cluster:
        return self

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None: ...

    def wait_for_workers(self, count: int, *, timeout: float) -> None:
        if len(self._workers) < count:
            raise TimeoutError

    def run_on_scheduler(self, function: Callable[..., Any], *arguments: Any) -> object:
        if isinstance(self._scheduler, Exception):
            raise self._scheduler
        return self._scheduler

    def run(self, function: Callable[..., Any], *arguments: Any, on_error: str) -> object:
        assert on_error == "return"
        return self._workers


def use(cluster: Cluster, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("distributed.Client", cluster)
    with engine_for(0, 0, "tcp://n1:8786", lambda text: None) as found:
        assert isinstance(found, Distributed)


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        (Cluster(SPEC), "has no workers: start some with `dask worker tcp://n1:8786`"),
        (
            Cluster(SPEC, SPEC, ModuleNotFoundError("no frd"), None),
            "frd is not installed at 2 of 4 processes of the cluster, such as tcp://n1:1: install",
        ),
        (
            Cluster(ModuleNotFoundError("no frd"), SPEC),
            "frd is not installed at 1 of 2 processes of the cluster, such as the scheduler",
        ),
    ],
)
def test_a_cluster_that_cannot_read_traces(
    cluster: Cluster, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks would wait for ever, or fail one by one: an error before the first."""
    with pytest.raises(ServiceUnavailable) as error:
        use(cluster, monkeypatch)
    assert str(error.value).startswith(f"--scheduler: tcp://n1:8786: {says}")


def test_a_cluster_with_frd_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its processes find frd."""
    use(Cluster(SPEC, SPEC, SPEC), monkeypatch)


def test_a_number_of_processes_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The variable is named, and nothing is read."""
    path = write_trace(tmp_path / "t.pfw", list(Writer("v2.2", 1).lines([Call("read", 1, 2)])))
    monkeypatch.setenv("FRD_DASK_WORKERS", "abc")
    assert run(["analyze", "--traces", str(path)]) == USAGE
    assert "FRD_DASK_WORKERS: abc: no number of processes" in capsys.readouterr().err


def test_two_analyses_at_once_do_not_compete_for_a_port() -> None:
    """Dask's usual port of its HTTP server is taken: nothing is printed, and no other is tried."""
    with socket.socket() as taken:
        with suppress(OSError):  # if it is taken by another program
            taken.bind(("127.0.0.1", 8787))
        with warnings.catch_warnings(record=True) as shown, local_cluster(1) as client:
            (port,) = client.run_on_scheduler(_http_ports)
        assert port != 8787
    assert [str(one.message) for one in shown if "Port" in str(one.message)] == []


def _http_ports(dask_scheduler: Any) -> list[int]:
    return [dask_scheduler.http_server.port]
