"""The lock on a run directory: one agent, proof of its life, and no directory made for others."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest

from frd_agent import tap
from frd_agent.launch.run_lock import (
    NAME,
    Holder,
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
