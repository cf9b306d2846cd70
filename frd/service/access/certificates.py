"""The service's certificates: read from files, and again when the files change.

A certificate and key that do not match, for example in the middle of a rotation, are not used: the
previous pair stays in use. gRPC asks for its configuration at every handshake, in its own threads,
and crashes if it gets a new object each time; so it gets one only after a change. For HTTP, every
handshake gets the newest context, because a context in use cannot forget a certificate authority.
"""

from __future__ import annotations

import ssl
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc

from frd.config import TlsFiles
from frd.credentials import read_credential
from frd.errors import ConfigError
from frd.service.access.grants import Reloaded


@dataclass(frozen=True, slots=True)
class _Loaded:
    certificate: bytes
    key: bytes
    client_ca: bytes | None
    http: ssl.SSLContext


class Certificates:
    """The certificates of one service.

    Raises:
        ConfigError: from the constructor, naming the key whose file cannot be used.
    """

    def __init__(self, files: TlsFiles) -> None:
        self.handshakes = 0
        """Connections that began a handshake with gRPC, which does not report the result."""
        paths = (files.cert_file, files.key_file, files.client_ca_file, files.http_client_ca_file)
        self._files = Reloaded("certificates", filter(None, paths), partial(_load, files))
        self._lock = threading.Lock()
        self._given = self._files.content()

    def for_grpc(self) -> grpc.ServerCredentials:
        loaded = self._given
        return grpc.dynamic_ssl_server_credentials(
            _configuration(loaded),
            self._fetch,  # type: ignore[arg-type]  # None: nothing new, as gRPC documents it
            loaded.client_ca is not None,
        )

    def for_http(self) -> ssl.SSLContext:
        context = self._files.load().http

        def swap(socket: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: object) -> None:
            socket.context = self._files.content().http

        context.sni_callback = swap
        return context

    def refresh(self) -> None:
        """Read the files if they have changed."""
        self._files.content()

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        loaded = self._files.content()
        with self._lock:
            self.handshakes += 1
            if loaded is self._given:
                return None
            self._given = loaded
        return _configuration(loaded)


def _configuration(loaded: _Loaded) -> grpc.ServerCertificateConfiguration:
    pair = (loaded.key, loaded.certificate)
    return grpc.ssl_server_certificate_configuration([pair], loaded.client_ca)


def _load(files: TlsFiles) -> _Loaded:
    certificate = read_credential("tls.cert_file", files.cert_file)
    key = read_credential("tls.key_file", files.key_file)
    assert certificate is not None
    assert key is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_chain(context, files)
    client_ca = _authorities("tls.client_ca_file", files.client_ca_file)
    http_client_ca = _authorities("tls.http_client_ca_file", files.http_client_ca_file)
    if http_client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=http_client_ca.decode("ascii"))
    return _Loaded(certificate, key, client_ca, context)


def load_chain(context: ssl.SSLContext, files: TlsFiles) -> None:
    """
    Raises:
        ConfigError: the certificate or its key cannot be used.
    """
    assert files.cert_file is not None
    try:
        # Without a password, OpenSSL would ask the terminal for that of an encrypted key.
        context.load_cert_chain(files.cert_file, files.key_file, password="")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"tls.cert_file: {files.cert_file}: {why(error)}: give a PEM certificate chain "
            "whose key is in tls.key_file, unencrypted"
        ) from None


def _authorities(key: str, path: Path | None) -> bytes | None:
    pem = read_credential(key, path)
    if pem is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode())
        except (ValueError, ssl.SSLError) as error:
            raise ConfigError(f"{key}: {path}: {why(error)}: give PEM certificates") from None
    return pem


def why(error: Exception) -> str:
    """The message of OpenSSL without error codes."""
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
