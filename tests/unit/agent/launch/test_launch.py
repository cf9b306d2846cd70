"""What `frd-agent exec` reads from a command, and its files in the run directory."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from frd_agent import exec as starter
from frd_agent.inspection.reading import rights
from frd_agent.launch import checks, command_line, commands, runs
from frd_agent.launch.checks import State
from frd_agent.launch.commands import LaunchWatch
from frd_agent.launch.run_lock import Holder, RunLock
from frd_agent.ranks.tap_files import TapFile
from tests.world.daemons import free_address, run_program, until
from tests.world.run_dir import TOKEN, identity

ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.mark.parametrize(
    ("typed", "program"),
    [
        ("torchrun --nproc-per-node 2 train.py --lr 1", "train"),
        ("/opt/venv/bin/torchrun --standalone src/my_train.py", "my_train"),
        ("python -m torch.distributed.run --nnodes 2 train.py", "train"),
        ("python3.11 -u -m pkg.finetune --config a.py", "finetune"),
        ("torchrun -m pkg.finetune", "finetune"),
        ("python -m pkg.__main__", "pkg"),
        ("accelerate launch --num_processes 2 train.py", "train"),
        ("deepspeed --num_gpus 2 train.py --deepspeed", "train"),
        ("numactl -m 0 python train.py", "train"),
        ("srun --label python train.py", "train"),
        ("bash run.sh 1 2", "run"),
        ("./trainer --x", "trainer"),
        ("python - ", "python"),
        ("bash -c 'KEY=secret python train.py'", "train"),
    ],
)
def test_a_job_is_called_by_its_program(typed: str, program: str) -> None:
    """Script or module, whatever launches it, and the user."""
    assert command_line.default_job(shlex.split(typed)) == f"{program}-{ME}"


@pytest.mark.parametrize(
    ("typed", "environ", "whole"),
    [
        ("torchrun --nproc-per-node 2 train.py --nnodes 4", {}, True),
        ("torchrun --standalone train.py", {}, True),
        ("python -m torch.distributed.run --nnodes=1 train.py", {}, True),
        ("torchrun --nnodes 1:1 -m pkg", {}, True),
        ("torchrun --nnodes 2 train.py", {}, False),
        ("torchrun --nnodes=1:4 train.py", {}, False),
        ("torchrun train.py", {"PET_NNODES": "2"}, False),
        ("torchrun train.py", {"SLURM_PROCID": "0"}, False),
        ("python train.py", {}, False),
        ("bash torchrun.sh", {}, False),
    ],
)
def test_only_torchrun_on_one_node_is_a_whole_job(
    typed: str, environ: dict[str, str], whole: bool
) -> None:
    """Anything else may have ranks elsewhere, which must arrive at the same name and number."""
    assert command_line.is_whole_job(typed.split(), environ) is whole


def test_arguments_are_not_repeated() -> None:
    """What the agent logs of a command has no arguments of its: they may hold secrets."""
    typed = ["torchrun", "--nproc-per-node", "2", "train.py", "--key", "hunter2"]
    assert command_line.brief(typed) == "torchrun train.py"
    assert command_line.brief(["python", "-m", "pkg.train", "--key=x"]) == "python pkg.train"
    assert command_line.brief(["bash", "-c", "KEY=secret python src/train.py"]) == (
        "bash src/train.py"
    )
    assert command_line.brief(["env", "A=secret/b.py", "python"]) == "env"
    assert command_line.brief(["run", "s3://key:secret@host/b.py"]) == "run b.py"


def test_reruns_count_and_neighbours_have_other_names(tmp_path: Path) -> None:
    """A run that is over makes the next one a new attempt; one that is alive, a second job, unless
    the user named both the same."""
    code = "import sys; from frd_agent.launch import runs; "
    code += "print(*runs.begin(sys.argv[1], 'train', must_be_free=sys.argv[2] == 'free'), "
    code += "flush=True); sys.stdin.read()"

    def start(how: str = "free") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), how], stdin=-1, stdout=-1, text=True
        )

    def said(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    first = start()
    assert said(first) == "train 0"
    second, third = start(), start("named")
    assert said(second) == "train-2 0"
    assert said(third) == "train 0", "the service reports the conflict"
    for process in (first, second, third):
        process.communicate("")
    fourth = start()
    assert said(fourth) == "train 1"
    fourth.communicate("")


def test_a_month_old_job_is_forgotten(tmp_path: Path) -> None:
    """The folder does not grow for ever."""
    runs.begin(str(tmp_path), "old", must_be_free=True)
    [path] = (tmp_path / "runs").glob("*.json")
    path.write_text(path.read_text().replace(f'"pid":{os.getpid()}', '"pid":1'))
    month_ago = time.time() - 31 * 86_400
    os.utime(path, (month_ago, month_ago))
    runs.begin(str(tmp_path), "new", must_be_free=True)
    assert path not in list((tmp_path / "runs").glob("*.json"))


def test_no_answer_is_no_warning(tmp_path: Path) -> None:
    """A lock file that cannot be opened proves nothing; none at all does."""
    assert "no agent watches this directory yet" in (starter.unwatched(str(tmp_path)) or "")
    (tmp_path / "agent.lock").symlink_to("/nowhere")
    assert starter.unwatched(str(tmp_path)) is None


def test_a_command_waits_for_its_agent(tmp_path: Path) -> None:
    """With --wait-agent it starts when an agent watches, without a warning; and without an agent
    after that time, with one."""
    ours = [sys.executable, "-m", "frd_agent", "exec", "--run-dir", str(tmp_path), "--wait-agent"]
    lock = RunLock(tmp_path, Holder(pid=1))
    with subprocess.Popen([*ours, "60", "--", "true"], stderr=subprocess.PIPE) as waiting:
        until((tmp_path / "dumps").exists)  # just before it looks for the agent
        assert lock.keep(0.0)
        assert waiting.communicate(timeout=30)[1] == b""
    lock.close()
    done = subprocess.run([*ours, "0.1", "--", "false"], capture_output=True, check=False)
    assert done.returncode == 1
    assert b"no agent watches" in done.stderr


def test_commands_that_are_over_leave_nothing(tmp_path: Path) -> None:
    """Their files go, and so do files of a pid that another process has now."""
    path = commands.record(str(tmp_path), ["torchrun", "train.py"])
    assert path.stat().st_mode & 0o777 == 0o600
    [command] = commands.running(str(tmp_path))
    assert (command.pid, command.words) == (os.getpid(), "torchrun train.py")
    path.write_text('{"start_ticks": 1, "words": "x"}')
    assert commands.running(str(tmp_path)) == []
    assert not path.exists()
    (path.parent / "7.json").write_text("{")
    assert commands.running(str(tmp_path)) == []


def test_hostile_files_of_commands_and_runs(tmp_path: Path) -> None:
    """Directories, pipes, links and JSON that is too deep or too large are no commands, cost no
    descriptor, and keep no command from starting."""
    folder = tmp_path / "commands"
    folder.mkdir()
    (folder / "1.json").mkdir()
    os.mkfifo(folder / "2.json")
    (folder / "3.json").symlink_to("/etc/hostname")
    (folder / "4.json").write_text('{"x":' + "[" * 15_000)
    (folder / "5.json").write_text('{"start_ticks": 1e400, "words": ""}')
    before = len(os.listdir("/proc/self/fd"))
    assert [commands.running(str(tmp_path)) for _ in range(3)] == [[], [], []]
    assert len(os.listdir("/proc/self/fd")) == before

    os.mkfifo(folder / f".{os.getpid()}.tmp")
    commands.record(str(tmp_path), ["python", "tr\udcffain.py"])
    assert [command.words for command in commands.running(str(tmp_path))] == ["python tr?ain.py"]

    assert runs.begin(str(tmp_path), "train", must_be_free=True) == ("train", 0)
    (written,) = (tmp_path / "runs").glob("*.json")
    written.unlink()
    os.mkfifo(written)
    os.mkfifo(written.with_suffix(".tmp"))
    assert runs.begin(str(tmp_path), "train", must_be_free=True) == ("train", 0)


def test_a_process_tree_is_found() -> None:
    """Children of children too; nothing in it has loaded torch."""
    child = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=-1, text=True)
    try:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        command = commands.Command(0, "pytest", os.getpid())
        tree, _ = commands.untapped(command, 0.0)
        assert {os.getpid(), child.pid, grandchild} <= tree
        below_sh = commands.Command(0, "sh", child.pid)
        assert commands.untapped(below_sh, 0.0) == ({child.pid, grandchild}, [])
    finally:
        child.kill()
        os.kill(grandchild, 9)
        child.communicate()


def test_a_command_whose_rank_is_watched_is_settled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank anywhere below the command is enough; without one, torch that runs without a tap is
    logged once, and a reason to be blind until there is a rank."""
    commands.record(str(tmp_path), ["torchrun", "train.py"])
    found = [commands.Untapped(7, "python train.py")]
    monkeypatch.setattr(commands, "untapped", lambda command, _grace_s: ({command.pid}, found))
    watched, blind = LaunchWatch(tmp_path, set), LaunchWatch(tmp_path, set)
    watched._check(commands.running(str(tmp_path)), {os.getpid()})
    assert caplog.text == ""
    blind._check(commands.running(str(tmp_path)), {1})
    assert "pid 7 (python train.py), started by `frd-agent exec -- torchrun" in caplog.text
    assert watched._settled != blind._settled == set()
    assert not watched.warnings
    (text,) = blind.warnings.values()
    blind._check(commands.running(str(tmp_path)), {1})
    assert caplog.text.count(text) == 1
    blind._check(commands.running(str(tmp_path)), {os.getpid()})
    assert watched._settled == blind._settled
    assert not blind.warnings


async def test_between_two_looks_for_commands_the_agent_sleeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was started: the next look is seconds later."""
    sleep = AsyncMock(side_effect=asyncio.CancelledError)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await LaunchWatch(tmp_path, set).run()
    assert sleep.call_args.args[0] > 4.0


# -- doctor ----------------------------------------------------------------------------------------
# What `frd doctor` and `frd-agent exec --check` conclude, on real interpreters without torch.


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
