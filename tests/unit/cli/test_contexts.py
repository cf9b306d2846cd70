"""`frd context`: services by name, and which one a command asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from frd.cli import FAILED, USAGE
from tests.unit.cli.shell import Shell
from tests.world.http_service import Service, says_status

TOKEN = "t" * 32


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of configuration, with a token in it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "token").write_text(TOKEN)
    return tmp_path


@pytest.fixture
def prod(service: Service, shell: Shell, home: Path) -> Service:
    """The service of the context `prod`, which has a token."""
    says_status(service)
    shell("context", "add", "prod", "--http", service.address, "--token-file", home / "token")
    return service


def test_a_context_in_use_names_the_service(prod: Service, shell: Shell) -> None:
    """Chosen for all commands or for one; its token is sent."""
    assert shell("status", "-o", "name", "--context", "prod").out == "a/b\n"
    assert "nothing listens there" in shell("status", "--http", "127.0.0.1:1", code=FAILED).error
    shell("context", "use", "prod")
    assert shell("status", "-o", "name").out == "a/b\n"
    assert prod.headers["Authorization"] == f"Bearer {TOKEN}"
    shell("context", "remove", "prod")
    assert shell("context", "list").out == ""


def test_the_file_is_private_and_has_no_token(prod: Service, shell: Shell, home: Path) -> None:
    """Only the name of the token's file, absolute; the listing and the options are shown."""
    file = home / "frd" / "contexts.toml"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert TOKEN not in file.read_text()
    assert shell("context", "show", "prod").lines == [
        f"--http {prod.address}",
        f"--token-file {home / 'token'}",
    ]
    shell("context", "add", 'odd "name"', "--http", "https://frd.example", "--tls")
    shell("context", "use", "prod")
    assert shell("context", "list").out == (
        f'*\tprod\t{prod.address}\n\todd "name"\thttps://frd.example\n'
    )


def test_flags_before_variables_before_the_context(
    prod: Service, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that is named in another way gets no token of the context; --context is a flag, and
    so before variables, but not together with --http."""
    shell("context", "use", "prod")
    monkeypatch.setenv("FRD_HTTP", prod.address)
    shell("status")
    assert "Authorization" not in prod.headers
    monkeypatch.setenv("FRD_HTTP", "127.0.0.1:1")
    assert "nothing listens there" in shell("status", code=FAILED).error
    shell("status", "--http", prod.address)
    assert "Authorization" not in prod.headers
    shell("status", "--context", "prod")
    assert prod.headers["Authorization"] == f"Bearer {TOKEN}"
    shell("status", "--context", "prod", "--http", prod.address, code=USAGE)


def test_variables_of_another_service_are_not_stored(
    shell: Shell, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FRD_TOKEN_FILE is for the service of FRD_HTTP, not for the one that is added."""
    monkeypatch.setenv("FRD_TOKEN_FILE", str(home / "token"))
    monkeypatch.setenv("FRD_HTTP", "127.0.0.1:1")
    shell("context", "add", "prod", "--http", "https://frd.example")
    assert shell("context", "show", "prod").out == "--http https://frd.example\n"


def test_without_a_folder_of_configuration(
    service: Service, ask: Shell, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No home, as in a container: there are no contexts, and commands work."""
    says_status(service)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/dev/null")
    assert ask("status", "-o", "name").out == "a/b\n"
    assert "nothing listens" in shell("findings", "--http", "127.0.0.1:1", code=FAILED).error
    monkeypatch.setenv("FRD_HTTP", service.address)
    assert shell("status", "-o", "name").out == "a/b\n"
    assert "contexts: /dev/null" in shell("context", "add", "a", code=USAGE).error


def test_a_context_that_cannot_be_used(shell: Shell, home: Path) -> None:
    """An unknown name, a token that would be readable on the way, a file of something else:
    one line, exit code 2, and nothing is stored."""
    shell("context", "add", "prod", "--http", "https://frd.example")
    error = shell("context", "use", "prdo", code=USAGE).error
    assert "'prdo': unknown, did you mean prod: see `frd context list`" in error
    far = ("--http", "frd.example:1", "--token-file", home / "token")
    assert "would be sent unencrypted" in shell("context", "add", "far", *far, code=USAGE).error
    assert "did you mean" not in shell("status", "--context", "far", code=USAGE).error
    for text in ("x", "current = 1", "[contexts.a]\nhttp = 1", "[contexts.a]\nhttp='h'\ntoken='t'"):
        (home / "frd/contexts.toml").write_text(text)
        assert "repair or remove the file" in shell("status", code=USAGE).error
