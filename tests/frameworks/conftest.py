"""Shows, at the end, which versions ran and how long each hang took to become a finding."""

from __future__ import annotations

import importlib.util

import pytest

from tests.frameworks.hangs import MEASURED, STALL_AFTER_S, versions


def pytest_runtest_setup(item: pytest.Item) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: make test-frameworks installs it")


def pytest_report_header() -> str:
    return f"frameworks: {versions()}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if MEASURED:
        terminalreporter.section(f"seconds from hang to finding, stall_after_s {STALL_AFTER_S:g}")
    for launcher, seconds, summary in MEASURED:
        terminalreporter.write_line(f"{launcher:32} {seconds:5.1f} s  {summary}")
