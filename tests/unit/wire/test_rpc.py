"""The job of a stream in the metadata of its call."""

from __future__ import annotations

import pytest

from frd.rpc import JOB_KEY, job_metadata, job_of


@pytest.mark.parametrize("job", ["train", "日本 \n", ""])
def test_a_job_arrives(job: str) -> None:
    """Any text is a name of a job; the key permits bytes in gRPC."""
    assert JOB_KEY.endswith("-bin")
    assert job_of((("authorization", "Bearer x"), *job_metadata(job))) == job


def test_a_job_is_named_as_in_messages() -> None:
    """What is no UTF-8 is escaped, and a name that is too long is cut, as in declarations."""
    assert job_of(job_metadata("\udcff")) == "\\udcff"
    long = job_of(job_metadata("x" * 9000))
    assert long is not None
    assert len(long) < 4096


def test_no_job() -> None:
    """A stream without ranks, and a peer that sends other bytes."""
    assert job_metadata(None) == ()
    assert job_of(None) is None
    assert job_of([("authorization", "Bearer x")]) is None
    assert job_of([(JOB_KEY, b"\xff")]) is None
