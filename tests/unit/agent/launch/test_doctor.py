"""What `frd doctor` and `frd-agent exec --check` conclude, on real interpreters without torch."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from frd_agent.inspection.reading import rights
from frd_agent.launch import checks, command_line
from frd_agent.launch.checks import State
from frd_agent.ranks.tap_files import TapFile
from tests.world.daemons import free_address, run_program
from tests.world.run_dir import TOKEN, identity


@pytest.fixture
def torch(fake_torch: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For interpreters that are started here."""
    (fake_torch / "torch" / "__init__.py").write_text("__version__ = '9.9'")
    monkeypatch.setenv("PYTHONPATH", str(fake_torch))
    return fake_torch


def found(cmd: list[str], run_dir: Path) -> dict[str, checks.Check]:
    return {check.name: check for check in checks.of_node(cmd, run_dir)}


def test_the_python_of_a_command_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, from a script's first line, or unknown."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin")
    script = tmp_path / "torchrun"
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    assert command_line.interpreter(["torchrun", "x.py"]) == (sys.executable, True)
    script.write_text(f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n")
    assert command_line.interpreter(["torchrun", "x.py"]) == (sys.executable, True)
    assert command_line.interpreter(["env", "A=B", sys.executable, "x.py"]) == (
        sys.executable,
        True,
    )
    assert command_line.interpreter([]) == (sys.executable, True)
    assert command_line.interpreter(["bash", "run.sh"])[1] is False


def test_a_tap_that_loads(torch: Path, tmp_path: Path) -> None:
    """frd is installed in this interpreter, so PYTHONPATH may be replaced; no agent watches."""
    (tmp_path / "run").mkdir(mode=0o700)
    said = found([sys.executable, "train.py"], tmp_path / "run")
    assert said["tap"].state is State.OK, said["tap"]
    assert "torch 9.9" in said["tap"].text
    assert said["tap version"].state is State.OK
    assert "TORCH_FR_BUFFER_SIZE=2000" in said["variables"].text
    assert said["run directory"].state is State.OK
    assert said["agent"].state is State.FAILED


def test_a_named_directory_is_not_made(torch: Path, tmp_path: Path) -> None:
    """Its name may be wrong; then nothing is left behind that looks like a run directory."""
    said = found([sys.executable, "train.py"], tmp_path / "typo")
    assert said["run directory"].state is State.WARNING
    assert "does not exist: is the name right?" in said["run directory"].text
    assert said["tap"].state is State.OK, said["tap"]
    assert not (tmp_path / "typo").exists()


def test_what_cannot_be_used(torch: Path, tmp_path: Path) -> None:
    """torch is broken: the error of its import is shown. A file is in the place of the run
    directory."""
    (torch / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.12: no such')")
    (tmp_path / "run").touch()
    said = found([sys.executable], tmp_path / "run")
    assert said["tap"].state is State.FAILED
    assert "libcudart.so.12" in said["tap"].text
    assert said["run directory"].state is State.FAILED


def test_the_check_of_exec_runs_nothing(torch: Path, tmp_path: Path) -> None:
    """One line a check, exit code 1 because no agent watches; the command itself is not run."""
    touched = tmp_path / "touched"
    done = run_program(
        [sys.executable, "-m", "frd_agent", "exec", "--run-dir", str(tmp_path / "run"), "--check"]
        + ["--", sys.executable, "-c", f"open({str(touched)!r}, 'w')"],
        env=os.environ,
    )
    assert done.returncode == 1, done.stderr
    lines = dict(line[9:].split(": ", 1) for line in done.stdout.splitlines())
    assert list(lines)[:2] == ["tap", "tap version"]
    assert not touched.exists()


def test_nothing_to_run_is_wrong_usage() -> None:
    """exec without a command, and without --check."""
    done = run_program([sys.executable, "-m", "frd_agent", "exec"])
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_json_is_false_if_one_has_failed() -> None:
    """Warnings do not count."""
    warned = [checks.Check("a", State.WARNING, "x")]
    assert checks.as_json(warned)["ok"] is True
    failed = checks.as_json([*warned, checks.Check("b", State.FAILED, "y")])
    assert json.loads(json.dumps(failed))["ok"] is False


def test_the_replicas_of_a_service(tmp_path: Path) -> None:
    """The agent names three addresses: one that accepts connections is enough, with a warning about
    the others; none is a failure."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        there = f"127.0.0.1:{one.getsockname()[1]}"
        lost = f"{free_address()},{free_address()}"
        assert checks._service(there).state is State.OK
        some = checks._service(f"{there},{lost}")
        assert some.state is State.WARNING
        assert there not in some.text
    assert checks._service(f"{there},{lost}").state is State.FAILED


@pytest.mark.parametrize(
    ("scope", "allowed", "ok"),
    [(0, False, True), (1, False, False), (1, True, True), (2, True, False), (3, True, False)],
)
def test_the_right_to_read_stacks(
    scope: int, allowed: bool, ok: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Yama forbids it to an agent without CAP_SYS_PTRACE, unless the ranks allow it; the line names
    each way to give the right that works with this value."""
    for module in (checks, rights):
        monkeypatch.setattr(module, "ptrace_scope", lambda *_: scope)
    monkeypatch.setattr(checks, "may_trace", lambda _: False)
    said = checks.stacks_check(None, ranks_allow=allowed)
    assert (said.state is State.OK) is ok
    ways = ("exec --allow-ptrace", "set it to 0", "CAP_SYS_PTRACE")
    named = {1: ways, 2: ways[1:]}.get(scope, ())
    assert ok or [way for way in ways if way in said.text] == list(named)
    assert ok or f"kernel.yama.ptrace_scope is {scope}" in said.text


def test_without_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line says what is lost and what installs it."""
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    said = checks.stacks_check(None)
    assert said.state is State.WARNING
    assert "not installed: pip install py-spy in the agent's environment" in said.text


@pytest.mark.parametrize(
    ("version", "recorders", "state", "text"),
    [
        ("2.7.0", [1], State.WARNING, "keeps no record of Gloo: use torch 2.10 or later"),
        ("2.9.1", [0, 1], State.OK, "torch 2.9.1: those of Gloo are read at rest"),
        ("2.10.0", [0], State.OK, "torch 2.10.0: those of Gloo are read at any time"),
    ],
)
def test_what_a_torch_records(version: str, recorders: list[int], state: State, text: str) -> None:
    """Before a job runs: a torch that keeps no record of Gloo is a warning, with the release that
    helps."""
    check = checks.collectives_check(version, recorders)
    assert check.state is state
    assert check.text.endswith(text)


def test_ranks_that_cannot_be_read(tmp_path: Path) -> None:
    """Of a job that runs: the torch is too old, or its recorder is switched off."""
    said = {"socket": f"{TOKEN}.sock", "shm": f"{TOKEN}.shm"}
    for changes, why in (
        ({"torch_version": "2.7.0", "kept": [1]}, "torch 2.7.0 keeps no record of Gloo"),
        ({"kept": [0], "off": "TORCH_FR_BUFFER_SIZE=0"}, "TORCH_FR_BUFFER_SIZE=0"),
        ({"kept": [0]}, None),
    ):
        path = tmp_path / f"{TOKEN}.json"
        path.unlink(missing_ok=True)
        path.write_text(json.dumps(identity(**said, **changes)))
        found = [check.text for check in checks.recorders_check(TapFile.scan(tmp_path))]
        assert len(found) == (why is not None)
        assert all(str(why) in text for text in found)
