"""A certificate authority and its certificates."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Files:
    cert: Path
    key: Path


class Authority:
    """`ca` is the file of the authority's certificate."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.ca = folder / f"{name}.pem"
        self._folder = folder
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        constraint = x509.BasicConstraints(ca=True, path_length=0)
        builder = self._builder(self._name, self._key, datetime.now(UTC) + _DAY)
        certificate = builder.add_extension(constraint, critical=True).sign(
            self._key, hashes.SHA256()
        )
        self.ca.write_bytes(certificate.public_bytes(Encoding.PEM))

    def issue(self, name: str, *names: str, expired: bool = False) -> Files:
        """Files `name`.pem and `name`.key for these names (default: this machine)."""
        key = ec.generate_private_key(ec.SECP256R1())
        until = datetime.now(UTC) + (-_DAY if expired else _DAY)
        alternatives = [_general(name) for name in names or ("localhost", "127.0.0.1")]
        certificate = (
            self._builder(_name(name), key, until)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        files = Files(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        files.cert.write_bytes(certificate.public_bytes(Encoding.PEM))
        files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return files

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, until: datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(until - 3 * _DAY)
            .not_valid_after(until)
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general(name: str) -> x509.GeneralName:
    if ":" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
