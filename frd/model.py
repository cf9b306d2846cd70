"""The types of frd: ids, clocks, columns of a rank's records, findings.

Frozen values only. This module knows no format, no wire and no policy; parsers, the codec, the
engine and the commands all use these types. Times carry their clock in their type, so that
mypy refuses to compare a node's clock with the service's.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag, StrEnum
from typing import Final, NewType, TypeAlias

import numpy as np
import numpy.typing as npt

NodeNs = NewType("NodeNs", int)
"""CLOCK_REALTIME of a node, in nanoseconds since the epoch."""
AlignedNs = NewType("AlignedNs", int)
"""A time on the service's raw clock, in nanoseconds since the epoch if UTC has not moved since the
service started. Findings outside of the engine have UTC instead."""
NodeRawNs = NewType("NodeRawNs", int)
"""CLOCK_MONOTONIC_RAW of a node: no steps, no slew; its origin differs from node to node."""
ServiceRawNs = NewType("ServiceRawNs", int)
"""CLOCK_MONOTONIC_RAW of the service's host."""

Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Int32s: TypeAlias = npt.NDArray[np.int32]
UInt32s: TypeAlias = npt.NDArray[np.uint32]
UInt8s: TypeAlias = npt.NDArray[np.uint8]
Float64s: TypeAlias = npt.NDArray[np.float64]

MAX_WORLD_SIZE: Final = 1 << 20
"""A rank is below it, in dumps and on the wire."""
MAX_SEQ: Final = 1 << 53
"""Larger than any real seq, and far enough from 2**63 for sums."""
YEAR_2200_NS: Final = 7_258_118_400_000_000_000
"""Times of dumps and of the wire are from 1970 to before this."""
UNKNOWN_SEQ = -1
"""Watermark of a group in which a rank has enqueued (started, completed) nothing yet."""
UNSHOWN = -2
"""Watermark `started` if no entry of the rank's recorder shows when an op ends."""
HIDDEN = -3
"""Watermark `started` of a rank that may wait in a batch of sends in the group, without entry."""


# -- identity --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class AttemptKey:
    """One restart of one training run; the unit that the engine keeps apart."""

    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Address:
    """Where people find the process of a rank, as its agent reports it; what is not known is empty.

    All are printable; see `frd.engine.findings.text.clean`.
    """

    pid: int = 0
    """As the agent's node counts it: what ``py-spy dump --pid`` takes there."""
    command: str = ""
    """The command line; arguments that look like secrets are blanked."""
    user: str = ""
    container: str = ""
    """Id of the container."""
    slurm_job: str = ""
    slurm_step: str = ""
    namespace: str = ""
    """Of the Kubernetes pod."""
    pod: str = ""
    log: str = ""
    """The file that its stderr goes to."""


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Identity of one rank process, from its tap or a dump file."""

    rank: int
    world_size: int
    """0 when unknown (dump files have none)."""
    node: str
    """Host name; the clock domain is `boot_id`."""
    boot_id: str
    pid: int
    """In the agent's pid namespace; 0 when unknown."""
    local_rank: int = -1
    torch_version: str = ""
    backends: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    """GPU UUIDs."""
    address: Address | None = None

    @property
    def process(self) -> tuple[str, int]:
        """Identifies the process among those that have had the rank."""
        return self.boot_id, self.pid


NO_NAME: Final = "(no name)"


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A process group as every member knows it.

    `name` is PyTorch's group name (``"0"``, a hash), `desc` the human description
    (``default_pg``, ``TENSOR_MODEL_PARALLEL_GROUP``), `ranks` the sorted global ranks, empty if
    no member has reported them.
    """

    name: str
    desc: str
    ranks: tuple[int, ...] = ()

    group_id: str = field(init=False, compare=False, repr=False)
    """Stable id, equal on every member: names alone repeat across disjoint groups."""

    def __post_init__(self) -> None:
        digest = hashlib.blake2b(digest_size=8)
        digest.update(self.name.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
        digest.update(np.asarray(self.ranks, dtype="<i4").tobytes())
        object.__setattr__(self, "group_id", digest.hexdigest())

    @property
    def label(self) -> str:
        """Label in metrics and texts: the description if there is one, else the name."""
        return self.desc if self.desc not in ("", "undefined") else self.name or NO_NAME


@dataclass(frozen=True, slots=True)
class Signature:
    """What a rank passed to a collective: the part that its peers must agree with."""

    backend: str
    op: str
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()


class RankState(StrEnum):
    """State of a rank process, as its agent sees it from outside."""

    LIVE = "live"
    SILENT = "silent"
    """The process exists, but its recorder's socket does not answer (stopped, swapped, dying)."""
    EXITED = "exited"
    """The process is gone and did not end cleanly; see `RankStatus.exit`."""
    FINISHED = "finished"
    """The process is gone after a clean exit."""


