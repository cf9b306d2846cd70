"""How a replica authenticates at the NATS servers, from files that the configuration names."""

from __future__ import annotations

import importlib.util
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from frd.cluster.nats.connection import Access
from frd.config import ClusterOptions
from frd.errors import ClusterError


def access(options: ClusterOptions, member: str) -> Access:
    """
    Raises:
        ClusterError: a file cannot be read or used; the message has nothing of what is in it.
    """
    for server in options.servers:
        if urlsplit(server).username is not None:
            raise ClusterError(
                "cluster.servers: an address with a user: name a file in cluster.user_file"
            )
    user, password, token = _user(options)
    return Access(
        servers=options.servers,
        name=f"frd {options.name} {member}",
        user=user,
        password=password,
        token=token,
        credentials_file=_credentials(options),
        tls=_tls(options),
    )


def _user(options: ClusterOptions) -> tuple[str | None, str | None, str | None]:
    if options.user_file is None:
        return None, None, None
    line = _text("cluster.user_file", options.user_file).partition("\n")[0].strip()
    if not line:
        raise ClusterError(f"cluster.user_file: {options.user_file}: empty: write USER:PASSWORD")
    user, colon, password = line.partition(":")
    return (user, password, None) if colon else (None, None, line)


def _credentials(options: ClusterOptions) -> str | None:
    path = options.credentials_file
    if path is None:
        return None
    key = "cluster.credentials_file"
    text = _text(key, path)
    if "BEGIN NATS USER JWT" not in text or "BEGIN USER NKEY SEED" not in text:
        raise ClusterError(f"{key}: {path}: no NATS credentials: write JWT and seed, as nsc does")
    if importlib.util.find_spec("nkeys") is None:
        raise ClusterError(f"{key}: {path}: the module nkeys is missing: pip install nkeys")
    return str(path)


def _tls(options: ClusterOptions) -> ssl.SSLContext | None:
    wanted = any(server.startswith("tls://") for server in options.servers)
    if not (wanted or options.tls_ca_file or options.tls_cert_file):
        return None
    context = ssl.create_default_context()
    if path := options.tls_ca_file:
        _text("cluster.tls_ca_file", path)
        try:
            context = ssl.create_default_context(cafile=path)
        except (ssl.SSLError, ValueError):
            raise ClusterError(f"cluster.tls_ca_file: {path}: no certificates in PEM") from None
    if path := options.tls_cert_file:
        _text("cluster.tls_cert_file", path)
        if options.tls_key_file is not None:
            _text("cluster.tls_key_file", options.tls_key_file)
        try:
            context.load_cert_chain(path, options.tls_key_file)
        except (ssl.SSLError, ValueError):
            raise ClusterError(
                f"cluster.tls_cert_file: {path}: not usable with cluster.tls_key_file: "
                "name the PEM files of one pair"
            ) from None
    return context


def _text(key: str, path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError as error:
        raise ClusterError(f"{key}: {path}: {error.strerror}: make it readable") from None
