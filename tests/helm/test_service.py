"""The service runs with the chart's configuration and Secrets; its probes and hook pod work."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from frd import config
from frd.cli import BLIND
from frd.config import NotifyTarget
from tests.helm.chart import Object, Rendered, recipe, render
from tests.helm.test_render import OPTIONS
from tests.world import daemons
from tests.world.daemons import run_program, until
from tests.world.prometheus import LOCAL, RULES

FRD = Path(sys.executable).parent / "frd"
CONFIGURED = ("insecure", "client certificates", "config", "cluster", "webhook", "page")
VALUES: dict[str, dict[str, Any]] = {"defaults": {}} | {name: OPTIONS[name] for name in CONFIGURED}


def container(rendered: Rendered) -> Object:
    (found,) = rendered.pod()["containers"]
    assert isinstance(found, dict)
    return found


def mounted(rendered: Rendered, root: Path) -> Path:
    """Write the pod's files below `root`; returns that of its configuration, whose paths are below
    `root`."""
    pod = rendered.pod()
    sources = [v["projected"]["sources"] for v in pod["volumes"] if "projected" in v]
    for source in (source["secret"] for found in sources for source in found):
        data = rendered.one("Secret", source["name"])["data"]
        for item in source["items"]:
            path = root / "etc/frd/credentials" / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(base64.b64decode(data[item["key"]]))
            path.chmod(0o440)
    text: str = rendered.one("ConfigMap", "frd")["data"]["frd.toml"]
    path = root / "frd.toml"
    path.write_text(text.replace('"/etc/', f'"{root}/etc/').replace('"/var/', f'"{root}/var/'))
    return path


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_service_takes_its_file(values: dict[str, Any], tmp_path: Path) -> None:
    """`frd serve` accepts the file: every key is known, every file is mounted."""
    rendered = render(values)
    loaded = config.load(mounted(rendered, tmp_path))
    (option,) = container(rendered)["command"][2:]
    folder = option.removeprefix("--config=").removesuffix("/frd.toml")
    assert folder in {mount["mountPath"] for mount in container(rendered)["volumeMounts"]}
    assert (loaded.grpc, loaded.http) == ("0.0.0.0:9373", "0.0.0.0:9374")
    assert loaded.insecure is values.get("insecure", False)
    for path in (loaded.tls.cert_file, loaded.tls.key_file, loaded.auth.token_file):
        assert loaded.insecure if path is None else path.is_file()
    given = dict(values.get("config", {}))
    if given.pop("notify", None):
        targets = [(target.name, target.on, target.url) for target in loaded.notify]
        assert targets == [("1", ("opened",), ""), ("2", NotifyTarget().on, "http://h/")]
    assert is_loaded(loaded, given, tmp_path)


def is_loaded(loaded: Any, given: Any, root: Path) -> bool:
    """Sections are objects or maps, lists are tuples, and files are below `root`."""
    if isinstance(given, dict):
        found = loaded if isinstance(loaded, dict) else {key: getattr(loaded, key) for key in given}
        return all(is_loaded(found[key], value, root) for key, value in given.items())
    if isinstance(loaded, Path):
        return loaded == Path(f"{root}{given}")
    return bool((list(loaded) if isinstance(loaded, tuple) else loaded) == given)


def test_a_replica_gives_its_own_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variables of its pod, `frd serve` advertises names that the certificate has, and
    checks other replicas with the same CA; agents are given the same addresses."""
    rendered = render(OPTIONS["cluster"])
    path = mounted(rendered, tmp_path)
    for variable in container(rendered)["env"]:
        value = variable.get("value", "").replace("$(POD_NAME)", "frd-1")
        if variable["name"].startswith("FRD_CLUSTER__"):
            monkeypatch.setenv(variable["name"], value)
    loaded = config.load(path).cluster
    assert loaded.advertise_grpc == "frd-1.frd-headless.frd.svc:9373"
    assert loaded.advertise_http == "frd-1.frd-headless.frd.svc:9374"
    assert loaded.peers_ca_file is not None
    assert loaded.peers_ca_file.is_file()
    (agent,) = (c for c in recipe(OPTIONS["cluster"])["initContainers"] if c["name"] == "frd-agent")
    (service,) = (w for w in agent["command"] if w.startswith("--service="))
    addresses = service.partition("=")[2].split(",")
    assert len(addresses) == 3
    assert addresses[1] == loaded.advertise_grpc


