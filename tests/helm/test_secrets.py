"""Certificates and tokens that the chart generates: once, and then kept."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path

import pytest

from frd.service.access.grants import Role, Tokens
from tests.helm.apiserver import Secrets, install
from tests.helm.chart import CHART, render

TLS, TOKENS, AGENT = ("frd", "frd-tls"), ("frd", "frd-tokens"), ("frd", "frd-agent")


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart with only its Secrets, the only objects that the API server here has."""
    copy = tmp_path_factory.mktemp("chart") / "frd"
    shutil.copytree(CHART, copy)
    shutil.rmtree(copy / "templates/tests")
    for template in (copy / "templates").glob("*.yaml"):
        if template.name != "secrets.yaml":
            template.unlink()
    return copy


def data(secrets: Secrets) -> dict[tuple[str, str], dict[str, str]]:
    return {key: secret["data"] for key, secret in secrets.items()}


def test_an_upgrade_keeps_what_the_install_made(chart: Path) -> None:
    """An upgrade keeps certificate and tokens; another cluster gets different ones. Agents get the
    CA and their token, and no other credential: in one more namespace of jobs the same as in the
    others, and again if their Secret was deleted."""
    first = install(chart, {}, present={})
    assert first.keys() == {TLS, TOKENS, AGENT}
    assert first[AGENT]["data"].keys() == {"ca.crt", "token"}
    assert first[AGENT]["data"]["token"] == first[TOKENS]["data"]["agent"]
    assert data(install(chart, {}, first)) == data(first)
    assert data(install(chart, {}, {})) != data(first)
    more = install(chart, {"agent": {"namespaces": ["training"]}}, first)
    assert data(more) == data(first) | {("training", "frd-agent"): first[AGENT]["data"]}
    rest = {key: secret for key, secret in first.items() if key != AGENT}
    assert data(install(chart, {}, rest)) == data(first)


def test_client_certificates_come_with_a_new_authority(chart: Path) -> None:
    """The key of the old CA was not kept, so all certificates are new; the tokens stay."""
    values = {"tls": {"clientCertificates": True}}
    first = install(chart, {}, {})
    second = install(chart, values, first)
    assert second[TLS]["data"]["ca.crt"] != first[TLS]["data"]["ca.crt"]
    assert second[AGENT]["data"]["ca.crt"] == second[TLS]["data"]["ca.crt"]
    assert second[TOKENS]["data"] == first[TOKENS]["data"]
    assert data(install(chart, values, second)) == data(second)


def test_each_token_grants_the_role_of_its_name(tmp_path: Path) -> None:
    """The service reads the tokens file, and grants each token one role."""
    secret = render().one("Secret", "frd-tokens")["data"]
    plain = {key: base64.b64decode(value).decode() for key, value in secret.items()}
    (tmp_path / "tokens").write_text(plain.pop("tokens"))
    (tmp_path / "tokens").chmod(0o440)
    tokens = Tokens(tmp_path / "tokens")
    assert plain.keys() == {role.value for role in Role}
    for role, token in plain.items():
        grant = tokens.grant(f"Bearer {token}")
        assert grant is not None
        assert grant.roles == {Role(role)}
    assert len(set(plain.values())) == len(plain)


def test_your_own_secrets_are_only_named() -> None:
    """With both given, the chart makes no Secret, and the notes ask for the agents' Secret."""
    values = {"tls": {"source": "secret", "secretName": "mine"}, "auth": {"secretName": "t"}}
    rendered = render(values)
    assert rendered.of("Secret") == []
    assert "Create the Secret frd-agent" in rendered.notes
