"""Findings by kind and by when they opened, of the engine and of the store together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from frd.forms import utc_text
from frd.model import AlignedNs, Kind
from tests.world.http_api import Client, Service, closed, finding, job_view
from tests.world.views import NOW, SECOND

KINDS = {1: Kind.STALL, 2: Kind.OOM, 3: Kind.STALL, 4: Kind.STRAGGLER}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """Findings 1 and 2 are open, 3 and 4 are closed."""
    found = [dataclasses.replace(finding(n), kind=kind) for n, kind in KINDS.items()]
    service = Service(tmp_path, [job_view("train")], [*found[:2], *map(closed, found[2:])])
    yield Client(service)
    service.close()


def ids(client: Client, query: str) -> list[int]:
    found = client.get("/api/v1/findings", query).json["findings"]
    return [int(one["id"], 16) for one in found]


def opened(number: int) -> str:
    return utc_text(AlignedNs(NOW + number * SECOND))


def test_by_kind(client: Client) -> None:
    """Open and closed ones of one kind, newest first; with a state, of this state."""
    assert ids(client, "kind=stall") == [3, 1]
    assert ids(client, "kind=stall&state=open") == [1]
    assert ids(client, "kind=stall&state=closed") == [3]
    assert ids(client, "kind=straggler") == [4]
    assert ids(client, "kind=rank_lost") == []
    assert ids(client, "kind=stall&limit=1") == [3]
    assert ids(client, "kind=stall&job=other") == []


def test_by_the_time_of_the_opening(client: Client) -> None:
    """`until` is the first moment that does not count."""
    assert ids(client, f"until={opened(4)}") == [3, 2, 1]
    assert ids(client, f"until={opened(2)}&state=open") == [1]
    assert ids(client, f"until={opened(1)}") == []
    assert ids(client, f"until={opened(9)}&kind=oom") == [2]
    assert ids(client, f"until={opened(4)}&since={opened(10)}") == [2, 1]


@pytest.mark.parametrize("query", ["kind=stalls", "kind=", "kind=STALL", "until=soon", "until="])
def test_filters_that_cannot_be_used(client: Client, query: str) -> None:
    """400 that names the parameter; a kind that is misspelt is not one without findings."""
    answer = client.get("/api/v1/findings", query)
    assert (answer.status, answer.json["error"].partition(":")[0]) == (400, query.partition("=")[0])
