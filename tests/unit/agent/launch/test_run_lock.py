"""The lock on a run directory: one agent, proof of its life, and no directory made for others."""

from __future__ import annotations

import logging
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from frd_agent import tap
from frd_agent.launch.run_lock import (
    NAME,
    PATIENCE_S,
    Holder,
    RunDirBusy,
    RunLock,
    holder,
    make_default,
)

ME = Holder(pid=27, node="vm", service="127.0.0.1:9373", started_at=1000.5)


def lock(run_dir: Path, pid: int = 27) -> RunLock:
    return RunLock(run_dir, Holder(pid, "vm", "127.0.0.1:9373", 1000.5))


def test_the_holder_is_seen_for_as_long_as_it_lives(tmp_path: Path) -> None:
    """A reader of the lock learns pid, node and service of the agent, and after its end nothing."""
    assert holder(tmp_path) is None
    agent = lock(tmp_path)
    assert agent.keep(0.0)
    assert holder(tmp_path) == ME
    assert str(ME) == "agent pid 27 on vm (service 127.0.0.1:9373)"
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o644
    agent.close()
    assert (tmp_path / NAME).exists()
    assert holder(tmp_path) is None


def test_a_second_agent_names_the_first(tmp_path: Path) -> None:
    """The second agent waits for a moment, then ends with the first one's pid in its error."""
    first, second = lock(tmp_path), lock(tmp_path, pid=41)
    assert first.keep(0.0)
    assert not second.keep(10.0)
    assert second.is_busy
    with pytest.raises(RunDirBusy, match=r"agent pid 27 on vm .* watches it already: stop"):
        second.keep(10.0 + PATIENCE_S)
    first.close()
    assert second.keep(30.0)
    assert not second.is_busy
    found = holder(tmp_path)
    assert found is not None
    assert found.pid == 41


def _hold_and_die(run_dir: Path, ready: object) -> None:
    assert lock(run_dir).keep(0.0)
    os._exit(9)


def test_a_killed_agent_holds_nothing(tmp_path: Path) -> None:
    """The process that held the lock was killed: another agent takes it immediately."""
    child = multiprocessing.get_context("spawn").Process(target=_hold_and_die, args=(tmp_path, 0))
    child.start()
    child.join()
    assert child.exitcode == 9
    assert (tmp_path / NAME).stat().st_size > 0
    assert holder(tmp_path) is None
    assert lock(tmp_path).keep(0.0)


def test_the_lock_follows_the_directory(tmp_path: Path) -> None:
    """The directory does not exist at first, appears, and is cleaned up under the agent."""
    run_dir = tmp_path / "run"
    agent = lock(run_dir)
    assert not agent.keep(0.0)
    assert not agent.is_busy
    run_dir.mkdir()
    assert agent.keep(1.0)
    (run_dir / NAME).unlink()
    assert holder(run_dir) is None
    assert agent.keep(2.0)
    assert holder(run_dir) == ME


def test_what_cannot_be_locked_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The lock's path is a link: the agent logs that once and goes on."""
    (tmp_path / NAME).symlink_to(tmp_path / "elsewhere")
    agent = lock(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert not agent.keep(0.0)
        assert not agent.keep(1.0)
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(OSError, match="Too many levels"):
        holder(tmp_path)


def test_nonsense_in_the_file_is_an_agent_without_a_name(tmp_path: Path) -> None:
    """The content is not the agent's: the lock itself still shows that an agent watches."""
    agent = lock(tmp_path)
    assert agent.keep(0.0)
    (tmp_path / NAME).write_bytes(b"\xff{")
    assert holder(tmp_path) == Holder()
    (tmp_path / NAME).write_text('{"x":' + "[" * 60_000)
    assert holder(tmp_path) == Holder()
    assert str(Holder()) == "another agent"


def test_only_the_users_own_default_directory_is_made(tmp_path: Path) -> None:
    """The default directory is made with mode 0700; one that was named is left to the ranks."""
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    run_dir = Path(tap.default_run_dir(environ))
    make_default(tmp_path / "named", environ)
    assert not (tmp_path / "named").exists()
    make_default(run_dir, environ)
    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700
