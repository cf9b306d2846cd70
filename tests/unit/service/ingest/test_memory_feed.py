"""Samples of memory on their way from a stream to the engine."""

from __future__ import annotations

import numpy as np
import pytest

from frd.engine.memory.walk.series import Series
from frd.engine.policy import Policy
from frd.engine.views import MemoryView
from frd.errors import WireError
from frd.model import (
    AlignedNs,
    AttemptKey,
    Finding,
    FindingState,
    Int64s,
    Kind,
    MemoryColumns,
    MemoryEvent,
    MemoryEventKind,
    RankInfo,
    RankState,
    RankStatus,
    SeriesInfo,
    SeriesKind,
)
from frd.service.ingest.session import UNKNOWN_UNCERTAINTY_NS
from frd.wire.messages import AttemptDecl, Declare, MemoryEvents, RankDecl, SeriesDecl, Statuses
from tests.world.sessions import OFFSET, S, Service, Stream

GIB = 1 << 30
HOST = SeriesKind.HOST_USED


def declared(stream: Stream) -> Stream:
    """Stream index 0 is rank 0, 1 is rank 3; rank 3 has two series."""
    infos = (SeriesInfo(0, HOST), SeriesInfo(1, HOST), SeriesInfo(1, SeriesKind.DEVICE_USED, "G"))
    stream.send(Declare(series=tuple(SeriesDecl(i, info) for i, info in enumerate(infos))))
    return stream


def samples(stream: Stream, series: list[int], values: list[list[int]]) -> MemoryColumns:
    """A moment each 100 ms, the last one now, on the clock of the node; read in 2 ms."""
    moments = len(values[0])
    end = stream.node_now() - np.arange(moments, dtype=np.int64)[::-1] * (S // 10)
    return MemoryColumns(
        series=np.array(series, np.uint32),
        capacity=np.full(len(series), 8 * GIB, np.int64),
        begin_ns=end - 2_000_000,
        end_ns=end,
        values=np.array(values, np.int64),
    )


def memory(service: Service) -> MemoryView:
    service.engine.advance(AlignedNs(service.now))
    (view,) = service.engine.status_view(AlignedNs(service.now)).attempts
    return view.memory


def test_samples_reach_the_series_of_their_rank() -> None:
    """A batch names two of three series by stream index: they are shown under the global ranks."""
    service = Service()
    stream = declared(service.stream())
    stream.send(samples(stream, [2, 0], [[3 * GIB, 4 * GIB], [GIB, -1]]))
    view = memory(service)
    used = {(of.rank, of.kind): v for of, v in zip(view.series, view.used.tolist(), strict=True)}
    assert used == {(0, HOST): GIB, (3, HOST): -1, (3, SeriesKind.DEVICE_USED): 4 * GIB}
    assert not stream.session.take_refused()


def test_times_are_intervals_on_the_services_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin and end are aligned and widened by the uncertainty of the clock."""
    service = Service()
    stream = declared(service.stream())
    seen: list[tuple[Int64s, Int64s]] = []

    def apply(_: Series, columns: MemoryColumns) -> None:
        seen.append((columns.begin_ns[0], columns.end_ns[0]))

    monkeypatch.setattr(Series, "apply", apply)
    batch = samples(stream, [0], [[GIB, GIB]])
    stream.send(batch)
    service.engine.advance(AlignedNs(service.now))
    ((begin, end),) = seen
    assert (begin == batch.begin_ns + OFFSET - UNKNOWN_UNCERTAINTY_NS).all()
    assert (end == batch.end_ns + OFFSET + UNKNOWN_UNCERTAINTY_NS).all()


def test_impossible_values_are_counted() -> None:
    """A driver reports minus two and a petabyte: both are refused, other series are applied."""
    service = Service()
    stream = declared(service.stream())
    stream.send(samples(stream, [0, 1], [[-2, 1 << 51], [GIB, 2 * GIB]]))
    assert memory(service).used.tolist()[:2] == [-1, 2 * GIB]
    assert [refused[:2] for refused in stream.session.take_refused()] == [("memory", 2)]
    assert not stream.session.take_refused()


def test_attempts_of_one_stream_are_kept_apart() -> None:
    """Rank 0 of two jobs on one node: each has its own memory; one batch is of one job."""
    service = Service()
    stream = declared(service.stream())
    stream.send(
        Declare(
            attempts=(AttemptDecl(1, AttemptKey("other", 0), 1),),
            ranks=(RankDecl(2, 1, RankInfo(0, 1, "n", "boot", 99)),),
            series=(SeriesDecl(3, SeriesInfo(2, HOST)),),
        )
    )
    stream.send(samples(stream, [0], [[GIB]]))
    stream.send(samples(stream, [3], [[5 * GIB]]))
    service.engine.advance(AlignedNs(service.now))
    views = service.engine.status_view(AlignedNs(service.now)).attempts
    assert {view.key.job: view.memory.used[0] for view in views} == {"job": GIB, "other": 5 * GIB}
    with pytest.raises(WireError, match="another attempt"):
        stream.send(samples(stream, [0, 3], [[GIB], [GIB]]))


def test_out_of_memory_outlives_the_attempt_that_it_ended() -> None:
    """Rank 3 cannot allocate and dies, and so do the others: the finding stays, for a while."""
    service = Service(Policy(lost_close_after_s=60))
    stream = declared(service.stream())
    event = MemoryEvent(1, MemoryEventKind.OOM, stream.node_now(), requested_bytes=GIB)
    stream.send(MemoryEvents((event,)))
    gone = [RankStatus(i, RankState.EXITED, stream.node_now(), "MemoryError") for i in (0, 1)]
    stream.send(Statuses(tuple(gone)))
    found: dict[str, Finding] = {}

    def run(seconds: int) -> None:
        for _ in range(seconds):
            service.now += S
            events = service.engine.advance(AlignedNs(service.now)).events
            found.update({event.finding.id: event.finding for event in events})

    run(30)
    (finding,) = (one for one in found.values() if one.kind is Kind.OOM)
    assert [suspect.rank for suspect in finding.suspects] == [3]
    assert "host memory" in finding.summary
    assert finding.state is FindingState.OPEN
    run(60)
    assert found[finding.id].state is FindingState.CLOSED
