"""The service as one object, which is not started here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from frd.config import ClusterOptions, Config
from frd.service.app import App

SERVERS: Final = ("nats://127.0.0.1:4222",)


class Cell:
    """Remembers the configuration that is in force."""

    config: Config

    def adopt(self, config: Config) -> None:
        self.config = config


async def test_a_cell_adopts_only_what_needs_no_restart(tmp_path: Path) -> None:
    """The configuration is read again with another policy, another size of logs and no servers: the
    cells get the policy."""
    cluster = ClusterOptions(servers=SERVERS, log_bytes=1_000_000)
    config = Config(data_dir=tmp_path, cluster=cluster)
    app = App(config)
    cell: Any = Cell()
    app._cells[0] = cell
    policy = replace(config.policy, stall_after_s=77.0)
    app.adopt(config.model_copy(update={"policy": policy, "cluster": ClusterOptions(log_bytes=1)}))
    del app._cells[0]
    await app.stop()
    assert cell.config.policy == policy
    assert cell.config.cluster == cluster
