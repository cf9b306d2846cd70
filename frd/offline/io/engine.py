"""What runs the functions of the analysis: this process, or Dask.

Two ways of one small contract: `submit` a function, whose arguments may be results that are not
there yet, and `gather` results in the order in which they were submitted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final, Protocol

from frd.errors import ConfigError, ServiceUnavailable

Progress = Callable[[int, int], None]
"""Called with the number of results that are there, and of all."""

LARGE_BYTES: Final = 256 << 20
"""Below this, unpacked, starting processes costs more than they save."""
_PACKED_FACTOR: Final = 12
_TIMEOUT_S: Final = 10
_WORKERS: Final = "FRD_DASK_WORKERS"
_NEEDED: Final = "frd.offline.io.part"
"""The module with the functions that workers run."""


_ENVIRON: Final = {
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Dask's default gives memory back to the kernel after every block: a quarter of the time."""


class Engine(Protocol):
    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A handle of the result."""

    def gather(self, handles: Sequence[Any], progress: Progress | None = None) -> list[Any]: ...


class _Pending:
    """A call that is made when its result is wanted."""

    __slots__ = ("_call", "_result")

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self._call: tuple[Callable[..., Any], Sequence[Any]] | None = (function, arguments)
        self._result: Any = None

    def result(self) -> Any:
        if self._call is not None:
            function, arguments = self._call
            values = [one.result() if isinstance(one, _Pending) else one for one in arguments]
            self._result, self._call = function(*values), None
        return self._result


class InProcess:
    """One after another, in this process."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return _Pending(function, arguments)

    def gather(self, handles: Sequence[Any], progress: Progress | None = None) -> list[Any]:
        results = []
        for number, handle in enumerate(handles, 1):
            results.append(handle.result())
            if progress is not None:
                progress(number, len(handles))
        return results


class Distributed:
    """On the workers of a Dask scheduler; results stay there until they are gathered."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._client.submit(function, *arguments, pure=False)

    def gather(self, handles: Sequence[Any], progress: Progress | None = None) -> list[Any]:
        from distributed import as_completed

        for number, _ in enumerate(as_completed(handles), 1):
            if progress is not None:
                progress(number, len(handles))
        gathered: list[Any] = self._client.gather(list(handles))
        return gathered


@contextmanager
def engine_for(
    packed_bytes: int, plain_bytes: int, scheduler: str | None, warn: Callable[[str], None]
) -> Iterator[Engine]:
    """Dask at `scheduler`; else processes of this machine if there is much to read.

    Raises:
        ConfigError: a scheduler is named, but Dask is not installed; FRD_DASK_WORKERS is no number.
        ServiceUnavailable: the scheduler does not answer, or has no workers that can read traces.
    """
    if scheduler is not None:
        with _client(scheduler) as client:
            yield Distributed(client)
        return
    size = plain_bytes + packed_bytes * _PACKED_FACTOR
    workers = _workers()
    if size < LARGE_BYTES or workers < 2:
        yield InProcess()
    elif not _has_dask():
        warn(
            "traces: large, and read by one process only: `pip install dask distributed` to use "
            f"all {workers} cores"
        )
        yield InProcess()
    else:
        with local_cluster(workers) as client:
            yield Distributed(client)


def _workers() -> int:
    if not (given := os.environ.get(_WORKERS, "")):
        return len(os.sched_getaffinity(0))
    if not given.isdecimal():
        raise ConfigError(
            f"{_WORKERS}: {given}: no number of processes: use 1 or more, or unset it"
        )
    return int(given)


def _has_dask() -> bool:
    try:
        import distributed  # noqa: F401
    except ImportError:
        return False
    return True


@contextmanager
def local_cluster(workers: int) -> Iterator[Any]:
    """A client of that many processes, which end with it.

    GPUs are of no use to it, and it must not fail with their driver. Dask's HTTP server cannot be
    left out: it has no pages, and any free port of the loopback interface, so that two analyses at
    the same time do not compete for one.
    """
    import logging

    import dask
    from distributed import Client, LocalCluster

    with (
        dask.config.set(
            {
                "distributed.nanny.pre-spawn-environ": _ENVIRON,
                "distributed.worker.profile.enabled": False,
                "distributed.diagnostics.nvml": False,
                "distributed.scheduler.http.routes": [],
                "distributed.worker.http.routes": [],
            }
        ),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextmanager
def _client(scheduler: str) -> Iterator[Any]:
    if not _has_dask():
        raise ConfigError(
            f"--scheduler: {scheduler}: needs Dask, which is not installed: "
            "`pip install dask distributed`, or leave it out"
        )
    from distributed import Client

    try:
        client = Client(scheduler, timeout=_TIMEOUT_S)
    except (OSError, TimeoutError, ValueError) as error:
        raise ServiceUnavailable(
            f"--scheduler: {scheduler}: no Dask scheduler answers ({_words(error)}): "
            "name its address, such as tcp://HOST:8786, or leave it out"
        ) from None
    with client:
        _check_workers(client, scheduler)
        yield client


def _check_workers(client: Any, scheduler: str) -> None:
    """Fail before any work: tasks would wait for a worker for ever, or fail where frd is not."""
    try:
        client.wait_for_workers(1, timeout=_TIMEOUT_S)
    except TimeoutError:
        raise ServiceUnavailable(
            f"--scheduler: {scheduler}: has no workers: start some with "
            f"`dask worker {scheduler}`, or leave it out"
        ) from None
    try:
        found = {"the scheduler": client.run_on_scheduler(find_spec, _NEEDED)}
    except ImportError:
        found = {"the scheduler": None}
    found |= client.run(find_spec, _NEEDED, on_error="return")
    if lacking := [at for at, spec in found.items() if spec is None or isinstance(spec, Exception)]:
        raise ServiceUnavailable(
            f"--scheduler: {scheduler}: frd is not installed at {len(lacking)} of {len(found)} "
            f"processes of the cluster, such as {lacking[0]}: install this version of it there, or "
            "leave it out"
        )


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
