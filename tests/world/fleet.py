"""A whole cluster on this machine: real NATS servers, real replicas of the service."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from frd.cluster.cells import CELLS, cell_of
from tests.world.daemons import (
    end,
    first_line,
    free_address,
    get,
    metric,
    serve_command,
    start,
    until,
)
from tests.world.nats_servers import USER, NatsServers, nats_servers
from tests.world.proxy import Proxy


@dataclass
class ReplicaProcess:
    """One `frd serve` of the cluster. It keeps its addresses when it starts again."""

    name: str
    grpc: str
    http: str
    process: subprocess.Popen[str]
    proxy: Proxy | None = None
    """In front of `grpc`."""
    to_nats: Proxy | None = None
    """The only way to NATS."""

    @property
    def address(self) -> str:
        """At which agents reach it."""
        return self.grpc if self.proxy is None else self.proxy.address

    def get(self, path: str) -> Any:
        return get(self.http, path)

    def metric(self, series: str) -> float:
        return metric(self.http, series)


class Fleet:
    """`replicas` by name: frd-0, frd-1, ..."""

    def __init__(
        self,
        folder: Path,
        nats: NatsServers,
        env: Mapping[str, str],
        mark: bytes | None = None,
        *,
        may_cut: bool = False,
    ) -> None:
        """With `mark`, agents reach each replica through a `Proxy` that knows this mark. With
        `may_cut`, each replica reaches NATS through a `Proxy` only."""
        self.nats = nats
        self._may_cut = may_cut
        self._mark = mark
        self._proxies = contextlib.ExitStack()
        self.replicas: dict[str, ReplicaProcess] = {}
        self._folder = folder
        self._env = env
        self._user_file = folder / "user"
        self._user_file.write_text(USER)

    def start(self, name: str) -> ReplicaProcess:
        """Start a replica, and wait until it listens."""
        known = self.replicas.get(name)
        grpc, http = (known.grpc, known.http) if known else (free_address(), free_address())
        proxy = known.proxy if known else None
        if known is None and self._mark is not None:
            proxy = self._proxies.enter_context(Proxy(grpc, mark=self._mark))
        advertised = {} if proxy is None else {"FRD_CLUSTER__ADVERTISE_GRPC": proxy.address}
        urls, to_nats = self.nats.urls, known.to_nats if known else None
        if self._may_cut:
            near = urls[len(self.replicas) % len(urls)]
            target = near.removeprefix("nats://")
            to_nats = to_nats or self._proxies.enter_context(Proxy(target))
            urls = (f"nats://{to_nats.address}",)
        data = self._folder / name
        process = start(
            [*serve_command(data), "--grpc", grpc, "--http", http],
            env={
                "FRD_CLUSTER__SERVERS": ",".join(urls),
                "FRD_CLUSTER__MEMBER": name,
                "FRD_CLUSTER__USER_FILE": str(self._user_file),
                **advertised,
                **self._env,
            },
            log=self._folder / f"{name}.log",
        )
        self.replicas[name] = replica = ReplicaProcess(name, grpc, http, process, proxy, to_nats)
        assert first_line(process), self.log(name)
        return replica

    def kill(self, name: str) -> None:
        end(self.replicas[name].process)

    @property
    def alive(self) -> list[ReplicaProcess]:
        return [r for r in self.replicas.values() if r.process.poll() is None]

    @property
    def service(self) -> str:
        """The agents' `service`: all replicas."""
        return ",".join(replica.address for replica in self.replicas.values())

    def owned(self) -> dict[str, int]:
        """Cells that each living replica has."""
        return {r.name: int(r.metric('frd_cells{state="owned"}')) for r in self.alive}

    def await_owned(self) -> None:
        """All cells have an owner."""
        until(lambda: sum(self.owned().values()) == CELLS, lambda: str(self.owned()))

    def owner_of(self, job: str) -> ReplicaProcess | None:
        """The replica whose own state has the job's cell."""
        cell = cell_of(job)
        for replica in self.alive:
            if replica.get("/api/v1/cluster")["owners"][cell] == replica.name:
                return replica
        return None

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def end(self) -> None:
        for replica in self.replicas.values():
            with contextlib.suppress(OSError):
                end(replica.process)
        self._proxies.close()


@contextlib.contextmanager
def fleet(
    folder: Path,
    count: int = 3,
    env: Mapping[str, str] = MappingProxyType({}),
    mark: bytes | None = None,
    *,
    may_cut: bool = False,
) -> Iterator[Fleet]:
    """`count` replicas on three NATS servers, all cells owned."""
    (folder / "nats").mkdir()
    with nats_servers(folder / "nats", advertise=not may_cut) as nats:
        whole = Fleet(folder, nats, env, mark, may_cut=may_cut)
        try:
            for number in range(count):
                whole.start(f"frd-{number}")
            whole.await_owned()
            yield whole
        finally:
            whole.end()
