"""`frd init`: a configuration to begin with, tokens, and certificates, which work as they are."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from frd.cli import authority
from frd.errors import ConfigError
from frd.usage import examples

_ROLES = ("agent", "reader", "operator")
_GRPC_PORT, _HTTP_PORT = 9373, 9374


@click.command(
    "init",
    epilog=examples(
        "frd init                                      # for this machine only",
        "frd init /etc/frd --tls --host frd.example    # for a cluster",
    ),
)
@click.argument(
    "folder", metavar="[DIR]", default=Path("."), type=click.Path(path_type=Path, file_okay=False)
)
@click.option("--tls", is_flag=True, help="Also make a CA, and certificates signed by it.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Name or address of the service, for its certificate; may be repeated; needs --tls.",
)
def command(folder: Path, tls: bool, hosts: tuple[str, ...]) -> None:
    """Write a first configuration into DIR, and print what to do next.

    A commented frd.toml, and a token each for agents, readers and operators. With --tls also a
    CA, the service's certificate, and a client certificate for agents. With --host the
    service listens on all addresses, without it on this machine only. No file is overwritten, and
    only you may read them.
    """
    if hosts and not tls:
        raise ConfigError("--host: needs --tls: beyond this machine tokens are not sent without it")
    folder = folder.expanduser().absolute()
    tokens = {role: secrets.token_hex(24) for role in _ROLES}
    names = list(dict.fromkeys((*hosts, "localhost", "127.0.0.1", *_own_name())))
    files: dict[str, bytes] = {
        "frd.toml": _configuration(folder, tls, beyond=bool(hosts)).encode(),
        "tokens": "".join(f"{token}  role={role}\n" for role, token in tokens.items()).encode(),
    }
    files |= {f"{role}-token": f"{token}\n".encode() for role, token in tokens.items()}
    _refuse_to_overwrite(folder, [*files, *(("ca.pem", "server.pem", "client.pem") if tls else ())])
    if tls:
        files |= authority.make(names)
    _write(folder, files)
    click.echo(_next(folder, tls, hosts[0] if hosts else "127.0.0.1"), nl=False)


def _own_name() -> Sequence[str]:
    name = socket.gethostname()
    return [name] if name.replace("-", "").replace(".", "").isalnum() and name.isascii() else []


# -- files -----------------------------------------------------------------------------------


def _refuse_to_overwrite(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        if os.path.lexists(folder / name):
            raise _exists(folder / name)


def _exists(path: Path) -> ConfigError:
    return ConfigError(f"init: {path}: exists: move it away or name another folder")


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    path = folder
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in files.items():
            path = folder / name
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(opened, "wb") as file:
                file.write(content)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise ConfigError(f"init: {path}: {error.strerror}: name another folder") from None


def _configuration(folder: Path, tls: bool, *, beyond: bool) -> str:
    host = "0.0.0.0" if beyond else "127.0.0.1"
    lines = [
        "# The configuration of `frd serve`. docs/configuration.md has all keys and defaults.",
        "# `frd check --config FILE` validates it; on SIGHUP a running service reads it again.",
        "",
        "# Addresses for agents (gRPC), and for metrics, API and commands (HTTP).",
        f'grpc = "{host}:{_GRPC_PORT}"',
        f'http = "{host}:{_HTTP_PORT}"',
        "",
        "# Findings, journal and dumps; by default below the home of the service's user.",
        '# data_dir = "/var/lib/frd"',
        "",
        "[auth]",
        "# Tokens and their roles, one per line: docs/security.md.",
        f"token_file = {json.dumps(str(folder / 'tokens'))}",
        "",
    ]
    if tls:
        lines += [
            "[tls]",
            f"cert_file = {json.dumps(str(folder / 'server.pem'))}",
            f"key_file = {json.dumps(str(folder / 'server.key'))}",
            "# Agents must present a certificate of this CA.",
            f"client_ca_file = {json.dumps(str(folder / 'ca.pem'))}",
            "",
        ]
    lines += [
        "[policy]",
        "# A collective that does not complete for this long is a stall, unless the job makes such",
        "# pauses again and again.",
        "stall_after_s = 10",
        "# A finding that has lasted for this long is critical; before that it is a warning.",
        "critical_after_s = 60",
        "",
        "# Expected number of agents per job; frd reports when fewer are connected.",
        "# [expected_agents]",
        "# pretrain-7b = 128",
        "",
        "# Findings to a chat or to any other receiver of HTTP POST.",
        "# [[notify]]",
        '# url_file = "/etc/frd/webhook-url"',
        '# format = "slack"',
    ]
    return "\n".join(lines) + "\n"


# -- what to do next -------------------------------------------------------------------------


def _next(folder: Path, tls: bool, host: str) -> str:
    def file(name: str) -> str:
        return shlex.quote(str(folder / name))

    shown = f"[{host}]" if ":" in host else host
    agent = f"frd-agent run --service {shown}:{_GRPC_PORT} --token-file {file('agent-token')}"
    ask = f"frd status --http {shown}:{_HTTP_PORT} --token-file {file('operator-token')}"
    scrape = [f'authorization: {{credentials_file: "{folder / "reader-token"}"}}']
    if tls:
        agent += f" --tls-ca-file {file('ca.pem')}"
        agent += f" --tls-cert-file {file('client.pem')} --tls-key-file {file('client.key')}"
        ask += f" --tls-ca-file {file('ca.pem')}"
        scrape = ["scheme: https", f'tls_config: {{ca_file: "{folder / "ca.pem"}"}}', *scrape]
    copied = ["agent-token", *(["ca.pem", "client.pem", "client.key"] if tls else [])]
    kept = "Keep ca.key secret: with it anybody can impersonate the service.\n"
    return "\n".join(
        [
            f"wrote {folder}",
            "",
            "The service:",
            f"  frd serve --config {file('frd.toml')}",
            f"The agent, on each node ({', '.join(copied)} go there):",
            f"  {agent}",
            "Ask it:",
            f"  {ask}",
            "Prometheus (prometheus.yml, below scrape_configs):",
            "  - job_name: frd",
            "    honor_labels: true",
            "    scrape_interval: 2s",
            *(f"    {line}" for line in scrape),
            "    static_configs:",
            f'      - targets: ["{shown}:{_HTTP_PORT}"]',
            *([kept] if tls else [""]),
        ]
    )
