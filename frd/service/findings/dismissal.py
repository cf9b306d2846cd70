"""A request to close a finding by hand: its form in the journal, and the reason that users see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from frd.service.journal.settings import decoded

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
        return decoded(data, Dismissal, "dismissal")