class ExitKind(StrEnum):
    """How a process ended."""

    CLEAN = "clean"
    """By itself, with status 0 as far as the status is known."""
    EXCEPTION = "exception"
    """An uncaught exception."""
    INTERRUPT = "interrupt"
    """By Ctrl-C: KeyboardInterrupt, SIGINT, or status 130."""
    STATUS = "status"
    """By itself, with a status other than 0 and without an exception: `sys.exit(1)`."""
    SIGNAL = "signal"
    """Killed by a signal."""
    UNKNOWN = "unknown"
    """No exit record, and no agent saw the exit status."""


@dataclass(frozen=True, slots=True)
class ExitInfo:
    """How a rank's process ended, from its own record and from the kernel."""

    kind: ExitKind
    signal: int = 0
    """The signal that killed it, whatever `kind` is; or the one that status 128 + n names, which is
    how a handler passes on its signal. 0: none."""
    status: int | None = None
    """Exit status, 0 to 255; None when it is not known, or a signal killed the process."""
    exception: str = ""
    """``RuntimeError: bad batch``, first line only."""
    where: str = ""
    """The user's own innermost frame of its traceback: ``train.py:88 load_batch``."""
    note: str = ""
    """More evidence as text, for example from the kernel's counter of out-of-memory kills."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a job died: all ranks of an attempt are gone, not all cleanly, and not on request."""

    attempt: int
    world_size: int
    at: AlignedNs
    """When its last rank ended, UTC."""
    rank: int
    """The first cause: the first suspect of `finding`, else the first rank that failed."""
    text: str
    """``rank 2 raised ValueError: bad batch (train.py:88 step)``, or the summary of `finding`."""
    exit: ExitInfo
    """Of the rank, with its exception and line if it raised one."""
    finding: str = ""
    """Id of the finding that was open at the end and says why; empty if there was none."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the main thread of a rank is while its counters rest, or before it has any: what its
    tap has seen at every look since `since_ns`."""

    op: str
    """What it waits in, as in `UnrecordedWait`; empty: in nothing that its frames show. A rank with
    groups was then seen so at one look only: `since_ns` is `as_of_ns`."""
    since_ns: NodeRawNs
    as_of_ns: NodeRawNs
    """When the tap of the process saw it so."""
    where: str = ""
    """The line of the program: ``train.py:88 in load_batch``. Empty: not known, as before the rank
    has groups. Without an op as well, such a stage of a rank with groups says nothing."""
    rests: bool = False
    """The main thread has not run since `since_ns`."""


@dataclass(frozen=True, slots=True)
class RankStatus:
    """An agent's positive evidence about one of its ranks, replacing the previous one."""

    rank: int
    state: RankState
    at_ns: NodeRawNs | NodeNs
    """When the state began."""
    detail: str = ""
    """Evidence for people, e.g. ``process 4711 is stopped (state T)``; of a process that is gone,
    `frd.forms.exit_text` of `exit`."""
    gap_entries: int = 0
    """Entries known to be lost to overruns and resets of recorders and full outboxes, cumulative
    for this process."""
    exit: ExitInfo | None = None
    """None while the process lives."""
    as_of_ns: int = field(default=0, compare=False)
    """When the agent saw the rank so; 0 unknown."""
    stage: Stage | None = None
    """None while the rank moves."""
    unread: str = ""
    """Why collectives of the rank cannot be read, and what helps; only of a live rank."""


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """When the program of a rank was in a phase that it has named (`frd_agent.phase`)."""

    path: tuple[str, ...]
    """Names, outermost first."""
    since_ns: NodeRawNs
    until_ns: NodeRawNs = NodeRawNs(0)
    """0: it goes on."""


@dataclass(frozen=True, slots=True)
class RankPhases:
    """The last phases of a rank that have ended, and all that go on."""

    rank: int
    spans: tuple[PhaseSpan, ...]


