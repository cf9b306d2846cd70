"""Loads a configuration: defaults < TOML file < environment < flags, for the service and the agent.

The caller gives a pydantic model of its keys. Every mistake becomes one `ConfigError` that begins
with the key's name.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsError,
)

from frd.errors import ConfigError

NOT_SHOWN = "set, not shown"
"""Printed instead of a secret."""
REMOVED: Final = frozenset(
    {
        *("policy.stall_tail_factor", "policy.mismatch_grace_s", "policy.loss_grace_s"),
        *("policy.max_pairs", "policy.max_signatures", "policy.max_memory_series"),
        *("policy.max_open_collectives", "policy.max_open_collectives_per_group"),
        *("policy.memory_min_rise_share", "policy.memory_high_share", "policy.memory_horizon_s"),
        *("policy.memory_link_s", "policy.memory_settle_s"),
        *("policy.memory_leak_window_s", "policy.memory_leak_horizon_s"),
        *("cluster.durable", "cluster.log_bytes"),
        *("outbox_rows", "memory_bytes", "ring_fill"),
    }
)
"""Keys of the service and of the agent that are constants now, or whose object is gone."""


class Settings(BaseSettings):
    """Base of the models. `load` reads the sources, so the model itself reads none."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


Model = TypeVar("Model", bound=Settings)


def load(
    model: type[Model],
    path: Path | None,
    flags: Mapping[str, Any] | None,
    *,
    known: Callable[[str], Sequence[str]],
    is_secret: Callable[[tuple[int | str, ...]], bool] = lambda key: False,
) -> Model:
    """`flags` maps dotted keys (``policy.stall_after_s``) to values; None means: not given.

    `known` returns the keys that exist, given one that does not; the message names a similar one.

    Raises:
        ConfigError: the file cannot be read, a key is unknown or a value cannot be used.
    """
    try:
        environment = EnvSettingsSource(model)()
    except SettingsError as error:
        raise ConfigError(f"environment: {error}: write the value as JSON") from None
    given = _read(path) if path is not None else {}
    given = _overlay(_overlay(given, environment), _nested(flags or {}))
    try:
        return model(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(_describe(first, known, is_secret(first["loc"]))) from None


def unknown(key: str, known: Sequence[str]) -> str:
    """Suggests a key of similar spelling, or the same name in another section."""
    if key in REMOVED:
        return f"{key}: removed: delete this line"
    name = key.rpartition(".")[2]
    near = [one for one in known if one.rpartition(".")[2] == name]
    near = near or difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else "see docs/configuration.md for the keys"
    return f"{key}: unknown key: {hint}"


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"config: {path}: {error.strerror}: name a TOML file that can be read"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config: {path}: {error}: write TOML") from None


def _nested(flags: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in flags.items():
        if value is not None:
            *sections, name = key.split(".")
            table = out
            for section in sections:
                table = table.setdefault(section, {})
            table[name] = value
    return out


def _overlay(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(lower)
    for key, value in upper.items():
        match out.get(key), value:
            case Mapping() as below, Mapping() as above:
                out[key] = _overlay(below, above)
            case _:
                out[key] = value
    return out


def _describe(error: ErrorDetails, known: Callable[[str], Sequence[str]], is_secret: bool) -> str:
    key = ".".join(map(str, error["loc"]))
    message = error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if not key:  # several keys do not fit together, and the message names them
        return message
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return unknown(key, known(key))
    if error["type"] in ("dataclass_type", "dict_type"):
        message = "must be a table of keys"
    if error["type"] == "tuple_type":
        message = "must be a list"
    return f"{key}: {NOT_SHOWN if is_secret else repr(error['input'])}: {message}"
