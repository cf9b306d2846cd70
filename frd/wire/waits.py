"""The report of an agent on what a suspect process is blocked in, as it travels: JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from frd.errors import WireError
from frd.model import NodeRawNs, WaitsFor

MAX_REPORT_BYTES: Final = 64 * 1024
_UNKNOWN: Final = NodeRawNs(0)


@dataclass(frozen=True, slots=True)
class WaitReport:
    """What an agent found out about one rank, as of now."""

    waits_for: WaitsFor
    """Without `since_at` and `text`, which the service fills in."""
    since_ns: NodeRawNs = _UNKNOWN
    """It has waited at least since then; 0 unknown."""


def encode_report(report: WaitReport) -> bytes:
    return msgspec.json.encode(report)


def decode_report(data: bytes) -> WaitReport:
    """
    Raises:
        WireError: `data` is not what `encode_report` returns.
    """
    try:
        return msgspec.json.decode(data[: MAX_REPORT_BYTES + 1], type=WaitReport)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError("response.data", "waits", str(error)) from None