# -- what a rank recorded ------------------------------------------------------------------


class Flags(IntFlag):
    """The event of one transition of (rank, group, seq)."""

    JOINED = 1
    STARTED = 2
    COMPLETED = 4
    FAILED = 8


@dataclass(frozen=True, slots=True)
class EntryColumns:
    """Transitions of one rank, one row each, in recording order.

    Row i has revision ``first_revision + i``. All columns have the same length n. `group` and
    `signature` are the sender's dictionary indexes on the wire, the engine's handles behind it.
    """

    rank: int
    first_revision: int
    group: UInt32s
    seq: Int64s
    signature: UInt32s
    flags: UInt8s
    created_ns: Int64s
    """CPU enqueue, by the node's raw clock (as all times that agents report)."""
    started_ns: Int64s
    """0 when unknown."""
    completed_ns: Int64s
    """0 when unknown; otherwise an upper bound (times are discovered by polling)."""

    def __len__(self) -> int:
        return len(self.seq)


@dataclass(frozen=True, slots=True)
class WatermarkColumns:
    """Progress of ranks of one attempt, one row per (rank, group) that changed.

    ``enqueued >= started >= completed`` are collective seqs, `UNKNOWN_SEQ` for none (and for
    `started` when the recorder's timing is off). `completed` means: this seq and all before it. If
    `started` is `UNSHOWN`, no entry shows when an op ends, and the last one counts as in flight;
    `HIDDEN` is the other such value.
    `head_created_ns` is the enqueue time of the rank's oldest outstanding collective in the group,
    0 when nothing is outstanding.

    `seen_rank` and `as_of_ns` say, for every rank the agent hears from, up to which node time
    its rows (these and all earlier ones) are complete; absence is evidence only up to that time.
    """

    rank: UInt32s
    group: UInt32s
    enqueued: Int64s
    started: Int64s
    completed: Int64s
    head_created_ns: Int64s
    seen_rank: UInt32s
    as_of_ns: Int64s


@dataclass(frozen=True, slots=True)
class ChannelColumns:
    """All in-flight P2P ops of one rank; replaces the rank's previous ones.

    A channel is (group, peer, direction). P2P ops pair by order per channel. A row is a run of ops
    of one channel, call and signature, in order of posting. Peers are global ranks.
    """

    rank: int
    group: UInt32s
    peer: Int32s
    """-1: any source."""
    is_send: UInt8s
    in_flight: UInt32s
    head_created_ns: Int64s
    """Of the first op of the same call."""
    signature: UInt32s | Int32s
    """-1 for what the service has no room for."""
    batch: UInt32s
    """Rows of one group with the same number were posted as one call; 0 for a single op."""
    posted: Int64s
    """Ops that were posted on the channel before the first of the row; -1 when unknown."""
    as_of_ns: int = 0
    """Node time up to which this is complete; 0 unknown."""


# -- memory ------------------------------------------------------------------------------------


class SeriesKind(StrEnum):
    """What a memory series measures; all in bytes."""

    DEVICE_USED = "device_used"
    """All of the device, by all processes."""
    PROCESS_USED = "process_used"
    """Of the device, by the rank's process."""
    TORCH_RESERVED = "torch_reserved"
    """Of the device, held by torch's caching allocator."""
    TORCH_ALLOCATED = "torch_allocated"
    """Of the device, in tensors."""
    HOST_USED = "host_used"
    """By the rank's process and its children (data loaders)."""
    CGROUP_USED = "cgroup_used"
    """By everything in the rank's cgroup."""


@dataclass(frozen=True, slots=True)
class SeriesInfo:
    """One quantity of memory over time; a device that several ranks use has a series for each."""

    rank: int
    kind: SeriesKind
    device: str = ""
    """UUID of the GPU or MIG instance, empty for host memory."""


@dataclass(frozen=True, slots=True)
class MemoryColumns:
    """Samples of S series at T times; each value was read between its begin and its end."""

    series: UInt32s | Int32s | Int64s
    """(S,) the sender's dictionary indexes on the wire, the engine's handles behind it."""
    capacity: Int64s
    """(S,) bytes: what the series can rise to; 0 unknown."""
    begin_ns: Int64s
    """(T,) node time, rising."""
    end_ns: Int64s
    """(T,)"""
    values: Int64s
    """(S, T) bytes; -1 no sample."""


