"""Settings of the service that wrote the journal, so that a replay decides in the same way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from frd.engine.policy import Policy
from frd.errors import StoreError

_Form = TypeVar("_Form")


def decoded(data: bytes, form: type[_Form], what: str) -> _Form:
    """A record of the journal that is the JSON of one dataclass; `what` names it in errors.

    Raises:
        StoreError: `data` is not the JSON of a `form`.
    """
    try:
        return msgspec.json.decode(data, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(
            f"journal: {what}: {error}: a foreign file, or one of a newer frd"
        ) from None


@dataclass(frozen=True, slots=True)
class Settings:
    """Keys that this version does not know are ignored. Absent keys have their defaults."""

    version: str = "unknown"
    policy: Policy = field(default_factory=Policy)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def decode(data: bytes) -> Settings:
        """
        Raises:
            StoreError: `data` is not what `encode` gives.
        """
        return decoded(data, Settings, "settings")
