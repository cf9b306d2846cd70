"""What holds for all tests."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is slow, which is no bug: no example has a deadline.
settings.register_profile("patient", deadline=None)
# A failure in CI must come from a change, not from chance; elsewhere examples are random.
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "patient")


_PREPARED = {
    "pods": ("FRD_PODS", "run by make test-pods, which makes images"),
    "slurm": ("FRD_SLURM", "run by make test-slurm, which needs Debian"),
}
"""Folders whose tests need what a script prepares: the variable that it sets, and why they are
skipped without it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for folder, (variable, reason) in _PREPARED.items():
        for item in items if variable not in os.environ else ():
            if Path(__file__).parent / folder in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why a test was run once more: `-rR` has only its name."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_line(f"\nat first {report.nodeid}\n{report.longreprtext[-3000:]}")


def pytest_collection_finish() -> None:
    """A collection of garbage leaves out the thousands of tests, and comes less often: it took an
    eighth of the unit tests' time."""
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)


@pytest.fixture(scope="session", autouse=True)
def _signals_heeded() -> None:
    """Processes that tests start react to signals, even if nohup or a shell's `&` ignored them."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _loops_end_quietly() -> None:
    """gRPC has one poller for all loops of a process. It may have news for the loop of an earlier
    test, and the error that then appears in the log is not of the test that looks there."""

    def is_of_a_test(record: logging.LogRecord) -> bool:
        return "PollerCompletionQueue._handle_events" not in record.getMessage()

    logging.getLogger("asyncio").addFilter(is_of_a_test)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine function runs in its own event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True
