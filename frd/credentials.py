"""Files with credentials: certificates, keys, and the token of an agent or a command."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from frd.errors import ConfigError

_MAX_BYTES: Final = 4 * 1024 * 1024
"""Larger than any bundle of CA certificates: the wrong file cannot fill the memory."""


def read_credential(key: str, path: Path | None) -> bytes | None:
    """The content of the file that the configuration key `key` names; None if it names none.

    Raises:
        ConfigError: the file cannot be read; the message starts with `key`.
    """
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{key}: {path}: {error.strerror}: name a file that can be read"
        ) from None
    if len(data) > _MAX_BYTES:  # in a part of a token file, a token might lack its limits
        raise ConfigError(f"{key}: {path}: over {_MAX_BYTES} bytes: name another file")
    return data


def read_token(key: str, path: Path) -> str:
    """The token in the file that the option or configuration key `key` names.

    Raises:
        ConfigError: the file cannot be read or has no token; the message starts with `key`.
    """
    if not (token := token_in(read_credential(key, path) or b"")):
        raise ConfigError(f"{key}: {path}: no token: write it on the first line")
    return token


def token_in(data: bytes) -> str:
    """The token in the content of a file: its first word.

    In the service's own file, the rights of the token follow. Empty if the file has no token, or
    one that an HTTP header cannot carry.
    """
    words = data.split(maxsplit=1)
    word = words[0].decode("ascii", "replace") if words else ""
    return word if word.isascii() and word.isprintable() else ""
