"""Values by subject in a JetStream stream that keeps one message for each, and compare-and-set.

The sequence of a subject's message is its revision. Reads go to the leader of the stream: other
servers may answer with an outdated value.
"""

from __future__ import annotations

from frd.cluster.nats.connection import Absent, Connection, Refused, Unanswered
from frd.cluster.registry import Conflict, Entry, RegistryUnavailable


async def get(connection: Connection, stream: str, subject: str) -> Entry | None:
    """
    Raises:
        RegistryUnavailable: no answer in time.
    """
    try:
        message = await connection.ask(lambda js: js.get_msg(stream, subject=subject))
    except Absent:
        return None
    except Unanswered as error:
        raise unavailable(stream, error) from None
    return Entry(message.data or b"", message.seq or 0)


async def put(connection: Connection, stream: str, subject: str, data: bytes, revision: int) -> int:
    """Store `data` if the subject has this revision (0: none); returns the new one.

    A refused write of what is stored already has succeeded before, without an answer.

    Raises:
        Conflict, RegistryUnavailable
    """
    headers = {
        "Nats-Expected-Stream": stream,
        "Nats-Expected-Last-Subject-Sequence": str(revision),
    }
    try:
        return (await connection.publish(subject, data, headers)).number
    except Refused:
        stored = await get(connection, stream, subject)
    except (Unanswered, Absent) as error:
        raise unavailable(stream, error) from None
    if (0 if stored is None else stored.revision) == revision:
        raise RegistryUnavailable(f"{stream}: an earlier write is in flight: try again")
    if stored is not None and stored.value == data:
        return stored.revision
    raise Conflict(
        f"{subject}: revision {stored and stored.revision}, not {revision}: read it again"
    )


def unavailable(stream: str, error: Exception) -> RegistryUnavailable:
    return RegistryUnavailable(f"{stream}: {error}: check the NATS servers")
