from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SeriesKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SERIES_KIND_UNSPECIFIED: _ClassVar[SeriesKind]
    SERIES_KIND_DEVICE_USED: _ClassVar[SeriesKind]
    SERIES_KIND_PROCESS_USED: _ClassVar[SeriesKind]
    SERIES_KIND_TORCH_RESERVED: _ClassVar[SeriesKind]
    SERIES_KIND_TORCH_ALLOCATED: _ClassVar[SeriesKind]
    SERIES_KIND_HOST_USED: _ClassVar[SeriesKind]
    SERIES_KIND_CGROUP_USED: _ClassVar[SeriesKind]

class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATE_UNSPECIFIED: _ClassVar[State]
    STATE_LIVE: _ClassVar[State]
    STATE_SILENT: _ClassVar[State]
    STATE_EXITED: _ClassVar[State]
    STATE_FINISHED: _ClassVar[State]

class ExitKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXIT_KIND_UNSPECIFIED: _ClassVar[ExitKind]
    EXIT_KIND_CLEAN: _ClassVar[ExitKind]
    EXIT_KIND_EXCEPTION: _ClassVar[ExitKind]
    EXIT_KIND_INTERRUPT: _ClassVar[ExitKind]
    EXIT_KIND_STATUS: _ClassVar[ExitKind]
    EXIT_KIND_SIGNAL: _ClassVar[ExitKind]

