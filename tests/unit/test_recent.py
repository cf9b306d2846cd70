"""The worst of the last seconds, with an injected clock."""

from __future__ import annotations

from frd.service.ingest.recent_peak import WINDOW_S, RecentPeak


def test_the_worst_is_remembered_for_a_window() -> None:
    """A slow message between two scrapes is seen by both, and forgotten after the window."""
    recent = RecentPeak()
    assert recent.worst(0.0) == 0.0
    recent.note(7.0, 100.2)
    recent.note(1.0, 100.9)
    recent.note(2.0, 105.0)
    assert recent.worst(105.5) == recent.worst(100.0 + WINDOW_S - 0.1) == 7.0
    assert recent.worst(100.0 + WINDOW_S) == 2.0
    assert recent.worst(105.0 + WINDOW_S) == 0.0


def test_a_clock_that_is_set_back_does_not_keep_an_old_worst() -> None:
    """After a step of the service's clock by an hour the past is not held against the present."""
    recent = RecentPeak()
    recent.note(7.0, 10_000.0)
    assert recent.worst(6_400.0) == 0.0
