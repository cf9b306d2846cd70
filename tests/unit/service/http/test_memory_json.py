"""Which memory series people see, and how they are drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from frd.cli.screens.job_tables import sparkline
from frd.engine.views import MemoryView
from frd.forms import bytes_text, utc_text
from frd.model import AlignedNs, SeriesInfo, SeriesKind
from frd.service.http.json_api import MAX_WORST, memory_json
from tests.world.http_api import Client, Service, job_view
from tests.world.views import NOW, SECOND, rise

GIB = 1 << 30


def memory(*series: tuple[SeriesInfo, int, list[int]]) -> MemoryView:
    """Each with its capacity and recent values in GiB, the last of which is the newest."""
    recent = np.array([[v * GIB if v >= 0 else -1 for v in r] for _, _, r in series], np.int64)
    capacity = np.array([c * GIB for _, c, _ in series], np.int64)
    return MemoryView([info for info, _, _ in series], recent[:, -1], capacity, recent, 2.0)


def test_the_worst_are_one_series_a_rank_and_few() -> None:
    """Ten ranks with two series each: the fullest series of the fullest ranks are listed."""
    view = memory(
        *(
            (SeriesInfo(rank, kind, "GPU-1"), 80, [used, used])
            for rank in range(10)
            for kind, used in (
                (SeriesKind.DEVICE_USED, 30 + rank),
                (SeriesKind.TORCH_RESERVED, 20 + rank),
            )
        )
    )
    listed = memory_json(view, None)
    assert listed["ranks"] == 10
    assert [(row["rank"], row["kind"]) for row in listed["series"]] == [
        (rank, "device_used") for rank in range(9, 9 - MAX_WORST, -1)
    ]


def test_a_rank_that_rises_is_worse_than_one_that_is_full_and_still() -> None:
    """60 of 80 GiB and standing against 30 GiB that were 2 a moment ago."""
    view = memory(
        (SeriesInfo(0, SeriesKind.DEVICE_USED), 80, [-1, 57, 57]),
        (SeriesInfo(1, SeriesKind.DEVICE_USED), 80, [-1, 2, 30]),
        (SeriesInfo(2, SeriesKind.DEVICE_USED), 0, [-1, 2, 70]),
    )
    assert [row["rank"] for row in memory_json(view, None)["series"]] == [1, 0, 2]


def test_what_the_ranks_of_a_node_share_orders_no_ranks() -> None:
    """The cgroup of two ranks is fuller than either: their own memory orders them."""
    view = memory(
        (SeriesInfo(0, SeriesKind.CGROUP_USED), 32, [30, 31]),
        (SeriesInfo(0, SeriesKind.HOST_USED), 32, [4, 4]),
        (SeriesInfo(1, SeriesKind.CGROUP_USED), 32, [30, 31]),
        (SeriesInfo(1, SeriesKind.HOST_USED), 32, [25, 26]),
        (SeriesInfo(2, SeriesKind.CGROUP_USED), 32, [30, 31]),
    )
    listed = memory_json(view, None)["series"]
    assert [(row["rank"], row["kind"]) for row in listed] == [
        (1, "host_used"),
        (0, "host_used"),
        (2, "cgroup_used"),
    ]


def test_ranks_asked_for_come_with_all_they_have() -> None:
    """All series of rank 1, in the order of the view; what is unknown is null."""
    view = memory(
        (SeriesInfo(0, SeriesKind.HOST_USED), 8, [1, 1]),
        (SeriesInfo(1, SeriesKind.DEVICE_USED, "GPU-1"), 80, [7, 8]),
        (SeriesInfo(1, SeriesKind.HOST_USED), 0, [-1, -1]),
    )
    listed = memory_json(view, {1})
    assert listed["ranks"] == 1
    assert listed["series"] == [
        {
            "rank": 1,
            "kind": "device_used",
            "device": "GPU-1",
            "used_bytes": 8 * GIB,
            "capacity_bytes": 80 * GIB,
            "recent_bytes": [7 * GIB, 8 * GIB],
        },
        {
            "rank": 1,
            "kind": "host_used",
            "device": "",
            "used_bytes": None,
            "capacity_bytes": None,
            "recent_bytes": [None, None],
        },
    ]


def test_every_rise_is_in_both_forms_of_a_job(tmp_path: Path) -> None:
    """By onset, in UTC, each suspect with its node; the summary folds sets of ranks."""
    rises = [rise(1, alarming=True), rise(ranks=(0, 1, 2), common_cause=True)]
    job = replace(job_view("train", world_size=3), memory=MemoryView(rises=rises))
    service = Service(tmp_path, [job])
    service.state = replace(
        service.state, status_view=replace(service.state.status_view, utc_ahead_ns=SECOND)
    )
    client = Client(service)
    found, together = client.get("/api/v1/jobs/train").json["rises"]
    assert found["suspects"] == [{"rank": 1, "confidence": "high", "node": "node0"}]
    assert found["onset"]["earliest"] == utc_text(AlignedNs(NOW - SECOND))
    assert (found["bytes"], found["alarming"], found["series"]) == (GIB, True, "host_used")
    assert (together["suspects"], together["ranks"]) == ([], [0, 1, 2])
    folded = client.get("/api/v1/jobs/train", "view=summary").json["rises"]
    assert folded == [
        {**found, "ranks": "1", "unknown": ""},
        {**together, "ranks": "0-2", "unknown": ""},
    ]
    service.close()


def test_a_sparkline_shows_a_rise_and_not_the_noise() -> None:
    """From the lowest bar to the highest; a flutter below what counts as still is level."""
    assert sparkline([0, 50, 100], still=1) == "▁▄█"
    assert sparkline([1000, 1001, 999], still=100) == "▁▁▁"
    assert sparkline([], still=1) == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1 << 20, "1.0 MiB"),
        (1536 << 20, "1.5 GiB"),
        (240 << 20, "240 MiB"),
        (5 << 50, "5120 TiB"),
    ],
)
def test_sizes_for_people(count: int, text: str) -> None:
    """Three digits at most, in binary units."""
    assert bytes_text(count) == text
