"""The HTTP API over a job of four ranks, of which rank 2 hangs; ranks 0 and 1 are another group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from frd.service.state import ServiceState
from tests.world.http_api import Client, Service
from tests.world.job import Job, hanging
from tests.world.views import NOW, node_view

PATH = "/api/v1/jobs/job"


class HangApi(Client):
    """The agent of node1, with ranks 2 and 3, is silent."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Service(folder, [], []))
        self.job = hanging(8)
        self.job.group("tp", (0, 1)).all_reduce("tp", 0)
        self.job.report()
        self.show(self.job)

    def show(self, job: Job) -> None:
        """The service has evaluated this job."""
        nodes = [
            node_view(f"node{n}", {job.key: (2 * n, 2 * n + 1)}, reporting=n == 0) for n in range(2)
        ]
        view = job.engine.status_view(job.now)
        paces = {job.key: (None, 2.0)}
        self.service.state = ServiceState(view, nodes, evaluated_at=NOW, paces=paces)


@contextmanager
def hang_api(folder: Path) -> Iterator[HangApi]:
    client = HangApi(folder)
    yield client
    client.service.close()
