"""Credentials as `nsc` writes them: a JWT and a seed, against a server that trusts an operator."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nkeys
import pytest

from frd.cluster.nats import connect
from frd.config import ClusterOptions
from frd.errors import ClusterError
from tests.world.daemons import fetch, free_port, running, until
from tests.world.nats_servers import BINARY

pytestmark = [pytest.mark.nats, pytest.mark.xdist_group("nats-start")]


def pair(prefix: int) -> nkeys.KeyPair:
    seed: bytes = nkeys.encode_seed(os.urandom(32), prefix)
    return nkeys.from_seed(bytearray(seed))


def jwt(issuer: nkeys.KeyPair, subject: nkeys.KeyPair, name: str, claims: dict[str, Any]) -> str:
    """A claim about `subject`, as NATS' JWT format 2 has it."""

    def part(value: object) -> str:
        text = json.dumps(value, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(text).rstrip(b"=").decode()

    body = {
        "jti": name,
        "iat": int(time.time()),
        "iss": issuer.public_key.decode(),
        "sub": subject.public_key.decode(),
        "name": name,
        "nats": {"version": 2, **claims},
    }
    signed = f"{part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{part(body)}"
    signature = base64.urlsafe_b64encode(issuer.sign(signed.encode())).rstrip(b"=").decode()
    return f"{signed}.{signature}"


def credentials(folder: Path, name: str, account: nkeys.KeyPair, user: nkeys.KeyPair) -> Path:
    claims = {"type": "user", "subs": -1, "data": -1, "payload": -1}
    token = jwt(account, user, name, claims)
    path = folder / f"{name}.creds"
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )
    return path


@pytest.fixture
def trusted(tmp_path: Path) -> Iterator[tuple[str, Path, Path]]:
    """URL of a server, credentials of its account, and those of an account unknown to it."""
    operator, account, stranger = (
        pair(nkeys.PREFIX_BYTE_OPERATOR),
        pair(nkeys.PREFIX_BYTE_ACCOUNT),
        pair(nkeys.PREFIX_BYTE_ACCOUNT),
    )
    system = pair(nkeys.PREFIX_BYTE_ACCOUNT)
    plain = dict.fromkeys(("subs", "conn", "leaf", "imports", "exports", "data", "payload"), -1)
    stored = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
    unlimited = {**plain, "wildcards": True, **stored}
    known = jwt(operator, account, "FRD", {"type": "account", "limits": unlimited})
    of_servers = jwt(operator, system, "SYS", {"type": "account", "limits": plain})
    self_signed = jwt(operator, operator, "OP", {"type": "operator"})
    port, monitor = free_port(), free_port()
    config = tmp_path / "nats.conf"
    config.write_text(
        f"server_name: n0\nlisten: 127.0.0.1:{port}\nhttp: 127.0.0.1:{monitor}\n"
        f'jetstream {{store_dir: "{tmp_path / "store"}", max_file_store: 200GB, '
        "sync_interval: always}\n"
        f"operator: {self_signed}\nresolver: MEMORY\n"
        f"system_account: {system.public_key.decode()}\n"
        f"resolver_preload {{ {account.public_key.decode()}: {known}, "
        f"{system.public_key.decode()}: {of_servers} }}\n"
    )
    users = pair(nkeys.PREFIX_BYTE_USER), pair(nkeys.PREFIX_BYTE_USER)
    good = credentials(tmp_path, "good", account, users[0])
    bad = credentials(tmp_path, "bad", stranger, users[1])
    command = [str(BINARY), "--config", str(config)]
    log = tmp_path / "nats.log"
    with running(command, log=log, stdout=subprocess.DEVNULL):
        until(lambda: fetch(f"127.0.0.1:{monitor}", "/healthz"), log.read_text, ignoring=OSError)
        yield f"nats://127.0.0.1:{port}", good, bad


async def test_credentials_of_an_operator(trusted: tuple[str, Path, Path]) -> None:
    """The credentials of the account open the cluster; those of another account are refused with
    the key and without a secret."""
    url, good, bad = trusted
    options = ClusterOptions((url,), "frd", replicas=1, credentials_file=good)
    cluster = await connect(options, "a", "h:1", "http://h:2", "1")
    assert await cluster.keys.put("c.03", b"a", 0) == 2
    await cluster.close()
    refused = ClusterOptions((url,), "frd", replicas=1, credentials_file=bad)
    with pytest.raises(ClusterError) as caught:
        await connect(refused, "a", "h:1", "http://h:2", "1")
    text = str(caught.value)
    assert "credentials" in text
    assert "SU" not in text, "a seed"