INGRESS = {"enabled": True, "hosts": ["frd.example", "b.example"]}
IN_CLUSTER = "https://frd.frd.svc:9374"


@pytest.mark.parametrize(
    ("values", "address", "runbooks"),
    [
        ({}, IN_CLUSTER, ""),
        ({"insecure": True, "service": {"httpPort": 8080}}, "http://frd.frd.svc:8080", ""),
        ({"runbookUrl": "https://git/docs/runbooks"}, IN_CLUSTER, "https://git/docs/runbooks"),
        ({"runbookUrl": "https://frd/runbooks/"}, IN_CLUSTER, "https://frd/runbooks"),
        ({"runbookUrl": f"{LOCAL}/runbooks"}, IN_CLUSTER, f"{LOCAL}/runbooks"),
        ({"ingress": INGRESS}, "http://frd.example", ""),
        ({"ingress": INGRESS | {"tls": [{"secretName": "w"}]}}, "https://frd.example", ""),
        ({"ingress": INGRESS | {"hosts": ["*.example"]}}, "http://*.example", ""),
        (
            {"ingress": INGRESS, "config": {"public_url": "https://watch.example:8443/"}},
            "https://watch.example:8443",
            "",
        ),
    ],
)
def test_all_links_lead_to_this_release(
    values: dict[str, Any], address: str, runbooks: str, tmp_path: Path
) -> None:
    """Links lead to the Ingress, else to the Service, unless the values name another address for
    users, or another one for runbooks. The rules are those of the files but for the links; the
    service knows the address, unless it is an Ingress for any name, and its webhooks have the
    runbooks, unless they have their own."""
    runbooks = runbooks or f"{address}/runbooks"
    own = {"name": "own", "url": "http://h/", "runbook_url": "http://mine/"}
    targets = {"notify": [{"name": "chat", "url": "http://h/"}, own]}
    rendered = render(values | {"config": values.get("config", {}) | targets})
    loaded = config.load(mounted(rendered, tmp_path))
    assert loaded.public_url == ("" if "*" in address else address)
    assert [target.runbook_url for target in loaded.notify] == [runbooks, "http://mine/"]
    expected = [
        group
        for path in sorted(RULES.glob("*.yaml"))
        for group in yaml.safe_load(path.read_text())["groups"]
    ]
    for texts in (rule["annotations"] for group in expected for rule in group["rules"]):
        texts["page_url"] = texts["page_url"].replace(LOCAL, address)
        texts.pop("silence_url", None)  # no Alertmanager is configured
        texts["runbook_url"] = texts["runbook_url"].replace(f"{LOCAL}/runbooks", runbooks)
    assert rendered.one("PrometheusRule")["spec"]["groups"] == expected


@dataclass(frozen=True, slots=True)
class Running:
    grpc: str
    http: str
    values: dict[str, Any]
    rendered: Rendered
    root: Path
    """Where the pod's files are."""

    @property
    def ca(self) -> Path:
        return self.root / "etc/frd/credentials/ca.crt"

    def get(self, path: str, token: str = "") -> tuple[int, str]:
        context = ssl.create_default_context(cafile=str(self.ca))
        url = f"https://localhost:{self.http.rpartition(':')[2]}{path}"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(url, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30, context=context) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, ""

    def token(self, role: str) -> str:
        data = self.rendered.one("Secret", "frd-tokens")["data"]
        return base64.b64decode(data[role]).decode()


