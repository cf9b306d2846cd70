"""The wire contract: messages of `proto/frd/v1` to frozen values and back, checked.

Pure: bytes in, values out. With `frd.rpc` the only code that knows the generated messages.
"""

from frd.wire.decode import Decoder, decode_service
from frd.wire.encode import encode_agent, encode_service
from frd.wire.messages import (
    MAX_MESSAGE_BYTES,
    PART_BYTES,
    PROTOCOL,
    REASONS,
    Ack,
    AgentEvent,
    AttemptDecl,
    Declare,
    Goodbye,
    GroupDecl,
    Hello,
    MemoryEvents,
    Part,
    RankDecl,
    Refusal,
    Request,
    ResponsePart,
    Resync,
    SeriesDecl,
    ServiceEvent,
    SignatureDecl,
    Statuses,
    Watermarks,
    Welcome,
)

__all__ = [
    "MAX_MESSAGE_BYTES",
    "PART_BYTES",
    "PROTOCOL",
    "REASONS",
    "Ack",
    "AgentEvent",
    "AttemptDecl",
    "Declare",
    "Decoder",
    "Goodbye",
    "GroupDecl",
    "Hello",
    "MemoryEvents",
    "Part",
    "RankDecl",
    "Refusal",
    "Request",
    "ResponsePart",
    "Resync",
    "SeriesDecl",
    "ServiceEvent",
    "SignatureDecl",
    "Statuses",
    "Watermarks",
    "Welcome",
    "decode_service",
    "encode_agent",
    "encode_service",
]
