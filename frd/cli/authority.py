"""A CA for users who have none: the certificates of `frd init --tls`.

The program `openssl` makes keys on the curve P-256, an authority for ten years, certificates for
the service (with its names) and for agents, in a temporary folder of this user.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from frd.errors import ConfigError

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


def make(hosts: Sequence[str]) -> Mapping[str, bytes]:
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
