"""Rounds of sampling, and what the allocator's publications become of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import patch

import pytest

from frd.model import MemoryColumns, MemoryEventKind, NodeRawNs, SeriesInfo, SeriesKind
from frd_agent import tap
from frd_agent.counters import Counters
from frd_agent.memory import allocator, watch
from frd_agent.memory.allocator import Allocators
from frd_agent.memory.gpu.gpus import Gpus
from frd_agent.memory.gpu.nvml import DeviceReading, Devices, Look
from frd_agent.memory.host.node_memory import NodeMemory
from frd_agent.memory.host.processes import ProcessMemory, total_bytes
from frd_agent.memory.samples import Samples
from frd_agent.memory.target import NO_SAMPLE, Target
from frd_agent.memory.watch import Sampler
from frd_agent.node_time import NodeTime, raw_now

GIB = 1 << 30
S = 1_000_000_000
NOW = 1_790_000_000 * S
UUID = bytes(range(16))
GPU = tap.spelled(UUID)


class Rank:
    """The counters file of a rank, as its tap writes it."""

    def __init__(self, folder: Path, number: int = 0) -> None:
        self.files = tap.Files(str(folder), f"{number:012x}")
        self.target = Target(
            number, 0, os.getpid(), os.getpid(), (GPU,), folder / f"{number:012x}.shm", moving=True
        )

    def publish(
        self, begin_ns: int, reserved: int, errors: list[tap.Error] | None = None, count: int = 0
    ) -> None:
        device = (UUID, 80 * GIB, reserved // 2, reserved, reserved, count)
        self.files.write_memory(begin_ns, begin_ns + 5, 1, [device], errors or [])


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


@pytest.fixture
def ranks() -> Iterator[Allocators]:
    found = Allocators(NodeRawNs)
    yield found
    found.close()


def test_a_publication_arrives_as_written(rank: Rank) -> None:
    """Devices and errors; whatever tears or is foreign is nothing."""
    error = (7, NOW, UUID, 3 * GIB, GIB)
    rank.publish(NOW, GIB, [error], count=2)
    raw = rank.target.shm_path.read_bytes()[tap.MEMORY_AT :]
    found = allocator.parse(raw)
    assert found is not None
    assert (found.begin_ns, found.end_ns) == (NOW, NOW + 5)
    assert found.devices == [(UUID, 80 * GIB, GIB // 2, GIB, GIB, 2)]
    assert found.errors == [error]
    end = tap.PREFIX.size + tap.MEMORY_BODY.size + tap.DEVICE.size + tap.ERROR.size
    refuses_what_is_torn(allocator.parse, raw, end)
    assert allocator.parse(bytes(tap.MEMORY_SIZE)) is None, "not published yet"


def refuses_what_is_torn(parse: Callable[[bytes], object], raw: bytes, end: int) -> None:
    """Of `raw`, `end` bytes and a checksum of four are a publication."""
    for position in (*range(8), *range(tap.PREFIX.size, end + 4)):
        torn = bytearray(raw)
        torn[position] ^= 1
        assert parse(bytes(torn)) is None, position
    assert parse(raw[:end]) is None


def test_each_publication_counts_once(rank: Rank, ranks: Allocators) -> None:
    """Five a second, looked for ten times: every second look finds none. A device bears the name
    that the driver gives it: torch does not know that it is an instance."""
    with patch("os.pread", wraps=os.pread) as read:
        assert ranks.read([rank.target], {}, NOW) == []
    assert read.call_count == 1, "nothing was ever written, so nothing is torn"
    rank.publish(NOW, GIB)
    (part,) = ranks.read([rank.target], {}, NOW)
    assert (part.begin_ns, part.end_ns) == (NOW, NOW + 5)
    assert [(r.series.kind, r.series.device, r.capacity, r.value) for r in part.readings] == [
        (SeriesKind.TORCH_RESERVED, GPU, 80 * GIB, GIB),
        (SeriesKind.TORCH_ALLOCATED, GPU, 80 * GIB, GIB // 2),
    ]
    assert ranks.read([rank.target], {}, NOW) == []
    rank.publish(NOW + S, GIB)
    (again,) = ranks.read([rank.target], {}, NOW)
    assert again.readings[0].series == part.readings[0].series
    rank.publish(NOW + 2 * S, GIB)
    (part,) = ranks.read([rank.target], {UUID: "MIG-x"}, NOW)
    assert {reading.series.device for reading in part.readings} == {"MIG-x"}


def test_host_memory_of_a_process_out_of_sight(rank: Rank, ranks: Allocators) -> None:
    """In another pid namespace the tap's own figures count, once each; the limit of the container
    is the capacity, unless it is beyond the machine. An agent that sees the process reads it."""
    hidden = replace(rank.target, pid=None)
    machine = total_bytes()
    found = []
    for at_s, limit in enumerate((2 * GIB, 0, 2**62)):
        rank.files.write_host(NOW + at_s * S, NOW + at_s * S + 5, 1, GIB + at_s, limit)
        for part in ranks.read([hidden], {}, NOW):
            assert (part.begin_ns, part.end_ns) == (NOW + at_s * S, NOW + at_s * S + 5)
            found += [(one.series, one.capacity, one.value) for one in part.readings]
        assert ranks.read([hidden], {}, NOW) == []
    series = SeriesInfo(0, SeriesKind.HOST_USED)
    assert found == [(series, size, GIB + n) for n, size in enumerate((2 * GIB, machine, machine))]
    assert Allocators(NodeRawNs).read([rank.target], {}, NOW) == []
    raw = rank.target.shm_path.read_bytes()[tap.HOST_AT :]
    assert allocator.parse_host(raw) is not None
    refuses_what_is_torn(allocator.parse_host, raw, tap.HOST_SIZE - 8)
    assert allocator.parse_host(bytes(tap.HOST_SIZE)) is None, "nothing is written yet"


def test_what_the_tap_reads_of_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the agent counts it, and only in a container."""
    assert tap.HostMemory().read() is None or tap.pid_namespace() != tap.FIRST_PID_NAMESPACE
    monkeypatch.setattr(tap, "FIRST_PID_NAMESPACE", 1)
    read = tap.HostMemory().read()
    assert read is not None
    host = ProcessMemory()
    host.look_around([os.getpid()], 0.0)
    assert abs(read[0] - host.used(os.getpid())) < 64 << 20
    host.close()
    assert read[1] >= 0


