"""Skips these tests where they cannot run, lets ranks share a GPU, and prints what was found."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu.machine import BACKEND, SHARING, facts
from tests.world.daemons import free_address

_FACTS = "FRD_GPU_FACTS"


def pytest_configure() -> None:
    """Workers of pytest-xdist inherit what the first process has found out."""
    if _FACTS not in os.environ:
        os.environ[_FACTS] = json.dumps(facts())


def pytest_report_header() -> str:
    known = json.loads(os.environ[_FACTS])
    return f"gpu: {known['skip'] or known['versions']}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = json.loads(os.environ[_FACTS])["skip"]
    for item in items:  # of the whole session
        if Path(__file__).parent not in item.path.parents:
            continue
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
        elif BACKEND == "gloo" and item.get_closest_marker("nccl"):
            item.add_marker(pytest.mark.skip(reason="only NCCL can show this"))


@pytest.fixture(autouse=True)
def variables_of_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks may share a GPU, and every job gets an address for NCCL's RAS, because tests run side
    by side."""
    for name, value in SHARING.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NCCL_RAS_ADDR", free_address())


@pytest.fixture
def row(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Adds a row to the table at the end: job, truth, finding, seconds from hang to finding."""

    def add(job: str, truth: str, finding: str, seconds: float | None = None) -> None:
        took = "" if seconds is None else f"{seconds:.1f}"
        record_property("row", f"| {job} | {truth} | {finding} | {took} |")

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for of in ("passed", "failed") for report in terminalreporter.getreports(of)]
    rows = [value for one in reports for name, value in one.user_properties if name == "row"]
    if rows:
        terminalreporter.write_line("| job | truth | finding | s from hang to finding |")
        terminalreporter.write_line("|---|---|---|---|")
        for line in sorted(map(str, rows)):
            terminalreporter.write_line(line)
