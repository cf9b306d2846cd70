"""What `frd init` writes works as it is: service, agent and commands, with TLS and tokens."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from frd.cli import FAILED, USAGE, run
from frd.cli.client import Client, tls_context
from frd.service.access.grants import Role, Tokens
from tests.world.daemons import first_line, free_port, running, until

pytestmark = pytest.mark.timeout(120)
FILES = {"frd.toml", "tokens", "agent-token", "reader-token", "operator-token"}
CERTIFICATES = {f"{name}.{kind}" for name in ("ca", "server", "client") for kind in ("pem", "key")}


def printed(text: str, program: str) -> list[str]:
    """The command line of `program` that `frd init` says to type."""
    (line,) = re.findall(rf"^  ({program} .*)$", text, re.MULTILINE)
    return shlex.split(line)


def test_what_init_writes_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command lines that it prints work: the agent reports, `frd status` shows it, Prometheus
    gets metrics. An agent with the token of another role is refused."""
    folder = tmp_path / "conf"
    assert run(["init", str(folder), "--tls", "--host", "127.0.0.1"]) == 0
    output = capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == FILES | CERTIFICATES
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    grpc, http = free_port(), free_port()
    serve = [*printed(output, "frd serve"), "--data-dir", str(tmp_path / "data")]
    serve += ["--grpc", f"127.0.0.1:{grpc}", "--http", f"127.0.0.1:{http}"]
    agent = printed(output.replace(":9373", f":{grpc}"), "frd-agent run")
    agent += ["--run-dir", str(tmp_path / "run"), "--metrics", "off"]
    status = printed(output.replace(":9374", f":{http}"), "frd status")
    with ExitStack() as stack:

        def start(command: list[str], log: str) -> subprocess.Popen[str]:
            python = [sys.executable, "-m", command[0].replace("-", "_"), *command[1:]]
            process = running(python, without=("FRD_",), log=tmp_path / log)
            return stack.enter_context(process)

        service = start(serve, "serve.log")
        assert json.loads(first_line(service))["http"].endswith(f":{http}")
        impostor = [word.replace("agent-token", "reader-token") for word in agent]
        at = impostor.index("--run-dir") + 1
        impostor[at] = str(tmp_path / "run2")
        start(agent, "agent.log")
        start(impostor, "impostor.log")

        def watching() -> dict[str, Any]:
            assert run([*status[1:], "--json"]) == 0
            found: dict[str, Any] = json.loads(capsys.readouterr().out)
            return found

        until(lambda: watching()["watching"]["agents"] == 1, "the agent reports")
        refused = "refused: authorization: no token that may stream"
        until(lambda: refused in (tmp_path / "serve.log").read_text(), "the other one is refused")
        assert watching()["watching"]["agents"] == 1
        tls = tls_context(folder / "ca.pem", None)
        token = (folder / "reader-token").read_text().strip()
        reader = Client(f"127.0.0.1:{http}", tls=tls, token=token)
        assert "frd_build_info" in reader.text("/metrics")
        ask, ca = status[1:4], ["--tls-ca-file", str(folder / "ca.pem")]
        for typed, says in (
            ([*ask, "--tls"], "did --tls-ca-file sign its certificate"),
            (ask, "if it speaks TLS, add --tls or write https://"),
            ([*ask, *ca], "name a token file with --token-file or FRD_TOKEN_FILE"),
        ):
            assert run(typed) == FAILED
            assert says in capsys.readouterr().err


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is there is named and stays as it is, and nothing else is written."""
    (tmp_path / "tokens").write_text("mine")
    assert run(["init", str(tmp_path), "--tls"]) == USAGE
    error = capsys.readouterr().err
    assert error.startswith(f"frd: error: init: {tmp_path}/tokens: exists: move it away or ")
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]
    assert (tmp_path / "tokens").read_text() == "mine"


def test_for_one_machine_without_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is valid, each token has its role, and --host without --tls is refused."""
    assert run(["init", str(tmp_path / "c")]) == 0
    assert {path.name for path in (tmp_path / "c").iterdir()} == FILES
    assert run(["check", "--config", str(tmp_path / "c/frd.toml")]) == 0
    tokens = Tokens(tmp_path / "c/tokens")
    for role in Role:
        token = (tmp_path / f"c/{role.value}-token").read_text().strip()
        grant = tokens.grant(f"Bearer {token}")
        assert grant is not None
        assert grant.roles == {role}
    assert run(["init", str(tmp_path / "d"), "--host", "h"]) == USAGE
    assert not (tmp_path / "d").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_gets_what_the_service_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --owner as root: the user of the service reads its files, and no other file; the output
    names them. The user can enter the folder."""
    folder = tmp_path / "c"
    assert run(["init", str(folder), "--tls", "--owner", "daemon"]) == 0
    of_service = {"frd.toml", "tokens", "ca.pem", "server.pem", "server.key"}
    owners = {path.name: path.owner() for path in folder.iterdir()}
    assert {name for name, owner in owners.items() if owner == "daemon"} == of_service
    assert set(owners.values()) == {"daemon", "root"}
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o755
    said = re.match(
        r"wrote (.+): only daemon can read (.+); only root can ", capsys.readouterr().out
    )
    assert said is not None
    assert set(said[2].split(", ")) == of_service
    assert run(["init", str(tmp_path / "d"), "--owner", "no-such-user"]) == USAGE
    assert "--owner: no-such-user: no such user: useradd" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


OF_ANOTHER = "frd: error: --owner: root: only root gives "
NO_HOST = "frd: error: --host: "
NO_OPENSSL = "frd: error: certificates: the program openssl is not here: install it"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--owner", "root"], OF_ANOTHER),
        *(
            (["--tls", "--host", host], NO_HOST)
            for host in ("a b", "x,DNS:evil", "x\n[v3]", "", "-x")
        ),
        (["--tls"], NO_OPENSSL),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    options: list[str],
    error: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another owner that a user other than root names; a text that is no host, which would go into
    a file that openssl reads; certificates without the program openssl."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(["init", str(tmp_path / "c"), *options]) == USAGE
    assert capsys.readouterr().err.startswith(error)
    assert not (tmp_path / "c").exists()
