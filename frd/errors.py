"""The exceptions that frd raises on purpose.

Each message reads `what: which value: what to do`, so that one line on stderr, in a log or in
a refusal on the wire is enough to act on.
"""

from __future__ import annotations


class FrdError(Exception):
    """Base of all errors that frd raises on purpose."""


class ConfigError(FrdError, ValueError):
    """Configuration that cannot be used; the message starts with the key's name.

    A ValueError, because validators of a pydantic model raise it.
    """


class WireError(FrdError):
    """A message that breaks the wire contract.

    `field` is the dotted name of the offending field (``entries.seq``) and `reason` one of a
    small fixed set of words, fit for a metric label.
    """

    def __init__(self, field: str, reason: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.reason = reason


class DumpError(FrdError):
    """A Flight Recorder dump that cannot be read; the message names the source."""


class TelemetryError(FrdError):
    """Telemetry events that cannot be read; the message names the file."""


class TraceError(FrdError):
    """Traces of I/O that cannot be read; the message names the path."""


class StoreError(FrdError):
    """A data directory, database, journal or dump folder that cannot be used."""


class ListenError(FrdError):
    """An address that cannot be listened on; the message starts with the key's name."""


class ServiceUnavailable(FrdError):
    """The service, an agent or a rank did not answer."""


class UnknownThing(FrdError):
    """The service knows no job, finding or dump of that name."""


class ClusterError(FrdError):
    """The servers of the cluster cannot be used, or the cluster is another one than configured."""
