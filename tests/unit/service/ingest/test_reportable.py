"""Which jobs a stream may report, and the reason why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from frd.errors import WireError
from frd.model import RankInfo
from frd.service.access.grants import EVERYTHING
from frd.service.ingest.collector import Home
from frd.service.ingest.declarations import Reportable
from frd.wire.encode import encode_agent
from tests.world.messages import declare
from tests.world.one_replica import CELL, HELLO, JOB, replica


async def test_which_jobs_a_stream_may_report(tmp_path: Path) -> None:
    """In a cluster a stream reports the job that its call names, and the reason names both if it
    declares another; an agent that names none is of an earlier release and must be upgraded, but
    only when it has a job."""
    async with replica(tmp_path) as parts:
        parts.owner.gained(CELL, "start")
        home = await parts.homes.find(JOB)
        assert isinstance(home, Home)
        may_report = Reportable(EVERYTHING.may_report, home.one_job, JOB)
        assert may_report(JOB)
        assert not may_report("another")
        may_report.check(JOB)
        with pytest.raises(WireError, match="'another': the call names 'train': open a stream"):
            may_report.check("another")
        lobby = await parts.homes.find(None)
        assert isinstance(lobby, Home)
        stream = lobby.streams.open()
        stream.session.declared.may_report = Reportable(one_job=lobby.one_job)
        lobby.streams.take(stream, HELLO)
        with pytest.raises(WireError, match="upgrade the agent") as refused:
            lobby.streams.take(stream, encode_agent(declare([RankInfo(0, 1, "n", "boot", 7, 0)])))
        assert refused.value.reason == "version"
