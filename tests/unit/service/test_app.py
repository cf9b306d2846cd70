"""The service as one object, which is not started here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from frd.config import ClusterOptions, Config, NotifyTarget
from frd.model import ServiceRawNs
from frd.service import app as app_module
from frd.service.app import App, advertised_in_vain
from frd.service.clocks.real_time import RealTime
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


# -- the service's own clock: aligned time is the raw clock's, UTC the wall clock's ----------------


S = 1_000_000_000
MS = 1_000_000
_T = TypeVar("_T")


class Host:
    """Its two clocks, which the test moves."""

    def __init__(self) -> None:
        self.wall = 1_790_000_000 * S
        self.raw = 5 * S
        self.pauses: list[float] = []
        """Before the next readings the process loses its core for so long."""
        self.now = RealTime(self.late(lambda: self.wall), self.late(lambda: ServiceRawNs(self.raw)))

    def late(self, clock: Callable[[], _T]) -> Callable[[], _T]:
        def read() -> _T:
            self.pass_s(self.pauses.pop(0) if self.pauses else 0.0)
            return clock()

        return read

    def pass_s(self, seconds: float, ppm: int = 0) -> None:
        """`ppm`: the wall clock runs so much faster."""
        self.wall += round(seconds * (S + 1_000 * ppm))
        self.raw += round(seconds * S)


def test_it_begins_with_utc() -> None:
    """An uneventful minute: aligned time is UTC."""
    host = Host()
    host.pass_s(60)
    host.now.follow()
    assert host.now() == host.now.utc() == host.wall


@pytest.mark.parametrize("step_s", [3600, -3600, 86_400, 1, -0.1, 0.001])
def test_a_step_moves_utc_only(step_s: float) -> None:
    """The wall clock is set, forward or back: aligned time passes as before, UTC follows."""
    host = Host()
    before = host.now()
    host.wall += round(step_s * S)
    host.pass_s(10)
    host.now.follow()
    assert host.now() - before == 10 * S
    assert host.now.utc() == host.wall


@pytest.mark.parametrize("ppm", [500, 20, -90])
def test_utc_follows_a_clock_that_is_slewed(ppm: int) -> None:
    """Half an hour: aligned time passes as the raw clock, UTC stays within a millisecond, and does
    not move each time."""
    host, moves = Host(), set()
    before = host.now()
    for _ in range(3600):
        host.pass_s(0.5, ppm)
        host.now.follow()
        moves.add(host.now.ahead_ns)
        assert abs(host.now.utc() - host.wall) < MS
    assert host.now() - before == 1800 * S
    assert len(moves) <= 1800 * abs(ppm) // 1_000 + 1


def test_a_host_that_slept() -> None:
    """Its raw clock stopped for an hour: no time has passed, and UTC is right."""
    host = Host()
    before = host.now()
    host.wall += 3600 * S
    host.now.follow()
    assert (host.now(), host.now.utc()) == (before, host.wall)


@pytest.mark.parametrize("pauses", [[0, 0.1], [0, 0, 0.1], [0.1]])
def test_a_core_that_is_lost_between_readings_moves_nothing(pauses: list[float]) -> None:
    """The process is put aside while it reads its clocks: UTC stays right."""
    host = Host()
    host.pass_s(1)
    host.pauses = [*pauses]
    host.now.follow()
    assert host.now.ahead_ns == 0


def test_a_core_that_is_lost_at_the_start() -> None:
    """A tenth of a second passes between the first two readings: UTC is right anyway."""
    host = Host()
    host.pauses = [0, 0.1]
    host.now = RealTime(host.late(lambda: host.wall), host.late(lambda: ServiceRawNs(host.raw)))
    assert host.now.utc() == host.wall


def test_raw_times_and_aligned_ones() -> None:
    """Both ways, also after a step."""
    host = Host()
    host.wall += 3600 * S
    host.now.follow()
    assert host.now.at(host.raw) == host.now()
    assert host.now.raw_at(host.now()) == host.raw
