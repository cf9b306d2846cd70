"""The learned pauses of jobs as a record of the journal: one line for each job."""

from __future__ import annotations

from collections.abc import Iterable

from frd.engine.matching.usual_waits import JobPauses
from frd.errors import StoreError


def encode_pauses(jobs: Iterable[JobPauses]) -> bytes:
    return "\n".join(job.encode() for job in jobs).encode("ascii")


def decode_pauses(data: bytes) -> list[JobPauses]:
    """
    Raises:
        StoreError: `data` is not what `encode_pauses` gives.
    """
    try:
        return [JobPauses.decode(line) for line in data.splitlines()]
    except ValueError as error:
        raise StoreError(f"journal: {error}: a foreign file, or one of a newer frd") from None