def test_a_file_that_was_swept_away_comes_back(
    rank: Rank, ranks: Allocators, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever tidies temporary folders takes the file; the tap makes another, and it is found."""
    monkeypatch.setattr(allocator, "_STILL_S", 0.0)
    rank.publish(NOW, GIB)
    ranks.read([rank.target], {}, NOW)
    rank.target.shm_path.unlink()
    rank.publish(NOW + S, GIB)
    assert ranks.read([rank.target], {}, NOW) == []
    assert len(ranks.read([rank.target], {}, NOW)) == 1


def test_an_error_is_reported_once_with_its_size(rank: Rank, ranks: Allocators) -> None:
    """A new agent reports those of the last minute; an earlier agent reported the older ones."""
    old, fresh = (1, NOW - 100 * S, UUID, 1, 0), (2, NOW - S, UUID, 3 * GIB, GIB)
    rank.publish(NOW, GIB, [old, fresh], count=2)
    (part,) = ranks.read([rank.target], {}, NOW)
    (event,) = part.events
    assert (event.rank, event.kind, event.device) == (0, MemoryEventKind.OOM, GPU)
    assert (event.at_ns, event.requested_bytes) == (NOW - S, 3 * GIB)
    assert event.detail == f"{GIB} bytes of the device were free"
    rank.publish(NOW + S, GIB, [old, fresh], count=2)
    (part,) = ranks.read([rank.target], {}, NOW)
    assert part.events == []
    rank.publish(NOW + 2 * S, GIB, [fresh, (3, NOW + S, UUID, 5, 6)], count=3)
    (part,) = ranks.read([rank.target], {}, NOW)
    assert [event.requested_bytes for event in part.events] == [5]


def test_an_old_torch_only_counts_its_errors(rank: Rank, ranks: Allocators) -> None:
    """Without an observer the size of the request is unknown, but the failure is reported."""
    rank.publish(NOW, GIB, count=4)
    (part,) = ranks.read([rank.target], {}, NOW)
    assert part.events == []
    rank.publish(NOW + S, GIB, count=5)
    (part,) = ranks.read([rank.target], {}, NOW)
    assert [(event.at_ns, event.requested_bytes) for event in part.events] == [(NOW + S + 5, 0)]


def test_the_last_word_of_a_rank_is_heard(rank: Rank, ranks: Allocators) -> None:
    """It dies of the error that it published last, and its file may be gone by then."""
    rank.publish(NOW, GIB)
    ranks.read([rank.target], {}, NOW)
    ranks.read([rank.target], {}, NOW)
    rank.publish(NOW + S, GIB, [(1, NOW + S, UUID, 9, 0)], count=1)
    rank.target.shm_path.unlink()
    (part,) = ranks.read([], {}, NOW)
    assert [event.requested_bytes for event in part.events] == [9]
    assert ranks.read([], {}, NOW) == []


# -- rounds --------------------------------------------------------------------------------------


class Driver:
    """`Devices` whose answers the test gives."""

    def __init__(self) -> None:
        self.answers: list[Look] = []

    def ask(self) -> bool:
        return True

    def take(self, timeout_s: float) -> Look | None:
        return self.answers.pop(0) if self.answers else None

    def say(self, begin_ns: int, used: int) -> None:
        device = DeviceReading(GPU, used, 80 * GIB, {os.getpid(): used - GIB})
        self.answers.append(Look((device,), {}, begin_ns, raw_now()))


class Node:
    def __init__(self) -> None:
        self.driver = Driver()
        self.series: list[SeriesInfo] = []
        self.samples = Samples(1 << 20, self._number)
        node = NodeMemory(ProcessMemory(), lambda pid: None, machine_bytes=64 * GIB)
        gpus = Gpus(sees_host=True)
        self.time = NodeTime(Counters())
        self.sampler = Sampler(self.samples, node, gpus, cast(Devices, self.driver), self.time)

    def _number(self, series: SeriesInfo) -> int:
        if series not in self.series:
            self.series.append(series)
        return self.series.index(series)

    def batches(self) -> list[MemoryColumns]:
        return list(iter(self.samples.next_batch, None))

    def table(self, batch: MemoryColumns) -> dict[SeriesKind, list[int]]:
        kinds = [self.series[index].kind for index in batch.series]
        return dict(zip(kinds, batch.values.tolist(), strict=True))


@pytest.fixture
def node() -> Iterator[Node]:
    found = Node()
    yield found
    found.sampler.close()


def test_all_sources_are_one_moment(rank: Rank, node: Node) -> None:
    """Host, allocator and driver together: it begins with the first and ends with the last."""
    published_ns = raw_now()
    rank.publish(time.time_ns(), 20 * GIB)
    asked_ns = raw_now()
    node.driver.say(asked_ns, 30 * GIB)
    node.sampler.round([rank.target])
    (batch,) = node.batches()
    assert published_ns - S // 1_000 < batch.begin_ns[0] < asked_ns
    assert asked_ns < batch.end_ns[0] <= raw_now()
    table = node.table(batch)
    (host,) = table.pop(SeriesKind.HOST_USED)
    assert host > 1 << 20
    assert table == {
        SeriesKind.TORCH_RESERVED: [20 * GIB],
        SeriesKind.TORCH_ALLOCATED: [10 * GIB],
        SeriesKind.DEVICE_USED: [30 * GIB],
        SeriesKind.PROCESS_USED: [29 * GIB],
    }


def test_what_was_not_read_has_no_sample(rank: Rank, node: Node) -> None:
    """A driver that did not answer in time, and a tap that has nothing new."""
    rank.publish(time.time_ns(), 20 * GIB)
    node.driver.say(raw_now(), 30 * GIB)
    node.sampler.round([rank.target])
    node.sampler.round([rank.target])
    (batch,) = node.batches()
    unread = {kind: values[1] for kind, values in node.table(batch).items()}
    assert unread.pop(SeriesKind.HOST_USED) > 0
    assert set(unread.values()) == {NO_SAMPLE}


def test_a_late_answer_widens_no_moment(rank: Rank, node: Node) -> None:
    """The driver took two seconds: its values are a separate moment, two seconds wide."""
    node.sampler._began_ns = NodeRawNs(0)
    asked_ns = raw_now() - 2 * S
    node.sampler.round([rank.target])
    node.driver.say(asked_ns, 30 * GIB)
    node.sampler.round([rank.target])
    main, late = node.batches()
    assert set(node.table(main)) == {SeriesKind.HOST_USED}
    assert (main.end_ns - main.begin_ns).max() < S
    assert node.table(late)[SeriesKind.DEVICE_USED] == [30 * GIB]
    assert late.begin_ns.tolist() == [asked_ns]


def test_readings_of_another_time_are_nothing(rank: Rank, node: Node) -> None:
    """A tap's file from long before the agent, or from a future that never came."""
    for begin_ns in (time.time_ns() - 100 * S, time.time_ns() + 100 * S):
        rank.publish(begin_ns, 20 * GIB)
        node.sampler.round([rank.target])
    (batch,) = node.batches()
    assert set(node.table(batch)) == {SeriesKind.HOST_USED}


def test_errors_and_jumps_do_not_wait(tmp_path: Path, rank: Rank, node: Node) -> None:
    """A round that saw one says so; a quiet one does not."""
    rank.publish(time.time_ns(), 20 * GIB)
    assert not node.sampler.round([rank.target])
    rank.publish(time.time_ns(), 24 * GIB)
    assert node.sampler.round([rank.target])
    assert not node.sampler.round([rank.target])
    rank.publish(time.time_ns(), 24 * GIB, [(1, time.time_ns(), UUID, GIB, 0)])
    assert node.sampler.round([rank.target])
    sent = node.samples.next_events()
    assert sent is not None
    assert [event.requested_bytes for event in sent.events] == [GIB]


def test_a_rank_that_went_on_as_another_has_other_series(rank: Rank, node: Node) -> None:
    """A process that sets up its groups again has another number, and its series begin again."""
    node.sampler.round([rank.target])
    other = Target(5, 1, os.getpid(), os.getpid(), (GPU,), rank.target.shm_path, moving=True)
    node.sampler.round([other])
    first, second = node.batches()
    assert [node.series[index].rank for index in first.series] == [0]
    assert [node.series[index].rank for index in second.series] == [5]


@pytest.mark.parametrize("period_s", [0.1, 1.0, 0.7])
@pytest.mark.parametrize("now_s", [0.0, 0.02, 0.0249, 0.0251, 0.123, 0.99])
def test_rounds_follow_the_taps(
    monkeypatch: pytest.MonkeyPatch, period_s: float, now_s: float
) -> None:
    """25 ms after a multiple of the period on the wall clock, and never immediately again."""
    monkeypatch.setattr(watch, "time", SimpleNamespace(time=lambda: 1_790_000_000 + now_s))
    wait_s = watch._until_next(period_s)
    phase = (1_790_000_000 + now_s + wait_s - 0.025) / period_s
    assert abs(phase - round(phase)) * period_s < 1e-5
    assert period_s * 0.09 < wait_s < period_s * 1.11
