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
"""What clients accept at most of a server."""
_HOST: Final = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*\.?")
_NAMES: Final = {"ca": "frd-ca", "server": "frd", "client": "frd-agent"}
_USES: Final = {"server": "serverAuth", "client": "clientAuth"}


def make(hosts: Sequence[str]) -> Mapping[str, bytes]:
    """``ca``, ``server`` and ``client``, each with ``.pem`` and ``.key``: PEM by file name.

    Raises:
        ConfigError: a host is neither a name nor an address, or openssl is missing or fails.
    """
    for host in hosts:
        if not (_is_address(host) or (len(host) <= 253 and _HOST.fullmatch(host))):
            raise ConfigError(f"--host: {host!r}: write a name such as frd.example, or an address")
    program = shutil.which("openssl")
    if program is None:
        raise ConfigError(
            "certificates: the program openssl is not here: install it, or run `frd init --tls` "
            "on another machine"
        )
    return _by_openssl(program, hosts)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


_REQUEST: Final = """
[req]
distinguished_name = dn
prompt = no
x509_extensions = ca
[dn]
CN = {name}
[ca]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
"""
_EXTENSIONS: Final = """
basicConstraints = critical, CA:FALSE
extendedKeyUsage = {use}
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


def _by_openssl(program: str, hosts: Sequence[str]) -> Mapping[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="frd-init-") as name:  # mode 0700
        folder = Path(name)

        def openssl(*arguments: str) -> None:
            done = subprocess.run(
                [program, *arguments],
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

        for which, common_name in _NAMES.items():
            (folder / f"{which}.cnf").write_text(_REQUEST.format(name=common_name))
            curve = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
            openssl("genpkey", *curve, "-out", f"{which}.key")
            request = ("req", "-new", "-sha256", "-key", f"{which}.key", "-config", f"{which}.cnf")
            if which == "ca":
                openssl(*request, "-x509", "-days", str(AUTHORITY_DAYS), "-out", "ca.pem")
                continue
            extensions = _EXTENSIONS.format(use=_USES[which])
            if which == "server":
                kinds = (f"{'IP' if _is_address(host) else 'DNS'}:{host}" for host in hosts)
                extensions += f"subjectAltName = {','.join(kinds)}\n"
            (folder / f"{which}.ext").write_text(extensions)
            openssl(*request, "-out", f"{which}.csr")
            openssl(
                *("x509", "-req", "-sha256", "-in", f"{which}.csr"),
                *(
                    "-CA",
                    "ca.pem",
                    "-CAkey",
                    "ca.key",
                    "-set_serial",
                    str(secrets.randbits(127) + 1),
                ),
                *("-days", str(CERTIFICATE_DAYS), "-extfile", f"{which}.ext"),
                *("-out", f"{which}.pem"),
            )
        return {
            file: (folder / file).read_bytes()
            for which in _NAMES
            for file in (f"{which}.pem", f"{which}.key")
        }
