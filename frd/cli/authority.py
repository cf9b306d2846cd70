"""A certificate authority of one's own, for those who have none: what `frd init --tls` writes.

Made with the package `cryptography` where it is installed, else with the program `openssl`; both
give the same: keys on the curve P-256, an authority for ten years, certificates for the service
(with its names) and for agents. Nothing is written here but into a temporary folder of this user.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from frd.errors import ConfigError

if TYPE_CHECKING:
    from cryptography import x509

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 825
"""What clients accept at most of a server."""
_HOST: Final = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*\.?")
_NAMES: Final = {"ca": "frd-ca", "server": "frd", "client": "frd-agent"}
_USES: Final = {"server": "serverAuth", "client": "clientAuth"}


def make(hosts: Sequence[str]) -> Mapping[str, bytes]:
    """``ca``, ``server`` and ``client``, each with ``.pem`` and ``.key``: PEM by file name.

    Raises:
        ConfigError: a host is neither a name nor an address, or there is nothing to make them with.
    """
    for host in hosts:
        if not (_is_address(host) or (len(host) <= 253 and _HOST.fullmatch(host))):
            raise ConfigError(f"--host: {host!r}: write a name such as frd.example, or an address")
    if has_cryptography():
        return _by_cryptography(hosts)
    program = shutil.which("openssl")
    if program is None:
        raise ConfigError(
            "certificates: neither the package cryptography nor the program openssl is here: "
            "pip install 'frd-daemon[init]'"
        )
    return _by_openssl(program, hosts)


def has_cryptography() -> bool:
    return importlib.util.find_spec("cryptography") is not None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


# -- the package ---------------------------------------------------------------------------------


def _by_cryptography(hosts: Sequence[str]) -> Mapping[str, bytes]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    uses = {"server": ExtendedKeyUsageOID.SERVER_AUTH, "client": ExtendedKeyUsageOID.CLIENT_AUTH}
    now = datetime.now(UTC)
    keys = {which: ec.generate_private_key(ec.SECP256R1()) for which in _NAMES}
    names = {
        which: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        for which, name in _NAMES.items()
    }
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(keys["ca"].public_key())
    made = {}
    for which, key in keys.items():
        days = AUTHORITY_DAYS if which == "ca" else CERTIFICATE_DAYS
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[which])
            .issuer_name(names["ca"])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        )
        if which == "ca":
            builder = builder.add_extension(x509.BasicConstraints(True, 0), True)
            builder = builder.add_extension(_signs_certificates(x509.KeyUsage), True)
        else:
            builder = builder.add_extension(authority, False)
            builder = builder.add_extension(x509.BasicConstraints(False, None), True)
            builder = builder.add_extension(x509.ExtendedKeyUsage([uses[which]]), False)
        if which == "server":
            alternatives: list[x509.GeneralName] = [
                x509.IPAddress(ipaddress.ip_address(host))
                if _is_address(host)
                else x509.DNSName(host)
                for host in hosts
            ]
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), False)
        signed = builder.sign(keys["ca"], hashes.SHA256())
        made[f"{which}.pem"] = signed.public_bytes(Encoding.PEM)
        made[f"{which}.key"] = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made


def _signs_certificates(usage: type[x509.KeyUsage]) -> x509.KeyUsage:
    return usage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


# -- the program ---------------------------------------------------------------------------------

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
                *("-CA", "ca.pem", "-CAkey", "ca.key", "-set_serial", str(_serial())),
                *("-days", str(CERTIFICATE_DAYS), "-extfile", f"{which}.ext"),
                *("-out", f"{which}.pem"),
            )
        return {
            file: (folder / file).read_bytes()
            for which in _NAMES
            for file in (f"{which}.pem", f"{which}.key")
        }


def _serial() -> int:
    return secrets.randbits(127) + 1
