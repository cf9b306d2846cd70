"""Agents of a release keep working with every later service.

`tests/golden/` holds the contract of each release, and of each wire protocol when it came, as a
compiled descriptor (``python -m tests.unit.wire.test_releases VERSION`` freezes the present one).
An older agent is played by messages of that descriptor: what it does not know is lost on the way,
as in life.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from frd.model import (
    AlignedNs,
    ExitInfo,
    ExitKind,
    NodeNs,
    NodeRawNs,
    RankInfo,
    RankState,
    RankStatus,
)
from frd.v1 import stream_pb2 as now
from frd.wire.encode import encode_agent, encode_service
from frd.wire.messages import Hello, Refusal, Request, Statuses, Welcome
from tests.world.messages import BOTH, declare, entry_columns
from tests.world.sessions import NOW, Service

GOLDEN = Path(__file__).parents[2] / "golden"
RELEASES = sorted(GOLDEN.glob("stream-*.binpb"))


def frozen(release: Path) -> Any:
    """The release's file descriptor, in a separate pool."""
    pool = descriptor_pool.DescriptorPool()
    descriptor = descriptor_pb2.FileDescriptorProto.FromString(release.read_bytes())
    pool.Add(descriptor)
    return pool.FindFileByName(descriptor.name)


def fields(messages: Any, prefix: str = "") -> Iterator[tuple[str, FieldDescriptor]]:
    message: Descriptor
    for message in messages.values():
        for field in message.fields:
            yield f"{prefix}{message.name}.{field.name}", field
        yield from fields(message.nested_types_by_name, f"{prefix}{message.name}.")


def shape(field: FieldDescriptor) -> tuple[object, ...]:
    kind = field.message_type or field.enum_type
    return field.number, field.type, field.is_repeated, kind.full_name if kind else ""


@pytest.fixture(params=RELEASES, ids=lambda release: release.stem)
def release(request: pytest.FixtureRequest) -> Any:
    return frozen(request.param)


def test_nothing_of_a_release_has_changed(release: Any) -> None:
    """Fields keep number, type and cardinality, enums their values, calls their types."""
    present = dict(fields(now.DESCRIPTOR.message_types_by_name))
    for name, field in fields(release.message_types_by_name):
        assert name in present, f"{name} is gone: fields are only ever added"
        assert shape(present[name]) == shape(field), name
    for name, enum in release.enum_types_by_name.items():
        values = now.DESCRIPTOR.enum_types_by_name[name].values_by_name
        for value in enum.values:
            assert values[value.name].number == value.number, value.name
    for service in release.services_by_name.values():
        calls = now.DESCRIPTOR.services_by_name[service.name].methods_by_name
        for call in service.methods:
            types = (call.input_type.full_name, call.output_type.full_name)
            mine = calls[call.name]
            assert (mine.input_type.full_name, mine.output_type.full_name) == types


def _hello(release: Any) -> Hello:
    """As the release's agent says it: the first one knew only the node's wall clock."""
    if "sent_raw_ns" in release.message_types_by_name["Hello"].fields_by_name:
        return Hello(2, "0", "n", "boot", "s", NodeNs(NOW), NodeRawNs(NOW))
    return Hello(1, "0", "n", "boot", "s", NodeNs(NOW))


def test_an_agent_of_a_release_is_understood(release: Any) -> None:
    """Its declarations, rows and statuses are applied and acknowledged by the present service."""
    old = message_factory.GetMessageClass(release.message_types_by_name["AgentMessage"])
    service = Service()
    session = service.session()
    how = ExitInfo(ExitKind.SIGNAL, 9)
    for event in (
        _hello(release),
        declare([RankInfo(0, 1, "n", "boot", 7)]),
        Statuses((RankStatus(0, RankState.EXITED, NodeNs(NOW), "killed", exit=how),)),
        Statuses((RankStatus(0, RankState.LIVE, NodeNs(NOW)),)),
        entry_columns(range(3), revision=1, flags=BOTH, created=NOW),
    ):
        said = old.FromString(encode_agent(event))
        said.DiscardUnknownFields()
        session.receive(said.SerializeToString(), AlignedNs(NOW))
    assert service.shared.entries == 3
    service.shared.flush()
    assert session.take_acks() == {0: 3}
    assert [rank.status.state for rank in service.view().ranks] == [RankState.LIVE]


def test_an_agent_of_a_release_understands(release: Any) -> None:
    """What the present service says can be read by the release's agent."""
    old = message_factory.GetMessageClass(release.message_types_by_name["ServiceMessage"])
    for event, kind in (
        (Welcome(1, "9", "instance", 1), "welcome"),
        (Request(1, (0,), True, True, 5.0), "request"),
        (Refusal("token", "no"), "refusal"),
    ):
        assert old.FromString(encode_service(event)).WhichOneof("kind") == kind


def test_there_is_a_release() -> None:
    """Without one, nothing above would have been tested."""
    assert RELEASES


if __name__ == "__main__":
    (GOLDEN / f"stream-{sys.argv[1]}.binpb").write_bytes(now.DESCRIPTOR.serialized_pb)
