"""The worst of the last seconds, with an injected clock."""

from __future__ import annotations

from frd.service.metrics.recent_peak import WINDOW_S, RecentPeak


def test_the_peak_is_remembered_for_a_window() -> None:
    """A slow message between two scrapes is seen by both, and forgotten after the window."""
    recent = RecentPeak()
    assert recent.value(0.0) == 0.0
    recent.add(7.0, 100.2)
    recent.add(1.0, 100.9)
    recent.add(2.0, 105.0)
    assert recent.value(105.5) == recent.value(100.0 + WINDOW_S - 0.1) == 7.0
    assert recent.value(100.0 + WINDOW_S) == 2.0
    assert recent.value(105.0 + WINDOW_S) == 0.0


def test_a_clock_that_is_set_back() -> None:
    """After a step of the service's clock by an hour the old peak no longer counts."""
    recent = RecentPeak()
    recent.add(7.0, 10_000.0)
    assert recent.value(6_400.0) == 0.0
