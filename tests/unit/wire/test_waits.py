"""Reports on waits as agents of other releases send them."""

from __future__ import annotations

import msgspec

from frd.model import Certainty, Holder, NodeRawNs, WaitKind, WaitsFor
from frd.wire.waits import WaitReport, decode_report, encode_report

REPORT = WaitReport(
    WaitsFor(WaitKind.SLEEP, Certainty.LIKELY, "/data/squad.lock", holder=Holder(991, 3)),
    *(NodeRawNs(1), NodeRawNs(2)),
    is_poll=True,
    is_idle=True,
)


def test_a_poll_arrives() -> None:
    """With its holder, and with what else the agent has found out."""
    assert decode_report(encode_report(REPORT)) == REPORT


def test_an_older_agent_knows_no_polls() -> None:
    """It sends neither key: the rank is not known to poll, or to be idle."""
    sent = msgspec.json.decode(encode_report(REPORT))
    del sent["is_poll"], sent["is_idle"]
    found = decode_report(msgspec.json.encode(sent))
    assert found.waits_for == REPORT.waits_for
    assert (found.is_poll, found.is_idle) == (False, False)


def test_a_newer_agent_knows_more() -> None:
    """It sends a key that this release does not know."""
    sent = msgspec.json.decode(encode_report(REPORT))
    assert decode_report(msgspec.json.encode({**sent, "is_odd": True})) == REPORT
