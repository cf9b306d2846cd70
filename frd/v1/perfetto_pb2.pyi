from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BuiltinClock(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BUILTIN_CLOCK_UNKNOWN: _ClassVar[BuiltinClock]
    BUILTIN_CLOCK_REALTIME: _ClassVar[BuiltinClock]
    BUILTIN_CLOCK_BOOTTIME: _ClassVar[BuiltinClock]
BUILTIN_CLOCK_UNKNOWN: BuiltinClock
BUILTIN_CLOCK_REALTIME: BuiltinClock
BUILTIN_CLOCK_BOOTTIME: BuiltinClock

class Trace(_message.Message):
    __slots__ = ("packet",)
    PACKET_FIELD_NUMBER: _ClassVar[int]
    packet: _containers.RepeatedCompositeFieldContainer[TracePacket]
    def __init__(self, packet: _Optional[_Iterable[_Union[TracePacket, _Mapping]]] = ...) -> None: ...

class TracePacket(_message.Message):
    __slots__ = ("clock_snapshot", "timestamp", "trusted_packet_sequence_id", "track_event", "interned_data", "sequence_flags", "track_descriptor")
    class SequenceFlags(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SEQ_UNSPECIFIED: _ClassVar[TracePacket.SequenceFlags]
        SEQ_INCREMENTAL_STATE_CLEARED: _ClassVar[TracePacket.SequenceFlags]
        SEQ_NEEDS_INCREMENTAL_STATE: _ClassVar[TracePacket.SequenceFlags]
    SEQ_UNSPECIFIED: TracePacket.SequenceFlags
    SEQ_INCREMENTAL_STATE_CLEARED: TracePacket.SequenceFlags
    SEQ_NEEDS_INCREMENTAL_STATE: TracePacket.SequenceFlags
    CLOCK_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    TRUSTED_PACKET_SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    TRACK_EVENT_FIELD_NUMBER: _ClassVar[int]
    INTERNED_DATA_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FLAGS_FIELD_NUMBER: _ClassVar[int]
    TRACK_DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    clock_snapshot: ClockSnapshot
    timestamp: int
    trusted_packet_sequence_id: int
    track_event: TrackEvent
    interned_data: InternedData
    sequence_flags: int
    track_descriptor: TrackDescriptor
    def __init__(self, clock_snapshot: _Optional[_Union[ClockSnapshot, _Mapping]] = ..., timestamp: _Optional[int] = ..., trusted_packet_sequence_id: _Optional[int] = ..., track_event: _Optional[_Union[TrackEvent, _Mapping]] = ..., interned_data: _Optional[_Union[InternedData, _Mapping]] = ..., sequence_flags: _Optional[int] = ..., track_descriptor: _Optional[_Union[TrackDescriptor, _Mapping]] = ...) -> None: ...

class ClockSnapshot(_message.Message):
    __slots__ = ("clocks",)
    class Clock(_message.Message):
        __slots__ = ("clock_id", "timestamp")
        CLOCK_ID_FIELD_NUMBER: _ClassVar[int]
        TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
        clock_id: int
        timestamp: int
        def __init__(self, clock_id: _Optional[int] = ..., timestamp: _Optional[int] = ...) -> None: ...
    CLOCKS_FIELD_NUMBER: _ClassVar[int]
    clocks: _containers.RepeatedCompositeFieldContainer[ClockSnapshot.Clock]
    def __init__(self, clocks: _Optional[_Iterable[_Union[ClockSnapshot.Clock, _Mapping]]] = ...) -> None: ...

class TrackEvent(_message.Message):
    __slots__ = ("category_iids", "debug_annotations", "type", "name_iid", "track_uuid", "counter_value", "flow_ids")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        TYPE_UNSPECIFIED: _ClassVar[TrackEvent.Type]
        TYPE_SLICE_BEGIN: _ClassVar[TrackEvent.Type]
        TYPE_SLICE_END: _ClassVar[TrackEvent.Type]
        TYPE_INSTANT: _ClassVar[TrackEvent.Type]
        TYPE_COUNTER: _ClassVar[TrackEvent.Type]
    TYPE_UNSPECIFIED: TrackEvent.Type
    TYPE_SLICE_BEGIN: TrackEvent.Type
    TYPE_SLICE_END: TrackEvent.Type
    TYPE_INSTANT: TrackEvent.Type
    TYPE_COUNTER: TrackEvent.Type
    CATEGORY_IIDS_FIELD_NUMBER: _ClassVar[int]
    DEBUG_ANNOTATIONS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_IID_FIELD_NUMBER: _ClassVar[int]
    TRACK_UUID_FIELD_NUMBER: _ClassVar[int]
    COUNTER_VALUE_FIELD_NUMBER: _ClassVar[int]
    FLOW_IDS_FIELD_NUMBER: _ClassVar[int]
    category_iids: _containers.RepeatedScalarFieldContainer[int]
    debug_annotations: _containers.RepeatedCompositeFieldContainer[DebugAnnotation]
    type: TrackEvent.Type
    name_iid: int
    track_uuid: int
    counter_value: int
    flow_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, category_iids: _Optional[_Iterable[int]] = ..., debug_annotations: _Optional[_Iterable[_Union[DebugAnnotation, _Mapping]]] = ..., type: _Optional[_Union[TrackEvent.Type, str]] = ..., name_iid: _Optional[int] = ..., track_uuid: _Optional[int] = ..., counter_value: _Optional[int] = ..., flow_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DebugAnnotation(_message.Message):
    __slots__ = ("name_iid", "int_value", "string_value_iid")
    NAME_IID_FIELD_NUMBER: _ClassVar[int]
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    STRING_VALUE_IID_FIELD_NUMBER: _ClassVar[int]
    name_iid: int
    int_value: int
    string_value_iid: int
    def __init__(self, name_iid: _Optional[int] = ..., int_value: _Optional[int] = ..., string_value_iid: _Optional[int] = ...) -> None: ...

class InternedData(_message.Message):
    __slots__ = ("event_categories", "event_names", "debug_annotation_names", "debug_annotation_string_values")
    EVENT_CATEGORIES_FIELD_NUMBER: _ClassVar[int]
    EVENT_NAMES_FIELD_NUMBER: _ClassVar[int]
    DEBUG_ANNOTATION_NAMES_FIELD_NUMBER: _ClassVar[int]
    DEBUG_ANNOTATION_STRING_VALUES_FIELD_NUMBER: _ClassVar[int]
    event_categories: _containers.RepeatedCompositeFieldContainer[InternedName]
    event_names: _containers.RepeatedCompositeFieldContainer[InternedName]
    debug_annotation_names: _containers.RepeatedCompositeFieldContainer[InternedName]
    debug_annotation_string_values: _containers.RepeatedCompositeFieldContainer[InternedName]
    def __init__(self, event_categories: _Optional[_Iterable[_Union[InternedName, _Mapping]]] = ..., event_names: _Optional[_Iterable[_Union[InternedName, _Mapping]]] = ..., debug_annotation_names: _Optional[_Iterable[_Union[InternedName, _Mapping]]] = ..., debug_annotation_string_values: _Optional[_Iterable[_Union[InternedName, _Mapping]]] = ...) -> None: ...

class InternedName(_message.Message):
    __slots__ = ("iid", "name")
    IID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    iid: int
    name: bytes
    def __init__(self, iid: _Optional[int] = ..., name: _Optional[bytes] = ...) -> None: ...

class CounterDescriptor(_message.Message):
    __slots__ = ("unit", "y_axis_share_key")
    class Unit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNIT_UNSPECIFIED: _ClassVar[CounterDescriptor.Unit]
        UNIT_SIZE_BYTES: _ClassVar[CounterDescriptor.Unit]
    UNIT_UNSPECIFIED: CounterDescriptor.Unit
    UNIT_SIZE_BYTES: CounterDescriptor.Unit
    UNIT_FIELD_NUMBER: _ClassVar[int]
    Y_AXIS_SHARE_KEY_FIELD_NUMBER: _ClassVar[int]
    unit: CounterDescriptor.Unit
    y_axis_share_key: str
    def __init__(self, unit: _Optional[_Union[CounterDescriptor.Unit, str]] = ..., y_axis_share_key: _Optional[str] = ...) -> None: ...

class TrackDescriptor(_message.Message):
    __slots__ = ("uuid", "name", "parent_uuid", "counter", "child_ordering", "sibling_order_rank")
    class ChildTracksOrdering(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[TrackDescriptor.ChildTracksOrdering]
        EXPLICIT: _ClassVar[TrackDescriptor.ChildTracksOrdering]
    UNKNOWN: TrackDescriptor.ChildTracksOrdering
    EXPLICIT: TrackDescriptor.ChildTracksOrdering
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARENT_UUID_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    CHILD_ORDERING_FIELD_NUMBER: _ClassVar[int]
    SIBLING_ORDER_RANK_FIELD_NUMBER: _ClassVar[int]
    uuid: int
    name: str
    parent_uuid: int
    counter: CounterDescriptor
    child_ordering: TrackDescriptor.ChildTracksOrdering
    sibling_order_rank: int
    def __init__(self, uuid: _Optional[int] = ..., name: _Optional[str] = ..., parent_uuid: _Optional[int] = ..., counter: _Optional[_Union[CounterDescriptor, _Mapping]] = ..., child_ordering: _Optional[_Union[TrackDescriptor.ChildTracksOrdering, str]] = ..., sibling_order_rank: _Optional[int] = ...) -> None: ...