class Part(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PART_UNSPECIFIED: _ClassVar[Part]
    PART_DUMP: _ClassVar[Part]
    PART_IDENTITY: _ClassVar[Part]
    PART_STACK: _ClassVar[Part]
    PART_WAITS: _ClassVar[Part]
    PART_RAS: _ClassVar[Part]

class MemoryEventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMORY_EVENT_KIND_UNSPECIFIED: _ClassVar[MemoryEventKind]
    MEMORY_EVENT_KIND_OOM: _ClassVar[MemoryEventKind]
    MEMORY_EVENT_KIND_OOM_KILL: _ClassVar[MemoryEventKind]
    MEMORY_EVENT_KIND_DEVICE_LOST: _ClassVar[MemoryEventKind]
SERIES_KIND_UNSPECIFIED: SeriesKind
SERIES_KIND_DEVICE_USED: SeriesKind
SERIES_KIND_PROCESS_USED: SeriesKind
SERIES_KIND_TORCH_RESERVED: SeriesKind
SERIES_KIND_TORCH_ALLOCATED: SeriesKind
SERIES_KIND_HOST_USED: SeriesKind
SERIES_KIND_CGROUP_USED: SeriesKind
STATE_UNSPECIFIED: State
STATE_LIVE: State
STATE_SILENT: State
STATE_EXITED: State
STATE_FINISHED: State
EXIT_KIND_UNSPECIFIED: ExitKind
EXIT_KIND_CLEAN: ExitKind
EXIT_KIND_EXCEPTION: ExitKind
EXIT_KIND_INTERRUPT: ExitKind
EXIT_KIND_STATUS: ExitKind
EXIT_KIND_SIGNAL: ExitKind
PART_UNSPECIFIED: Part
PART_DUMP: Part
PART_IDENTITY: Part
PART_STACK: Part
PART_WAITS: Part
PART_RAS: Part
MEMORY_EVENT_KIND_UNSPECIFIED: MemoryEventKind
MEMORY_EVENT_KIND_OOM: MemoryEventKind
MEMORY_EVENT_KIND_OOM_KILL: MemoryEventKind
MEMORY_EVENT_KIND_DEVICE_LOST: MemoryEventKind

class AgentMessage(_message.Message):
    __slots__ = ("hello", "declare", "entries", "watermarks", "channels", "statuses", "response", "goodbye", "memory", "memory_events", "bundle")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    DECLARE_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    WATERMARKS_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_EVENTS_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    declare: Declare
    entries: EntryBatch
    watermarks: WatermarkBatch
    channels: ChannelBatch
    statuses: StatusBatch
    response: ResponsePart
    goodbye: Goodbye
    memory: MemoryBatch
    memory_events: MemoryEventBatch
    bundle: Bundle
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., declare: _Optional[_Union[Declare, _Mapping]] = ..., entries: _Optional[_Union[EntryBatch, _Mapping]] = ..., watermarks: _Optional[_Union[WatermarkBatch, _Mapping]] = ..., channels: _Optional[_Union[ChannelBatch, _Mapping]] = ..., statuses: _Optional[_Union[StatusBatch, _Mapping]] = ..., response: _Optional[_Union[ResponsePart, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., memory: _Optional[_Union[MemoryBatch, _Mapping]] = ..., memory_events: _Optional[_Union[MemoryEventBatch, _Mapping]] = ..., bundle: _Optional[_Union[Bundle, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "agent_version", "node", "boot_id", "session", "sent_at_ns", "sent_raw_ns", "metrics", "paced")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_NS_FIELD_NUMBER: _ClassVar[int]
    SENT_RAW_NS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    PACED_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    agent_version: str
    node: str
    boot_id: str
    session: str
    sent_at_ns: int
    sent_raw_ns: int
    metrics: str
    paced: bool
    def __init__(self, protocol: _Optional[int] = ..., agent_version: _Optional[str] = ..., node: _Optional[str] = ..., boot_id: _Optional[str] = ..., session: _Optional[str] = ..., sent_at_ns: _Optional[int] = ..., sent_raw_ns: _Optional[int] = ..., metrics: _Optional[str] = ..., paced: bool = ...) -> None: ...

class Declare(_message.Message):
    __slots__ = ("attempts", "ranks", "groups", "signatures", "series")
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    attempts: _containers.RepeatedCompositeFieldContainer[Attempt]
    ranks: _containers.RepeatedCompositeFieldContainer[Rank]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    signatures: _containers.RepeatedCompositeFieldContainer[Signature]
    series: _containers.RepeatedCompositeFieldContainer[Series]
    def __init__(self, attempts: _Optional[_Iterable[_Union[Attempt, _Mapping]]] = ..., ranks: _Optional[_Iterable[_Union[Rank, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ..., signatures: _Optional[_Iterable[_Union[Signature, _Mapping]]] = ..., series: _Optional[_Iterable[_Union[Series, _Mapping]]] = ...) -> None: ...

class Attempt(_message.Message):
    __slots__ = ("index", "job", "attempt", "world_size", "run")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    index: int
    job: str
    attempt: int
    world_size: int
    run: str
    def __init__(self, index: _Optional[int] = ..., job: _Optional[str] = ..., attempt: _Optional[int] = ..., world_size: _Optional[int] = ..., run: _Optional[str] = ...) -> None: ...

class Rank(_message.Message):
    __slots__ = ("index", "attempt_index", "rank", "local_rank", "pid", "node", "boot_id", "torch_version", "backends", "devices", "world_size", "address")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_INDEX_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    TORCH_VERSION_FIELD_NUMBER: _ClassVar[int]
    BACKENDS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    index: int
    attempt_index: int
    rank: int
    local_rank: int
    pid: int
    node: str
    boot_id: str
    torch_version: str
    backends: _containers.RepeatedScalarFieldContainer[str]
    devices: _containers.RepeatedScalarFieldContainer[str]
    world_size: int
    address: Address
    def __init__(self, index: _Optional[int] = ..., attempt_index: _Optional[int] = ..., rank: _Optional[int] = ..., local_rank: _Optional[int] = ..., pid: _Optional[int] = ..., node: _Optional[str] = ..., boot_id: _Optional[str] = ..., torch_version: _Optional[str] = ..., backends: _Optional[_Iterable[str]] = ..., devices: _Optional[_Iterable[str]] = ..., world_size: _Optional[int] = ..., address: _Optional[_Union[Address, _Mapping]] = ...) -> None: ...

class Address(_message.Message):
    __slots__ = ("pid", "command", "user", "container", "slurm_job", "slurm_step", "namespace", "pod", "log")
    PID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    SLURM_JOB_FIELD_NUMBER: _ClassVar[int]
    SLURM_STEP_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    pid: int
    command: str
    user: str
    container: str
    slurm_job: str
    slurm_step: str
    namespace: str
    pod: str
    log: str
    def __init__(self, pid: _Optional[int] = ..., command: _Optional[str] = ..., user: _Optional[str] = ..., container: _Optional[str] = ..., slurm_job: _Optional[str] = ..., slurm_step: _Optional[str] = ..., namespace: _Optional[str] = ..., pod: _Optional[str] = ..., log: _Optional[str] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("index", "attempt_index", "name", "desc", "ranks")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESC_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    index: int
    attempt_index: int
    name: str
    desc: str
    ranks: bytes
    def __init__(self, index: _Optional[int] = ..., attempt_index: _Optional[int] = ..., name: _Optional[str] = ..., desc: _Optional[str] = ..., ranks: _Optional[bytes] = ...) -> None: ...

class Signature(_message.Message):
    __slots__ = ("index", "backend", "op", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    INPUT_SIZES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SIZES_FIELD_NUMBER: _ClassVar[int]
    INPUT_DTYPES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_DTYPES_FIELD_NUMBER: _ClassVar[int]
    index: int
    backend: str
    op: str
    input_sizes: _containers.RepeatedCompositeFieldContainer[Shape]
    output_sizes: _containers.RepeatedCompositeFieldContainer[Shape]
    input_dtypes: _containers.RepeatedScalarFieldContainer[str]
    output_dtypes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, index: _Optional[int] = ..., backend: _Optional[str] = ..., op: _Optional[str] = ..., input_sizes: _Optional[_Iterable[_Union[Shape, _Mapping]]] = ..., output_sizes: _Optional[_Iterable[_Union[Shape, _Mapping]]] = ..., input_dtypes: _Optional[_Iterable[str]] = ..., output_dtypes: _Optional[_Iterable[str]] = ...) -> None: ...

class Shape(_message.Message):
    __slots__ = ("dims",)
    DIMS_FIELD_NUMBER: _ClassVar[int]
    dims: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dims: _Optional[_Iterable[int]] = ...) -> None: ...

class Series(_message.Message):
    __slots__ = ("index", "rank_index", "kind", "device")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    RANK_INDEX_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    index: int
    rank_index: int
    kind: SeriesKind
    device: str
    def __init__(self, index: _Optional[int] = ..., rank_index: _Optional[int] = ..., kind: _Optional[_Union[SeriesKind, str]] = ..., device: _Optional[str] = ...) -> None: ...

class EntryBatch(_message.Message):
    __slots__ = ("rank_index", "first_revision", "group", "seq", "signature", "flags", "created_ns", "started_ns", "completed_ns")
    RANK_INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_REVISION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    CREATED_NS_FIELD_NUMBER: _ClassVar[int]
    STARTED_NS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_NS_FIELD_NUMBER: _ClassVar[int]
    rank_index: int
    first_revision: int
    group: bytes
    seq: bytes
    signature: bytes
    flags: bytes
    created_ns: bytes
    started_ns: bytes
    completed_ns: bytes
    def __init__(self, rank_index: _Optional[int] = ..., first_revision: _Optional[int] = ..., group: _Optional[bytes] = ..., seq: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., flags: _Optional[bytes] = ..., created_ns: _Optional[bytes] = ..., started_ns: _Optional[bytes] = ..., completed_ns: _Optional[bytes] = ...) -> None: ...

class WatermarkBatch(_message.Message):
    __slots__ = ("attempt_index", "rank", "group", "enqueued", "started", "completed", "head_created_ns", "seen_rank", "as_of_ns", "sent_at_ns", "sent_raw_ns", "sent_slack_ns")
    ATTEMPT_INDEX_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    HEAD_CREATED_NS_FIELD_NUMBER: _ClassVar[int]
    SEEN_RANK_FIELD_NUMBER: _ClassVar[int]
    AS_OF_NS_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_NS_FIELD_NUMBER: _ClassVar[int]
    SENT_RAW_NS_FIELD_NUMBER: _ClassVar[int]
    SENT_SLACK_NS_FIELD_NUMBER: _ClassVar[int]
    attempt_index: int
    rank: bytes
    group: bytes
    enqueued: bytes
    started: bytes
    completed: bytes
    head_created_ns: bytes
    seen_rank: bytes
    as_of_ns: bytes
    sent_at_ns: int
    sent_raw_ns: int
    sent_slack_ns: int
    def __init__(self, attempt_index: _Optional[int] = ..., rank: _Optional[bytes] = ..., group: _Optional[bytes] = ..., enqueued: _Optional[bytes] = ..., started: _Optional[bytes] = ..., completed: _Optional[bytes] = ..., head_created_ns: _Optional[bytes] = ..., seen_rank: _Optional[bytes] = ..., as_of_ns: _Optional[bytes] = ..., sent_at_ns: _Optional[int] = ..., sent_raw_ns: _Optional[int] = ..., sent_slack_ns: _Optional[int] = ...) -> None: ...

class ChannelBatch(_message.Message):
    __slots__ = ("rank_index", "group", "peer", "is_send", "in_flight", "head_created_ns", "as_of_ns", "signature", "batch", "posted")
    RANK_INDEX_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    IS_SEND_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    HEAD_CREATED_NS_FIELD_NUMBER: _ClassVar[int]
    AS_OF_NS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    POSTED_FIELD_NUMBER: _ClassVar[int]
    rank_index: int
    group: bytes
    peer: bytes
    is_send: bytes
    in_flight: bytes
    head_created_ns: bytes
    as_of_ns: int
    signature: bytes
    batch: bytes
    posted: bytes
    def __init__(self, rank_index: _Optional[int] = ..., group: _Optional[bytes] = ..., peer: _Optional[bytes] = ..., is_send: _Optional[bytes] = ..., in_flight: _Optional[bytes] = ..., head_created_ns: _Optional[bytes] = ..., as_of_ns: _Optional[int] = ..., signature: _Optional[bytes] = ..., batch: _Optional[bytes] = ..., posted: _Optional[bytes] = ...) -> None: ...

class StatusBatch(_message.Message):
    __slots__ = ("statuses", "phases", "unreadable", "leaving")
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedCompositeFieldContainer[Status]
    phases: _containers.RepeatedCompositeFieldContainer[RankPhases]
    unreadable: Unreadable
    leaving: Leaving
    def __init__(self, statuses: _Optional[_Iterable[_Union[Status, _Mapping]]] = ..., phases: _Optional[_Iterable[_Union[RankPhases, _Mapping]]] = ..., unreadable: _Optional[_Union[Unreadable, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ("live_ranks",)
    LIVE_RANKS_FIELD_NUMBER: _ClassVar[int]
    live_ranks: int
    def __init__(self, live_ranks: _Optional[int] = ...) -> None: ...

class Unreadable(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...

class RankPhases(_message.Message):
    __slots__ = ("rank_index", "spans")
    RANK_INDEX_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    rank_index: int
    spans: _containers.RepeatedCompositeFieldContainer[PhaseSpan]
    def __init__(self, rank_index: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[PhaseSpan, _Mapping]]] = ...) -> None: ...

class PhaseSpan(_message.Message):
    __slots__ = ("path", "since_ns", "until_ns")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SINCE_NS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_NS_FIELD_NUMBER: _ClassVar[int]
    path: _containers.RepeatedScalarFieldContainer[str]
    since_ns: int
    until_ns: int
    def __init__(self, path: _Optional[_Iterable[str]] = ..., since_ns: _Optional[int] = ..., until_ns: _Optional[int] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("rank_index", "state", "at_ns", "detail", "gap_entries", "exit", "as_of_ns", "stage", "unread")
    RANK_INDEX_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    GAP_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    AS_OF_NS_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    rank_index: int
    state: State
    at_ns: int
    detail: str
    gap_entries: int
    exit: Exit
    as_of_ns: int
    stage: Stage
    unread: str
    def __init__(self, rank_index: _Optional[int] = ..., state: _Optional[_Union[State, str]] = ..., at_ns: _Optional[int] = ..., detail: _Optional[str] = ..., gap_entries: _Optional[int] = ..., exit: _Optional[_Union[Exit, _Mapping]] = ..., as_of_ns: _Optional[int] = ..., stage: _Optional[_Union[Stage, _Mapping]] = ..., unread: _Optional[str] = ...) -> None: ...

class Stage(_message.Message):
    __slots__ = ("op", "since_ns", "as_of_ns", "where", "rests")
    OP_FIELD_NUMBER: _ClassVar[int]
    SINCE_NS_FIELD_NUMBER: _ClassVar[int]
    AS_OF_NS_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    RESTS_FIELD_NUMBER: _ClassVar[int]
    op: str
    since_ns: int
    as_of_ns: int
    where: str
    rests: bool
    def __init__(self, op: _Optional[str] = ..., since_ns: _Optional[int] = ..., as_of_ns: _Optional[int] = ..., where: _Optional[str] = ..., rests: bool = ...) -> None: ...

class Exit(_message.Message):
    __slots__ = ("kind", "signal", "status", "exception", "where", "note")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EXCEPTION_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    kind: ExitKind
    signal: int
    status: int
    exception: str
    where: str
    note: str
    def __init__(self, kind: _Optional[_Union[ExitKind, str]] = ..., signal: _Optional[int] = ..., status: _Optional[int] = ..., exception: _Optional[str] = ..., where: _Optional[str] = ..., note: _Optional[str] = ...) -> None: ...

class ResponsePart(_message.Message):
    __slots__ = ("request_id", "rank_index", "part", "data", "last", "source", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_INDEX_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    rank_index: int
    part: Part
    data: bytes
    last: bool
    source: str
    error: str
    def __init__(self, request_id: _Optional[int] = ..., rank_index: _Optional[int] = ..., part: _Optional[_Union[Part, str]] = ..., data: _Optional[bytes] = ..., last: bool = ..., source: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class MemoryBatch(_message.Message):
    __slots__ = ("series", "capacity", "begin_ns", "end_ns", "values")
    SERIES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    BEGIN_NS_FIELD_NUMBER: _ClassVar[int]
    END_NS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    series: bytes
    capacity: bytes
    begin_ns: bytes
    end_ns: bytes
    values: bytes
    def __init__(self, series: _Optional[bytes] = ..., capacity: _Optional[bytes] = ..., begin_ns: _Optional[bytes] = ..., end_ns: _Optional[bytes] = ..., values: _Optional[bytes] = ...) -> None: ...

class MemoryEventBatch(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[MemoryEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[MemoryEvent, _Mapping]]] = ...) -> None: ...

class MemoryEvent(_message.Message):
    __slots__ = ("rank_index", "kind", "at_ns", "device", "requested_bytes", "detail")
    RANK_INDEX_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    rank_index: int
    kind: MemoryEventKind
    at_ns: int
    device: str
    requested_bytes: int
    detail: str
    def __init__(self, rank_index: _Optional[int] = ..., kind: _Optional[_Union[MemoryEventKind, str]] = ..., at_ns: _Optional[int] = ..., device: _Optional[str] = ..., requested_bytes: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class Bundle(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, messages: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ServiceMessage(_message.Message):
    __slots__ = ("welcome", "ack", "resync", "request", "refusal", "redirect", "pace")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    RESYNC_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    REDIRECT_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    ack: Ack
    resync: Resync
    request: Request
    refusal: Refusal
    redirect: Redirect
    pace: Pace
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., resync: _Optional[_Union[Resync, _Mapping]] = ..., request: _Optional[_Union[Request, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., redirect: _Optional[_Union[Redirect, _Mapping]] = ..., pace: _Optional[_Union[Pace, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "service_version", "instance", "max_message_bytes", "next")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SERVICE_VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    service_version: str
    instance: str
    max_message_bytes: int
    next: str
    def __init__(self, protocol: _Optional[int] = ..., service_version: _Optional[str] = ..., instance: _Optional[str] = ..., max_message_bytes: _Optional[int] = ..., next: _Optional[str] = ...) -> None: ...

class Redirect(_message.Message):
    __slots__ = ("address", "reason")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    address: str
    reason: str
    def __init__(self, address: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Pace(_message.Message):
    __slots__ = ("round_ms",)
    ROUND_MS_FIELD_NUMBER: _ClassVar[int]
    round_ms: int
    def __init__(self, round_ms: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("rank", "revision")
    RANK_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    rank: bytes
    revision: bytes
    def __init__(self, rank: _Optional[bytes] = ..., revision: _Optional[bytes] = ...) -> None: ...

class Resync(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("request_id", "rank_indexes", "dump", "stacks", "timeout_s", "children_of", "waits", "ras")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_INDEXES_FIELD_NUMBER: _ClassVar[int]
    DUMP_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_OF_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    RAS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    rank_indexes: _containers.RepeatedScalarFieldContainer[int]
    dump: bool
    stacks: bool
    timeout_s: float
    children_of: _containers.RepeatedScalarFieldContainer[int]
    waits: bool
    ras: bool
    def __init__(self, request_id: _Optional[int] = ..., rank_indexes: _Optional[_Iterable[int]] = ..., dump: bool = ..., stacks: bool = ..., timeout_s: _Optional[float] = ..., children_of: _Optional[_Iterable[int]] = ..., waits: bool = ..., ras: bool = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ClockPing(_message.Message):
    __slots__ = ("number", "boot_id", "session", "sent_raw_ns", "raw_ns", "real_ns", "slack_ns", "pong_number", "pong_received_raw_ns")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SENT_RAW_NS_FIELD_NUMBER: _ClassVar[int]
    RAW_NS_FIELD_NUMBER: _ClassVar[int]
    REAL_NS_FIELD_NUMBER: _ClassVar[int]
    SLACK_NS_FIELD_NUMBER: _ClassVar[int]
    PONG_NUMBER_FIELD_NUMBER: _ClassVar[int]
    PONG_RECEIVED_RAW_NS_FIELD_NUMBER: _ClassVar[int]
    number: int
    boot_id: str
    session: str
    sent_raw_ns: int
    raw_ns: bytes
    real_ns: bytes
    slack_ns: bytes
    pong_number: int
    pong_received_raw_ns: int
    def __init__(self, number: _Optional[int] = ..., boot_id: _Optional[str] = ..., session: _Optional[str] = ..., sent_raw_ns: _Optional[int] = ..., raw_ns: _Optional[bytes] = ..., real_ns: _Optional[bytes] = ..., slack_ns: _Optional[bytes] = ..., pong_number: _Optional[int] = ..., pong_received_raw_ns: _Optional[int] = ...) -> None: ...

class ClockPong(_message.Message):
    __slots__ = ("number", "pause_ms")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PAUSE_MS_FIELD_NUMBER: _ClassVar[int]
    number: int
    pause_ms: int
    def __init__(self, number: _Optional[int] = ..., pause_ms: _Optional[int] = ...) -> None: ...
