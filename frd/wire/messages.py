"""The messages between an agent and the service, as frozen values.

Batches of rows are the column types of `frd.model`; their `rank` fields hold the *stream index*
of a rank (as do `RankStatus.rank`, groups, signatures and series), because global ranks repeat
across the jobs of one node. The reader of the stream maps an index back to a rank, not this module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, TypeAlias

from frd.model import (
    AttemptKey,
    ChannelColumns,
    EntryColumns,
    GroupInfo,
    MemoryColumns,
    MemoryEvent,
    NodeNs,
    NodeRawNs,
    RankInfo,
    RankPhases,
    RankStatus,
    SeriesInfo,
    Signature,
    WatermarkColumns,
)

PROTOCOL: Final = 2
"""Major version of the contract; agents with another one are refused."""
MAX_MESSAGE_BYTES: Final = 1024 * 1024
MAX_BUNDLED: Final = 64
"""Messages in one bundle."""
MAX_UNREADABLE: Final = 16
MAX_PHASES: Final = 32
"""Phases of one rank in one message."""
MAX_PHASE_NAMES: Final = 16
"""Phases inside each other."""
MAX_PHASE_NAME: Final = 256
"""Characters of the name of a phase."""
MAX_SLACK_NS: Final = 1_000_000_000
"""Largest distance of two clock readings that may be compared."""
PART_BYTES: Final = 512 * 1024
"""Most data of one `ResponsePart`, so that a dump never blocks a stream for long."""

REASONS: Final = (
    "parse",
    "version",
    "order",
    "missing",
    "unknown_index",
    "redefined",
    "length",
    "range",
    "backwards",
    "disagree",
    "limit",
    "too_large",
    "token",
    "job",
)
"""Every word that `WireError.reason` takes."""


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of every stream, and only there."""

    protocol: int
    agent_version: str
    node: str
    boot_id: str
    session: str
    """Random id of the agent process; revisions count within it."""
    sent_at_ns: NodeNs
    sent_raw_ns: NodeRawNs
    """The node's raw clock then."""
    metrics: str = ""
    """HOST:PORT of the agent's /metrics for other machines; empty: none."""
    paced: bool = False
    """The agent obeys `Pace`."""


@dataclass(frozen=True, slots=True)
class AttemptDecl:
    index: int
    key: AttemptKey
    world_size: int
    """0 when unknown."""
    run: str = ""
    """Identifies the launch of the job: processes of two launches have different values; empty:
    unknown."""


@dataclass(frozen=True, slots=True)
class RankDecl:
    index: int
    attempt_index: int
    info: RankInfo


@dataclass(frozen=True, slots=True)
class GroupDecl:
    index: int
    attempt_index: int
    info: GroupInfo


@dataclass(frozen=True, slots=True)
class SignatureDecl:
    index: int
    signature: Signature


@dataclass(frozen=True, slots=True)
class SeriesDecl:
    index: int
    info: SeriesInfo
    """Its `rank` is the stream index of a rank declared before."""


@dataclass(frozen=True, slots=True)
class Declare:
    """Additions to the stream's dictionaries; indexes are dense and never redefined."""

    attempts: tuple[AttemptDecl, ...] = ()
    ranks: tuple[RankDecl, ...] = ()
    groups: tuple[GroupDecl, ...] = ()
    signatures: tuple[SignatureDecl, ...] = ()
    series: tuple[SeriesDecl, ...] = ()


@dataclass(frozen=True, slots=True)
class Watermarks:
    """`columns.rank`, `.group` and `.seen_rank` are stream indexes of one attempt."""

    attempt_index: int
    columns: WatermarkColumns
    sent_at_ns: NodeNs
    """0 if the two clocks could not be read together."""
    sent_raw_ns: NodeRawNs
    """The node's raw clock when its wall clock showed `sent_at_ns`."""
    sent_slack_ns: int = 0
    """`sent_at_ns` and `sent_raw_ns` were read at most this far apart."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What ranks of the node publish and its agent may not read, as text for users."""

    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Leaving:
    """The agent was asked to stop: it may end at any time, with or without a `Goodbye`."""

    live_ranks: int
    """Of the stream's job, when it was asked."""


@dataclass(frozen=True, slots=True)
class Statuses:
    """The `rank` of each is a stream index."""

    statuses: tuple[RankStatus, ...]
    phases: tuple[RankPhases, ...] = ()
    unreadable: Unreadable | None = None
    """None: as before."""
    leaving: Leaving | None = None


@dataclass(frozen=True, slots=True)
class MemoryEvents:
    """`MemoryEvent.rank` is a stream index."""

    events: tuple[MemoryEvent, ...]


class Part(IntEnum):
    """Parts of the answer to a `Request`, per rank."""

    DUMP = 1
    """PyTorch's own pickle layout, membership filled in."""
    IDENTITY = 2
    """JSON: ``rank_<rank>.json`` of a dump."""
    STACK = 3
    """UTF-8 text."""
    WAITS = 4
    """`frd.wire.waits.encode_report`."""
    RAS = 5
    """`frd.wire.waits.encode_ras`."""


@dataclass(frozen=True, slots=True)
class ResponsePart:
    """A piece of a part; pieces of one (request, rank, part) come in order."""

    request_id: int
    rank_index: int
    part: Part
    data: bytes
    last: bool
    source: str = ""
    """The source of the data: ``fr_trace_json``, ``pipe``, ``file``, ``py-spy``, ``proc``,
    ``ras``."""
    error: str = ""
    """The reason why this part has no data; empty if it has."""


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The agent ends the stream, which leaves its ranks without an agent."""

    reason: str


@dataclass(frozen=True, slots=True)
class Welcome:
    protocol: int
    service_version: str
    instance: str
    """Random id of the service process; a new process has no state of the agent's ranks."""
    max_message_bytes: int
    next: str = ""
    """HOST:PORT where the agent should try first when this stream breaks; empty: nowhere."""


@dataclass(frozen=True, slots=True)
class Ack:
    """Highest revision applied per stream index of a rank."""

    revisions: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resync:
    """Send dictionaries, statuses, all watermarks and in-flight entries again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Request:
    request_id: int
    rank_indexes: tuple[int, ...]
    dump: bool
    stacks: bool
    timeout_s: float
    children_of: tuple[int, ...] = ()
    """The ranks of `rank_indexes` whose child processes' stacks are requested as well."""
    waits: bool = False
    """What the ranks are blocked in is requested. An agent samples a rank for some seconds after
    each such request and answers immediately with what it knows by then, so the service repeats the
    request."""
    ras: bool = False
    """What the RAS service of NCCL says of the communicators of the ranks is requested."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The service refuses a message, and ends the stream."""

    reason: str
    """A word of `REASONS`."""
    message: str


@dataclass(frozen=True, slots=True)
class Redirect:
    """Another process of the service has the jobs of this stream, which ends."""

    address: str
    """HOST:PORT."""
    reason: str
    """For people."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the agent reports while nothing has happened. It may send bundles from now on
    (`frd.wire.bundle`)."""

    round_ms: int
    """Between two rounds of watermarks and samples."""


AgentEvent: TypeAlias = (
    Hello
    | Declare
    | EntryColumns
    | Watermarks
    | ChannelColumns
    | Statuses
    | MemoryColumns
    | MemoryEvents
    | ResponsePart
    | Goodbye
)
ServiceEvent: TypeAlias = Welcome | Ack | Resync | Request | Refusal | Redirect | Pace
