"""The service as one object, which is not started here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from frd.config import ClusterOptions, Config, NotifyTarget
from frd.service import app as app_module
from frd.service.app import App, advertised_in_vain
from frd.service.findings.notifier import Notifier

SERVERS: Final = ("nats://127.0.0.1:4222",)


class Cell:
    """Remembers the configuration that is in force."""

    config: Config

    def adopt(self, config: Config) -> None:
        self.config = config


async def test_a_cell_adopts_only_what_needs_no_restart(tmp_path: Path) -> None:
    """The configuration is read again with another policy and no servers: the cells get the
    policy."""
    cluster = ClusterOptions(servers=SERVERS)
    config = Config(data_dir=tmp_path, cluster=cluster)
    app = App(config)
    cell: Any = Cell()
    app._cells[0] = cell
    policy = replace(config.policy, stall_after_s=77.0)
    app.adopt(config.model_copy(update={"policy": policy, "cluster": ClusterOptions()}))
    del app._cells[0]
    await app.stop()
    assert replace(cell.config.policy, max_objects=0) == policy
    assert cell.config.cluster == cluster


@pytest.mark.parametrize(
    ("advertised", "public", "url"),
    [
        ("frd-0.frd:80", "", "http://frd-0.frd:80"),
        ("", "", "http://127.0.0.1:9374"),
        ("frd-0.frd:80", "https://frd.example", "https://frd.example"),
    ],
)
@pytest.mark.parametrize("web", [True, False])
async def test_links_have_the_address_that_people_use(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    advertised: str,
    public: str,
    url: str,
    web: bool,
) -> None:
    """Links in messages to webhooks begin with the public address; without one with the address
    that a replica advertises, or else with the one at which it listens. They lead to pages of
    findings only if the service has them."""
    made: list[tuple[str, bool]] = []

    class Silent(Notifier):
        def __init__(
            self, targets: Sequence[NotifyTarget], url: Callable[[], str], **more: Any
        ) -> None:
            made.append((url(), more["has_pages"]))
            super().__init__(targets, url, **more)

    monkeypatch.setattr(app_module, "Notifier", Silent)
    config = Config(
        data_dir=tmp_path,
        http="127.0.0.1:9374",
        public_url=public,
        web=web,
        cluster=ClusterOptions(servers=SERVERS, advertise_http=advertised),
    )
    await App(config).stop()
    assert made == [(url, web)]


HERE = {"grpc": "127.0.0.1:9373", "http": "frd-0:9374"}


def test_loopback_among_other_machines() -> None:
    """The NATS servers are on other machines, so other replicas may be, too: one warning names the
    address that only this machine can reach. If all are on this machine, loopback is what the
    replicas need."""
    servers = ["nats://localhost:4222", "tls://nats-1.example:4222"]
    assert list(advertised_in_vain(servers, **HERE)) == [
        "cluster.advertise_grpc: 127.0.0.1:9373: other machines cannot reach this replica there: "
        "name its address, or listen on 0.0.0.0 (grpc)"
    ]
    assert not list(advertised_in_vain(["nats://127.0.0.1:4222", "nats://[::1]:4223"], **HERE))
