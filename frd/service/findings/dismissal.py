"""Closing a finding by hand: the request, its form in the journal, the reason that people see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from frd.errors import StoreError

MAX_REASON_CHARS: Final = 1000


@dataclass(frozen=True, slots=True)
class Dismissal:
    finding: str
    because: str

    @property
    def close_reason(self) -> str:
        return f"closed by hand: {self.because}"

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def decode(data: bytes) -> Dismissal:
        """
        Raises:
            StoreError: `data` is not what `encode` gives.
        """
        try:
            return msgspec.json.decode(data, type=Dismissal)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreError(
                f"journal: dismissal: {error}: a foreign file, or one of a newer frd"
            ) from None
