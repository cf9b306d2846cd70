"""`frd init`: a first configuration with tokens and certificates, usable without changes.

For users who have no CA, the program `openssl` makes keys on the curve P-256, an authority for ten
years, certificates for the service (with its names) and for agents, in a temporary folder of this
user.
"""

from __future__ import annotations

import ipaddress
import json
import os
import pwd
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

import click

from frd.errors import ConfigError
from frd.usage import examples

_ROLES = ("agent", "reader", "operator")
_OF_THE_SERVICE = ("frd.toml", "tokens", "ca.pem", "server.pem", "server.key")
_GRPC_PORT, _HTTP_PORT = 9373, 9374

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 825
"""The most that clients accept of a server."""
_HOST: Final = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*\.?")
_SIGNED: Final = {"server": "frd", "client": "frd-agent"}
"""Certificates that the CA signs, with their common names."""
_NEW_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-sha256")
_CONFIGURATION: Final = """
[req]
distinguished_name = subject
x509_extensions = ca
[subject]
[ca]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = {names}
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
[client]
basicConstraints = critical, CA:FALSE
extendedKeyUsage = clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


@click.command(
    "init",
    epilog=examples(
        "frd init                                      # for this machine only",
        "frd init /etc/frd --tls --host frd.example    # for a cluster",
        "frd init /etc/frd --owner frd                 # for a service that the user frd runs",
    ),
)
@click.argument(
    "folder", metavar="[DIR]", default=Path("."), type=click.Path(path_type=Path, file_okay=False)
)
@click.option("--tls", is_flag=True, help="Also create a CA and certificates signed by it.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Name or address of the service, for its certificate; may be repeated; needs --tls.",
)
@click.option(
    "--owner",
    metavar="USER",
    help="User of the service, who gets the files that the service reads; only root may say so.",
)
def command(folder: Path, tls: bool, hosts: tuple[str, ...], owner: str | None) -> None:
    """Write a first configuration into DIR, and print what to do next.

    Creates a commented frd.toml and one token each for agents, readers and operators; with --tls
    also a CA, the service's certificate, and a client certificate for agents. With --host the
    service listens on all addresses, without it on loopback only. No existing file is overwritten;
    only their owner can read the new files: you, or the one of --owner.
    """
    if hosts and not tls:
        raise ConfigError("--host: needs --tls: without TLS no token is sent to another machine")
    folder = folder.expanduser().absolute()
    account = None if owner is None else _account(owner)
    tokens = {role: secrets.token_hex(24) for role in _ROLES}
    names = list(dict.fromkeys((*hosts, "localhost", "127.0.0.1", *_own_name())))
    contents: dict[str, bytes] = {
        "frd.toml": _configuration(folder, tls, hosts).encode(),
        "tokens": "".join(f"{token}  role={role}\n" for role, token in tokens.items()).encode(),
    }
    contents |= {f"{role}-token": f"{token}\n".encode() for role, token in tokens.items()}
    _refuse_to_overwrite(
        folder, [*contents, *(("ca.pem", "server.pem", "client.pem") if tls else ())]
    )
    if tls:
        contents |= _certificates(names)
    _write(folder, contents, account)
    click.echo(f"wrote {folder}: {_owners(contents, account)}\n")
    click.echo(_next(folder, tls, hosts[0] if hosts else "127.0.0.1"), nl=False)


def _own_name() -> Sequence[str]:
    name = socket.gethostname()
    return [name] if name.replace("-", "").replace(".", "").isalnum() and name.isascii() else []


def _account(name: str) -> pwd.struct_passwd:
    if os.geteuid() != 0:
        raise ConfigError(f"--owner: {name}: only root gives files away: run as root")
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(f"--owner: {name}: no such user: useradd --system {name}") from None


def _owners(names: Iterable[str], account: pwd.struct_passwd | None) -> str:
    if account is None:
        other = "" if os.geteuid() else ": name the user of the service with --owner, or chown them"
        return f"only you can read the files{other}"
    given = ", ".join(name for name in names if name in _OF_THE_SERVICE)
    return f"only {account.pw_name} can read {given}; only root can read the others"


# -- files -----------------------------------------------------------------------------------


def _refuse_to_overwrite(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        if os.path.lexists(folder / name):
            raise _exists(folder / name)


def _exists(path: Path) -> ConfigError:
    return ConfigError(f"init: {path}: exists: move it away or name another folder")


def _write(folder: Path, contents: Mapping[str, bytes], account: pwd.struct_passwd | None) -> None:
    path = folder
    try:
        is_new = not folder.exists()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if account and is_new:
            folder.chmod(0o755)  # whatever root's umask: the service's user must get in
        for name, content in contents.items():
            path = folder / name
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(opened, "wb") as file:
                file.write(content)
                if account and name in _OF_THE_SERVICE:
                    os.fchown(file.fileno(), account.pw_uid, account.pw_gid)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise ConfigError(f"init: {path}: {error.strerror}: name another folder") from None


def _configuration(folder: Path, tls: bool, hosts: Sequence[str]) -> str:
    text = files(__package__).joinpath("init.toml").read_text("utf-8")
    if not tls:
        text = re.sub(r"\[tls\]\n(.+\n)+\n", "", text)
    if (
        hosts and "*" not in hosts[0]
    ):  # the name that the certificate has, and that messages link to
        page = f"https://{_shown(hosts[0])}:{_HTTP_PORT}"
        text = text.replace('# public_url = "https://frd.example"', f'public_url = "{page}"')
    text = text.replace("HOST", "0.0.0.0" if hosts else "127.0.0.1")
    # A JSON string is a TOML string, whatever the folder is called.
    return text.replace("FOLDER", json.dumps(str(folder))[1:-1])


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# -- what to do next -------------------------------------------------------------------------


def _next(folder: Path, tls: bool, host: str) -> str:
    def file(name: str) -> str:
        return shlex.quote(str(folder / name))

    shown = _shown(host)
    agent = f"frd-agent run --service {shown}:{_GRPC_PORT} --token-file {file('agent-token')}"
    ask = f"frd status --http {shown}:{_HTTP_PORT} --token-file {file('operator-token')}"
    scrape = [f'authorization: {{credentials_file: "{folder / "reader-token"}"}}']
    if tls:
        agent += f" --tls-ca-file {file('ca.pem')}"
        agent += f" --tls-cert-file {file('client.pem')} --tls-key-file {file('client.key')}"
        ask += f" --tls-ca-file {file('ca.pem')}"
        scrape = ["scheme: https", f'tls_config: {{ca_file: "{folder / "ca.pem"}"}}', *scrape]
    copied = ["agent-token", *(["ca.pem", "client.pem", "client.key"] if tls else [])]
    return "\n".join(
        [
            "The service:",
            f"  frd serve --config {file('frd.toml')}",
            f"The agent, on each node ({', '.join(copied)} go there):",
            f"  {agent}",
            "Query the service:",
            f"  {ask}",
            "Prometheus (prometheus.yml, below scrape_configs):",
            "  - job_name: frd",
            "    honor_labels: true",
            "    scrape_interval: 2s",
            *(f"    {line}" for line in scrape),
            "    static_configs:",
            f'      - targets: ["{shown}:{_HTTP_PORT}"]',
            "Keep ca.key secret: with it an attacker can impersonate the service.\n" if tls else "",
        ]
    )


# -- a CA for users who have none -----------------------------------------------------------------


def _certificates(hosts: Sequence[str]) -> Mapping[str, bytes]:
    """``ca``, ``server`` and ``client``, each with ``.pem`` and ``.key``: PEM by file name.

    Raises:
        ConfigError: a host is neither a name nor an address, or openssl is missing or fails.
    """
    names = ",".join(map(_alternative_name, hosts))
    if shutil.which("openssl") is None:
        raise ConfigError(
            "certificates: the program openssl is not here: install it, or run `frd init --tls` "
            "on another machine"
        )
    with tempfile.TemporaryDirectory(prefix="frd-init-") as name:  # mode 0700
        folder = Path(name)
        (folder / "cnf").write_text(_CONFIGURATION.format(names=names))
        new = ("req", "-new", *_NEW_KEY, "-config", "cnf")
        root = ("-x509", "-days", str(AUTHORITY_DAYS), "-subj", "/CN=frd-ca")
        _openssl(folder, *new, *root, "-keyout", "ca.key", "-out", "ca.pem")
        for which, common_name in _SIGNED.items():
            key, request, signed = (f"{which}.{kind}" for kind in ("key", "csr", "pem"))
            _openssl(folder, *new, "-subj", f"/CN={common_name}", "-keyout", key, "-out", request)
            sign = ("x509", "-req", "-sha256", "-CA", "ca.pem", "-CAkey", "ca.key")
            terms = ("-days", str(CERTIFICATE_DAYS), "-extfile", "cnf", "-extensions", which)
            serial = str(secrets.randbits(127) + 1)
            _openssl(folder, *sign, *terms, "-set_serial", serial, "-in", request, "-out", signed)
        return {
            path.name: path.read_bytes()
            for path in folder.iterdir()
            if path.suffix in (".pem", ".key")
        }


def _alternative_name(host: str) -> str:
    """``IP:127.0.0.1`` or ``DNS:frd.example``."""
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        if len(host) <= 253 and _HOST.fullmatch(host):
            return f"DNS:{host}"
    raise ConfigError(f"--host: {host!r}: write a name such as frd.example, or an address")


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        ["openssl", *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise ConfigError(f"certificates: openssl {arguments[0]}: {words[-1]}")
