"""Payloads of journal records: settings, dismissals, answers and findings as JSON, learned pauses
as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from frd import __version__
from frd.config import Config
from frd.decodable import decodable
from frd.engine.evidence.answers import Answer
from frd.engine.matching.learned_pauses import JobPauses
from frd.engine.policy import Policy
from frd.errors import StoreError
from frd.forms import finding_from_json, finding_json
from frd.model import Finding
from frd.store.findings import Notified
from frd.store.journal import JournalLimits

_T = TypeVar("_T")
_Payload = TypeVar("_Payload", "Settings", "Dismissal", "Handover", Answer)
_ADVICE = "damaged, or of a newer frd"


@decodable
@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the service that wrote the journal, so that a replay decides in the same way.

    Keys that this version does not know are ignored. Absent keys have their defaults.
    """

    version: str = "unknown"
    policy: Policy = field(default_factory=Policy)
    utc_ahead_ns: int = 0
    """UTC minus the times of records that follow; findings in records have UTC."""
    can_ask: bool = False
    """The journal has what ranks answered."""


@decodable
@dataclass(frozen=True, slots=True)
class Dismissal:
    """A request to close a finding by hand."""

    finding: str
    because: str
    by: str = ""
    """Empty if unknown."""

    @property
    def close_reason(self) -> str:
        return f"closed by {self.by or 'hand'}: {self.because}"


@decodable
@dataclass(frozen=True, slots=True)
class Handover:
    """What the owner of a cell leaves to the next one, besides the findings."""

    at: int = 0
    """When it was stored, UTC of the owner's machine."""
    pauses: str = ""
    """See `encode_pauses`."""


@decodable
@dataclass(frozen=True, slots=True)
class _Announced:
    """What the value of a finding in a cluster has besides the finding."""

    notified: Notified | None = None


def settings_of(config: Config, utc_ahead_ns: int) -> bytes:
    """The settings that decide what the service finds and shows, for its log."""
    return encode_payload(Settings(__version__, config.policy, utc_ahead_ns, can_ask=True))


def limits_of(config: Config) -> JournalLimits:
    store = config.store
    return JournalLimits(total_bytes=store.journal_bytes, max_age_s=store.journal_retention_s)


def encode_payload(payload: Settings | Dismissal | Handover | Answer) -> bytes:
    return msgspec.json.encode(payload)


def decode_payload(data: bytes, form: type[_Payload]) -> _Payload:
    """
    Raises:
        StoreError: `data` is not what `encode_payload` returns for a `form`.
    """
    what = f"{form.__name__.lower()}: "
    return _decoded(lambda: msgspec.json.decode(data, type=form), what)


def _decoded(decode: Callable[[], _T], what: str = "") -> _T:
    try:
        return decode()
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise StoreError(f"journal: {what}{error}: {_ADVICE}") from None


def encode_pauses(jobs: Iterable[JobPauses]) -> bytes:
    """One line for each job."""
    return "\n".join(job.encode() for job in jobs).encode("ascii")


def decode_pauses(data: bytes) -> list[JobPauses]:
    """
    Raises:
        StoreError: `data` is not what `encode_pauses` returns.
    """
    return _decoded(lambda: [JobPauses.decode(line) for line in data.splitlines()])


def encode_finding(finding: Finding, notified: Notified | None = None) -> bytes:
    """Times to the microsecond."""
    form = finding_json(finding) | ({"notified": notified} if notified is not None else {})
    return json.dumps(form, separators=(",", ":")).encode("ascii")


def decode_finding(data: bytes) -> Finding:
    """
    Raises:
        StoreError: `data` is not what `encode_finding` returns.
    """
    return _decoded(lambda: finding_from_json(msgspec.json.decode(data, type=dict[str, Any])))


def decode_notified(data: bytes) -> Notified | None:
    """What `encode_finding` got besides the finding.

    Raises:
        StoreError: `data` is not what `encode_finding` returns.
    """
    return _decoded(lambda: msgspec.json.decode(data, type=_Announced).notified)


def usable(decode: Callable[[bytes], _T], data: bytes, warn: Callable[[str], None]) -> _T | None:
    """None, with a warning, if this release cannot decode `data`."""
    try:
        return decode(data)
    except StoreError as error:
        warn(f"{error}: it is left out")
        return None