class MemoryEventKind(StrEnum):
    OOM = "oom"
    """torch's allocator could not serve a request."""
    OOM_KILL = "oom_kill"
    """The kernel killed in the rank's cgroup."""
    DEVICE_LOST = "device_lost"
    """The driver no longer answers for the device."""


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    rank: int
    kind: MemoryEventKind
    at_ns: NodeRawNs | NodeNs
    device: str = ""
    requested_bytes: int = 0
    """Of the request that failed; 0 unknown."""
    detail: str = ""


# -- waits outside recorders ---------------------------------------------------------------


class WaitSource(StrEnum):
    """Who saw an unrecorded wait; a rank has at most one of each."""

    STAGE = "stage"
    """What the tap publishes while the counters of the rank rest, and before it has any."""
    STACK = "stack"
    """The stack of its main thread is in a call of torch.distributed."""
    INSPECTION = "inspection"
    """/proc: a process of the rank waits for a lock that a process of another rank holds; or the
    main thread is in a native call that may wait for another rank."""


INITIALIZATION: Final = frozenset({"init_process_group", "new_group", "split_group"})
"""Calls that every rank of the job has to make, or of a part of it."""
LOCK: Final = "lock"
"""The op of a wait for a lock that another process holds."""
POLL: Final = "poll"
"""It wakes from sleep again and again, and does nothing: it waits for something that it looks for.
Its peer is not known, unless it looks for a lock that another rank holds."""
DEVICE: Final = "device"
"""It waits for its device, which may wait for other ranks: `torch.cuda.synchronize`, an event. It
may use all of a core."""
IDLE: Final = "idle"
"""It waits for a request: in `accept`, for an empty queue, in an event loop, as a server, a worker
or a notebook does. No rank is its peer."""
REST: Final = "rest"
"""It is at rest in something else, such as a read or a reply: no wait for another rank, as far as
that is known."""
CHILD: Final = "child"
"""It waits for a child process that is blocked in nothing that is known: that one may compute. No
rank is its peer."""
NO_WAIT: Final = frozenset({"", IDLE, REST, CHILD})
"""Ops of sightings that show a rank in no wait for another one."""
NATIVE: Final = "native call"
"""The op of a wait in a call of C or C++ that a line of the program makes, with a time-out and for
another thread: what a wait for a send or receive of Gloo looks like (``work.wait()``)."""


@dataclass(frozen=True, slots=True)
class UnrecordedWait:
    """A rank waits in something that no Flight Recorder shows: a call of torch.distributed that
    leaves no entry, a lock that another rank holds, a device, or a native call that may be such a
    wait. Such a rank waits like one in an op: it does nothing else. Replaces the rank's earlier one
    of the same source."""

    rank: int
    source: WaitSource
    op: str
    """``init_process_group``, ``new_group``, ``recv``, ``monitored_barrier``, `LOCK`, `POLL`,
    `DEVICE`, `IDLE`, `REST`, `CHILD`, `NATIVE`. Empty: as of `as_of_ns` the rank waits in nothing
    that this source would show."""
    since_ns: NodeNs | NodeRawNs
    """Node time: it has waited at least since then."""
    as_of_ns: NodeNs | NodeRawNs
    """Node time at which it was last seen there."""
    peers: tuple[int, ...] = ()
    """The ranks that it waits for; empty if they are not known."""
    detail: str = ""
    """For people: ``train.py:88 in exchange``, ``/ckpt/.lock held by pid 991``."""
    left_ns: NodeNs | NodeRawNs = NodeNs(0)
    """Node time at which the rank was seen out of an earlier wait for another one; 0 never."""


# -- findings --------------------------------------------------------------------------------


class Kind(StrEnum):
    """Kinds of finding; docs/findings.md explains each. The names are stable."""

    STALL = "stall"
    MISMATCH = "mismatch"
    ORDER = "order"
    STRAGGLER = "straggler"
    MEMORY_SPIKE = "memory_spike"
    OOM = "oom"
    RANK_LOST = "rank_lost"
    TELEMETRY_GAP = "telemetry_gap"
    CLOCK_UNSYNCHRONIZED = "clock_unsynchronized"
    STANDSTILL = "standstill"


