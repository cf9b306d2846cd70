"""The demo's cluster: three replicas of the service on three NATS servers, and the death of one.

The replica that watches the job is killed as soon as the finding is there. The finding has to come
from another replica, with the same id and the same suspects.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from frd.cli.client import Client
from frd.cli.commands.demo.stage import ANY_PORTS, Addresses, Stage, watch
from frd.cluster import INSTALL
from frd.cluster.cells import cell_of
from frd.errors import FrdError

REPLICAS: Final = 3
_OWNED_WITHIN_S: Final = 60.0
_TAKEN_WITHIN_S: Final = 30.0
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Takeover:
    """How another replica went on after the one that watched the job was killed."""

    killed: str
    by: str
    http: str
    """Where the other one listens."""
    seconds: float
    """From the kill until another replica showed the finding."""
    findings: Sequence[Mapping[str, Any]]
    """As that replica shows them."""


def start_cluster(stage: Stage) -> list[Addresses]:
    """Start NATS servers and replicas; returns their addresses once all cells have an owner.

    Raises:
        FrdError: a program is missing, or did not start.
    """
    servers = _start_nats(stage)
    replicas = [
        stage.start_service(
            ANY_PORTS,
            name=_name(number),
            environment={
                "FRD_CLUSTER__SERVERS": ",".join(servers),
                "FRD_CLUSTER__MEMBER": _name(number),
            },
        )
        for number in range(REPLICAS)
    ]
    for _ in watch(_POLL_S, _OWNED_WITHIN_S):
        if not Client(replicas[0].http).get("/api/v1/cluster")["unowned"]:
            return replicas
    raise FrdError(f"demo: failover: cells without an owner: {stage.log(_name(0))[-500:]}")


def kill_owner(stage: Stage, replicas: Sequence[Addresses], finding_id: str) -> Takeover:
    """Kill the replica that watches the job, and wait until another one shows the finding.

    Raises:
        FrdError: no other replica shows it in time.
    """
    owner = Client(replicas[0].http).get("/api/v1/cluster")["owners"][cell_of(stage.job)]
    os.killpg(stage.process(owner).pid, signal.SIGKILL)
    stage.process(owner).wait()
    began = time.monotonic()
    left = [at for number, at in enumerate(replicas) if _name(number) != owner]
    for _ in watch(_POLL_S, _TAKEN_WITHIN_S):
        for at in left:
            with contextlib.suppress(FrdError):
                cluster = Client(at.http).get("/api/v1/cluster")
                by = cluster["owners"][cell_of(stage.job)]
                query = {"job": stage.job, "state": "open"}
                found = Client(at.http).get("/api/v1/findings", query)["findings"]
                if by not in (None, owner) and finding_id in [f["id"] for f in found]:
                    return Takeover(owner, by, at.http, time.monotonic() - began, found)
    raise FrdError(f"demo: failover: finding {finding_id} is gone: {stage.log(_name(1))[-500:]}")


def _name(number: int) -> str:
    return f"frd-{number}"


def _start_nats(stage: Stage) -> list[str]:
    """Three servers on free ports that form one cluster; returns their URLs."""
    if importlib.util.find_spec("nats") is None:
        raise FrdError(f"demo: failover: nats-py is missing: {INSTALL}")
    installed = Path(sys.executable).with_name("nats-server")
    program = str(installed) if installed.exists() else shutil.which("nats-server")
    if program is None:
        raise FrdError(
            "demo: failover: nats-server: not found: install NATS 2.12 or newer; see "
            "docs/cluster.md"
        )
    ports = [(_free_port(), _free_port()) for _ in range(REPLICAS)]
    routes = ", ".join(f"nats://127.0.0.1:{route}" for _, route in ports)
    for number, (client, route) in enumerate(ports):
        name = f"nats-{number}"
        config = stage.folder / f"{name}.conf"
        config.write_text(
            f"server_name: {name}\n"
            f"listen: 127.0.0.1:{client}\n"
            f'jetstream {{store_dir: "{stage.folder / name}", max_file_store: 200GB, '
            "sync_interval: always}\n"
            f"cluster {{name: demo, listen: 127.0.0.1:{route}, routes: [{routes}]}}\n"
        )
        stage.spawn(name, [program, "--config", str(config)])
    return [f"nats://127.0.0.1:{client}" for client, _ in ports]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
