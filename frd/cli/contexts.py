"""Contexts: services by name, each with the files of its credentials, in one file of this user.

The file names the files of tokens and never holds a token. One context may be the current one,
which commands use if neither options nor variables name a service.
"""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from frd.decodable import decodable
from frd.errors import ConfigError
from frd.usage import guess


@decodable
class Context(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Options that name a service."""

    http: str
    tls: bool = False
    tls_ca_file: Path | None = None
    tls_cert_file: Path | None = None
    token_file: Path | None = None
    insecure: bool = False


@decodable
class Contexts(msgspec.Struct, forbid_unknown_fields=True):
    current: str = ""
    contexts: dict[str, Context] = {}

    def named(self, name: str) -> Context:
        """
        Raises:
            ConfigError: there is none.
        """
        if name not in self.contexts:
            like = guess(name, self.contexts)
            raise ConfigError(f"context: {name!r}: unknown{like}: see `frd context list`")
        return self.contexts[name]


def path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    folder = base if os.path.isabs(base) else os.path.expanduser("~/.config")
    return Path(folder, "frd", "contexts.toml")


def load() -> Contexts:
    """What the file has; nothing if there is none, or another user's.

    Raises:
        ConfigError: it cannot be read, or has something else.
    """
    try:
        data = tomllib.loads(path().read_text("utf-8"))
        return msgspec.convert(data, Contexts, dec_hook=lambda form, value: form(value))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return Contexts()
    except (OSError, ValueError) as error:
        raise ConfigError(f"contexts: {path()}: {error}: repair or remove the file") from None


def save(known: Contexts) -> None:
    """Replace the file; only this user may read it.

    Raises:
        ConfigError: it cannot be written, or a name cannot be in a file of TOML.
    """
    lines = [f"current = {_toml(known.current)}"]
    for name, context in known.contexts.items():
        lines += ["", f"[contexts.{_toml(name)}]"]
        plain = msgspec.to_builtins(context, enc_hook=str)
        lines += [f"{key} = {_toml(value)}" for key, value in plain.items()]
    text = "\n".join(lines) + "\n"
    try:
        tomllib.loads(text)
        path().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made, name = tempfile.mkstemp(dir=path().parent)  # mode 0600
        with open(made, "wb") as file:
            file.write(text.encode())
        os.replace(name, path())
    except (OSError, ValueError) as error:
        raise ConfigError(f"contexts: {path()}: {error}: choose other names or folders") from None


def context_names(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
    """For the completion of shells."""
    with suppress(ConfigError):
        return [name for name in load().contexts if name.startswith(typed)]
    return []


def _toml(value: str | bool) -> str:
    return json.dumps(value, ensure_ascii=False)