class Reason(StrEnum):
    """Why a rank is named; docs/findings.md explains each. The names are stable."""

    CPU_STUCK = "cpu_stuck"
    EXITED = "exited"
    UNREACHABLE = "unreachable"
    IN_COLLECTIVE_ALONE = "in_collective_alone"
    DEVICE_STUCK = "device_stuck"
    MISMATCH = "mismatch"
    ORDER = "order"
    NETWORK_OR_DEVICE = "network_or_device"
    LATE = "late"
    MEMORY = "memory"


class Confidence(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Severity(StrEnum):
    """How urgent a finding is; an open finding only ever becomes more urgent."""

    WARNING = "warning"
    CRITICAL = "critical"


class FindingState(StrEnum):
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class CollectiveRef:
    """The collective of a finding, with its waiting and missing ranks."""

    group: str
    """The group's label (description where it has one)."""
    group_id: str
    group_size: int
    seq: int
    op: str
    waiting_ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    waited_s: float


@dataclass(frozen=True, slots=True)
class WorkerStack:
    """Stack of a child process of a rank, for example a DataLoader worker."""

    pid: int
    """In the agent's pid namespace."""
    name: str
    """Of the process, such as ``pt_data_worker``."""
    stack: tuple[str, ...] = ()
    """As in `Activity`; a line on its kernel state if no Python frame could be read."""
    inside: str = ""
    doing: str = ""
    usage: str = ""


@dataclass(frozen=True, slots=True)
class Activity:
    """What the program of a rank is doing, read from the stacks of its processes."""

    stack: tuple[str, ...] = ()
    """The user's own frames of the main thread, such as ``train.py:88 in save``, innermost first.
    """
    inside: str = ""
    """The library frame that the innermost own frame is in, with its package:
    ``torch/serialization.py:1259 in _save``."""
    doing: str = ""
    """A phrase, if the stack shows a known place: ``saving a checkpoint``."""
    usage: str = ""
    """Processor time: ``busy: uses 1.0 cores``."""
    note: str = ""
    """Why there is no stack, and what to do."""
    workers: tuple[WorkerStack, ...] = ()
    """Child processes; idle workers last."""


class WaitKind(StrEnum):
    """What a suspect process waits for; docs/waits-for.md explains each. The names are stable."""

    FILE_READ = "file_read"
    FILE_WRITE = "file_write"
    FILE_SYNC = "file_sync"
    FILE_OPEN = "file_open"
    PAGE_FAULT = "page_fault"
    LOCK_FILE = "lock_file"
    """A lock on a file, by flock or fcntl."""
    LOCK_SHARED = "lock_shared"
    """A lock in memory that several processes share."""
    LOCK_INNER = "lock_inner"
    """A lock inside the process."""
    PIPE_WORKER = "pipe_worker"
    """A pipe or socket pair whose other end a process of the same rank holds."""
    SOCKET = "socket"
    SLEEP = "sleep"
    CHILD = "child"
    ON_CPU = "on_cpu"
    STOPPED = "stopped"
    ZOMBIE = "zombie"
    NOT_ALLOWED = "not_allowed"
    """The agent has no right to read it."""
    UNKNOWN = "unknown"


class Certainty(StrEnum):
    SEEN = "seen"
    """Several samples show the same blocked call and its object."""
    LIKELY = "likely"
    """It follows from what was seen, but another cause is possible."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds what a suspect waits for."""

    pid: int
    """In the agent's pid namespace."""
    rank: int | None = None
    """The rank whose process, or whose child process, this is; None if it is of no rank."""
    process: str = ""


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """What a suspect waits for, at the end of its chain of waits."""

    kind: WaitKind
    certainty: Certainty
    what: str = ""
    """The path, the address, or the lock."""
    mount: str = ""
    """Mount point of the path."""
    fs: str = ""
    """Type and source of the mounted file system: ``nfs4 server:/export``."""
    pid: int = 0
    """Of the process that is blocked: the rank's, or a descendant's. In the agent's namespace."""
    process: str = ""
    thread: str = ""
    since_at: AlignedNs | None = None
    """It has waited at least since then."""
    seen_at: AlignedNs | None = None
    """It was last seen so."""
    holder: Holder | None = None
    text: str = ""
    """One sentence: ``rank 2 waits for data: its loader worker (pid 25037) has been in read() of
    /data/shard-17.tar (nfs4 server:/export on /data) for 41 s; 3 other workers are idle``."""
    topic: str = ""
    """What `text` says after *waits for*: ``data``, ``a lock``."""
    says: str = ""
    """The clause of `text` that the duration follows: ``its loader worker (pid 25037) has been in
    read() of ...``."""
    rest: str = ""
    """The clause of `text` after the duration: ``3 other workers are idle``."""


@dataclass(frozen=True, slots=True)
class SuspectPhase:
    """The phase of its program in which a suspect is, or in which its memory began to rise."""

    path: tuple[str, ...]
    """Names, outermost first."""
    since_at: AlignedNs


@dataclass(frozen=True, slots=True)
class Suspect:
    """A first cause. `stack`, `inside`, `doing` and `workers` are as in `Activity`."""

    rank: int
    node: str
    reason: Reason
    confidence: Confidence
    evidence: str
    stack: tuple[str, ...] = ()
    inside: str = ""
    doing: str = ""
    workers: tuple[WorkerStack, ...] = ()
    onset_at: AlignedNs | None = None
    """When its fault began, if that is known."""
    onset_uncertainty_s: float | None = None
    """Bound on the error of `onset_at`; None if it is unknown, or there is no other onset."""
    tied: bool = False
    """It began at the same time as another suspect, within the uncertainty of their clocks."""
    waits_for: WaitsFor | None = None
    phase: SuspectPhase | None = None
    address: Address | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """What a person wrote about a finding."""

    by: str
    written_at: AlignedNs
    text: str


@dataclass(frozen=True, slots=True)
class Witness:
    """One rank that waits, and the line from which it entered the collective."""

    rank: int
    stack: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim with evidence; immutable: a newer version of it carries the same id.

    Its JSON form (`frd.forms.finding_json`) has the keys in this order. Its times are UTC outside
    of the engine.
    """

    id: str
    kind: Kind
    state: FindingState
    job: str
    attempt: int
    opened_at: AlignedNs
    closed_at: AlignedNs | None = None
    severity: Severity | None = None
    """None if the job was not watched over time, as in a folder of dumps."""
    critical_at: AlignedNs | None = None
    """When it became critical, if it was not so from its opening."""
    collective: CollectiveRef | None = None
    reason: Reason | None = None
    """The reason of the whole finding where there is no suspect to carry it."""
    groups_held_up: tuple[str, ...] = ()
    """Labels of all groups that wait, the finding's own first."""
    suspects: tuple[Suspect, ...] = ()
    victims: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    """Ranks that could be involved but whose telemetry is missing or late."""
    disagreement: str = ""
    """Which ranks did what in a mismatch or an order finding: ``rank 2 called broadcast where
    ...``."""
    witness: Witness | None = None
    second_opinion: tuple[str, ...] = ()
    """What NCCL's RAS service says of the communicators of the finding's group: ``NCCL RAS: rank 3
    has launched 31 AllReduce in communicator ...``. Evidence: it changes no cause."""
    lost_s: float | None = None
    """How long a straggler has kept its peers waiting, in total."""
    dump: str | None = None
    """Id of the dump that the service took when the finding opened."""
    ended_by: str = ""
    """How the job, or the suspect, ended after the finding opened: ``ended by KeyboardInterrupt at
    10:02:11``. It is a consequence and never changes the cause."""
    close_reason: str = ""
    goes_on: bool = False
    """It was closed by hand, and its trouble lasts."""
    headline: str = ""
    """The cause, in at most 100 characters: ``Rank 1 (node7): its loader worker is stuck in
    open(/data/shard-17.tar)``. No number in it changes by itself."""
    effect: str = ""
    """What it holds up: ``holds up 2 ranks in all_reduce #36 of default_pg for 62 s``."""
    summary: str = ""
    """One sentence of both."""
    acknowledged_by: str = ""
    """This and the next are what people said of it; the engine leaves them empty."""
    acknowledged_at: AlignedNs | None = None
    assigned_to: str = ""
    notes: tuple[Note, ...] = ()
    """Oldest first."""
    silenced_until_at: AlignedNs | None = None
    """Messages and alerts rest until then, because of a silence of this finding, its job or the
    nodes of all its suspects."""
    silenced_by: str = ""

    @property
    def lasts(self) -> bool:
        return self.state is FindingState.OPEN or self.goes_on

    def is_silenced(self, now: AlignedNs) -> bool:
        return self.silenced_until_at is not None and now < self.silenced_until_at


class Change(IntEnum):
    OPENED = 1
    UPDATED = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class FindingEvent:
    change: Change
    finding: Finding