@pytest.fixture(scope="module", params=["defaults", "client certificates"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """`frd serve` with the chart's configuration, certificate and tokens."""
    root = tmp_path_factory.mktemp("pod")
    values = VALUES[request.param]
    rendered = render(values)
    command = [str(FRD), "serve", "--config", str(mounted(rendered, root))]
    anywhere = ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with daemons.running(command + anywhere) as process:
        bound = json.loads(daemons.first_line(process))
        yield Running(bound["grpc"], bound["http"], values, rendered, root)


def test_probes_are_answered(running: Running) -> None:
    """Every probe's path answers without a token, under the scheme that the probe uses."""
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container(running.rendered)[probe]["httpGet"]
        assert asked["scheme"] == "HTTPS"
        assert running.get(asked["path"])[0] == 200


def test_prometheus_gets_metrics_with_the_readers_token(running: Running) -> None:
    """/metrics takes the token of the monitor's Secret, and refuses no token and the agents'."""
    assert "frd_build_info" in running.get("/metrics", running.token("reader"))[1]
    assert running.get("/metrics")[0] == 401
    assert running.get("/metrics", running.token("agent"))[0] in (401, 403)
    assert running.get("/api/v1/findings", running.token("operator"))[0] == 200


def test_the_sidecar_connects(running: Running, tmp_path: Path) -> None:
    """The agent's own command line, with the files of its Secret, connects to the service."""
    credentials = tmp_path / "frd"
    credentials.mkdir()
    for name, value in running.rendered.one("Secret", "frd-agent")["data"].items():
        (credentials / name).write_bytes(base64.b64decode(value))
    metrics = daemons.free_address()
    (command,) = (c["command"] for c in recipe(running.values)["initContainers"][1:])
    here = {
        "--service": f"localhost:{running.grpc.rpartition(':')[2]}",
        "--run-dir": str(tmp_path / "run"),
        "--metrics": metrics,
    }
    given = {word.partition("=")[0]: word for word in command[2:]}
    given |= {name: f"{name}={value}" for name, value in here.items()}
    options = [word.replace("/etc/frd", str(credentials)) for word in given.values()]
    agent = [str(FRD.with_name(command[0])), command[1], *options]
    log = tmp_path / "agent.log"
    with daemons.running(agent, log=log) as process:

        def is_connected_or_over() -> bool:
            return process.poll() is not None or daemons.metric(metrics, "frd_agent_connected") > 0

        until(is_connected_or_over, log.read_text, ignoring=OSError)
        assert process.poll() is None, log.read_text()


def test_commands_work_in_the_pod(running: Running) -> None:
    """`kubectl exec frd-0 -- frd findings` finds certificate and token by the pod's variables; no
    agent is connected, so the exit code is that of a blind frd."""
    env = {
        variable["name"]: variable["value"].replace("/etc/frd", f"{running.root}/etc/frd")
        for variable in container(running.rendered)["env"]
    }

    def said() -> subprocess.CompletedProcess[str]:
        own = os.environ | env | {"FRD_HTTP": running.http}
        return run_program([str(FRD), "findings", "--json"], env=own)

    # The agent of an earlier test may have gone only a moment ago.
    until(lambda: said().returncode == BLIND, lambda: said().stderr)
    answer = json.loads(said().stdout)
    assert answer["findings"] == []
    assert answer["watching"]["blind"], "no agent is connected"


def test_the_hook_pod_says_ready(running: Running) -> None:
    """The hook's command succeeds against the running service, with the mounted CA."""
    pod = running.rendered.one("Pod")["spec"]
    (hook,) = pod["containers"]
    env = {variable["name"]: variable["value"] for variable in hook["env"]}
    assert env["URL"] == "https://frd.frd.svc:9374/-/ready"
    assert env["SSL_CERT_FILE"] == "/etc/frd/ca.crt"
    url = f"https://localhost:{running.http.rpartition(':')[2]}/-/ready"
    done = run_program(
        [sys.executable, *hook["command"][1:]],
        env=os.environ | {"URL": url, "SSL_CERT_FILE": str(running.ca)},
    )
    assert (done.returncode, done.stdout) == (0, "frd is ready\n"), done.stderr


def test_the_certificate_has_every_name_of_the_service(tmp_path: Path) -> None:
    """The certificate has the names that agents, Prometheus and a port-forward use."""
    data = render().one("Secret", "frd-tls")["data"]
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (tmp_path / name).write_bytes(base64.b64decode(data[name]))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    client = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    names = ("frd", "frd.frd", "frd.frd.svc", "frd.frd.svc.cluster.local", "localhost")
    for name in (*names, "frd-0.frd-headless.frd.svc", "127.0.0.1"):
        shake_hands(server, client, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, client, "other.frd.svc")


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """A TLS handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert all(end.version() for end in ends)
