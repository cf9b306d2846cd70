"""How the tap gets into a process, and what it does first: real interpreters, none of them with
torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import frd_agent
from frd.errors import FrdError
from frd_agent import tap
from frd_agent.exec import environment, exec_command
from frd_agent.launch.run_lock import Holder, RunLock
from tests.world import daemons
from tests.world.c_library import shared_library
from tests.world.daemons import run_program
from tests.world.interpreters import interpreter

PACKAGE = Path(frd_agent.__file__).parent
SITE = PACKAGE / "_site"
EXEC = "import sys; from frd_agent.exec import exec_command; exec_command(sys.argv[1:])"


def python(code: str, *path: Path, executable: str = sys.executable) -> str:
    """What an interpreter prints that has `path` in PYTHONPATH."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env |= {"PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONDONTWRITEBYTECODE": "1"}
    done = run_program([executable, "-c", code], env=env)
    return done.stdout + done.stderr


LOADED = """
import os, sys
tap = sys.modules.get("_frd_tap")
print(len(os.listdir("/proc/self/task")), tap is not None and tap._installed_pid == os.getpid())
"""


def test_without_torch_nothing_is_there() -> None:
    """No thread, no tap, no import, no trace in sys.path."""
    code = "import sys; print('_frd_tap' in sys.modules, 'threading' in sys.modules)"
    code += "; print([p for p in sys.path if 'frd_agent' in p])"
    assert python(code, SITE).split() == ["False", "False", "[]"]


@pytest.mark.parametrize("is_there", [False, True])
def test_a_program_that_tries_to_import_trio(
    is_there: bool, fake_torch: Path, tmp_path: Path
) -> None:
    """trio warns if signals already go into a pipe, so the tap gives its own up; not to a library
    that only looks whether trio is installed."""
    if is_there:
        (tmp_path / "trio").mkdir()
        (tmp_path / "trio/__init__.py").write_text("import trio._core")
        (tmp_path / "trio/_core.py").touch()
    code = """
import torch.distributed, signal
try:
    import trio
except ImportError:
    pass
print(signal.set_wakeup_fd(-1) != -1)
"""
    assert python(code, SITE, fake_torch, tmp_path).strip() == str(not is_there)


WATCHED = "2 True"
"""The thread of the program and the tap's."""
INSTALLED = (PACKAGE.parent / "frd_tap.pth").read_text()


def isolated(code: str, fake_torch: Path, run_dir: str | None, *options: str) -> str:
    """What an interpreter prints that has frd and `fake_torch` installed, and no PYTHONPATH."""
    start = f"import sys; sys.path[:0] = [{str(PACKAGE.parent)!r}, {str(fake_torch)!r}]\n"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "FRD_"))}
    env |= {"PYTHONPATH": "/opt/mine"} | ({"FRD_RUN_DIR": run_dir} if run_dir else {})
    done = run_program([sys.executable, *options, "-c", start + INSTALLED + code], env=env)
    return done.stdout + done.stderr


@pytest.mark.parametrize("options", [(), ("-E",), ("-I",)])
def test_an_installed_frd_needs_no_pythonpath(fake_torch: Path, options: tuple[str, ...]) -> None:
    """Where frd is installed, site starts the tap: once, and only below a run directory."""
    code = f"import torch.distributed\n{LOADED}"
    assert isolated(code, fake_torch, "/run/x", *options).strip() == WATCHED
    twice = code.replace("import torch", f"{INSTALLED.strip()}\nimport torch")
    assert isolated(twice, fake_torch, "/run/x").strip() == WATCHED
    nothing = "print(any('frd' in name for name in sys.modules), len(sys.meta_path))"
    without = isolated(nothing, fake_torch, None)
    assert without.split()[0] == "False"


@pytest.mark.parametrize("first", ["tap", "torch"])
def test_a_program_that_starts_the_tap_itself(fake_torch: Path, first: str) -> None:
    """It still has one tap, where site starts it as well: before its own call, or after."""
    calls = ["import frd_agent.tap; frd_agent.tap.install()", "import torch.distributed"]
    code = "\n".join([*(calls if first == "tap" else reversed(calls)), LOADED])
    assert isolated(code, fake_torch, "/run/x").strip() == WATCHED


def test_half_an_installation_is_no_error(fake_torch: Path) -> None:
    """The line of the .pth file outlives the package: nothing is printed."""
    code = f"import os, sys; sys.path.insert(0, {str(fake_torch)!r}); sys.path_hooks.clear()\n"
    code += "sys.path_importer_cache.clear(); sys.meta_path.clear()\n"
    env = os.environ | {"FRD_RUN_DIR": "/run/x"}
    done = run_program(
        [sys.executable, "-S", "-c", code + INSTALLED + "print('on')"], env=env, check=True
    )
    assert (done.stdout, done.stderr) == ("on\n", "")


def test_the_installed_file_is_in_this_environment() -> None:
    """The development environment has it too, so that tests with real ranks try it."""
    assert any((Path(p) / "frd_tap.pth").is_file() for p in sys.path)


@pytest.mark.parametrize(
    ("version", "dropped"),
    [("2.13.0+cpu", True), ("2.10.1", True), ("2.9.0", False), ("10.0", True), ("", False)],
)
def test_the_name_that_this_torch_complains_about_is_dropped(
    version: str, dropped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where the present name says the same; what the user set under the old name stays."""
    monkeypatch.setitem(sys.modules, "torch.version", SimpleNamespace(__version__=version))
    both = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
    tap.settle_variables(both)
    assert ("TORCH_NCCL_TRACE_BUFFER_SIZE" not in both) is dropped
    assert both["TORCH_FR_BUFFER_SIZE"] == "2000"
    own = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "50"}
    tap.settle_variables(own)
    assert own == {"TORCH_NCCL_TRACE_BUFFER_SIZE": "50"}
    differ = {"TORCH_FR_BUFFER_SIZE": "9", "TORCH_NCCL_TRACE_BUFFER_SIZE": "50"}
    tap.settle_variables(differ)
    assert len(differ) == 2


def test_what_multiprocessing_forks_is_watched(fake_torch: Path) -> None:
    """The import of torch.distributed starts the one thread, and frd itself is not imported. A
    forked process may become a rank. A data loader's worker never does, and a child of a plain fork
    must stay single-threaded."""
    code = """
import multiprocessing, os, sys, warnings
warnings.simplefilter("ignore")
import torch.distributed
assert "frd_agent" not in sys.modules

def names():
    print(len(os.listdir("/proc/self/task")), flush=True)

def load():
    names()

load.__module__ = "torch.utils.data._utils.worker"
fork = multiprocessing.get_context("fork")
for target in (names, load):
    child = fork.Process(target=target)
    child.start()
    child.join()
if os.fork() == 0:
    names()
    os._exit(0)
os.wait()
"""
    alone, watched = "1", "2"
    assert python(code, SITE, fake_torch).splitlines() == [watched, alone, alone]


def test_python_39_takes_it(fake_torch: Path) -> None:
    """The oldest supported Python, without frd or its dependencies."""
    code = f"import torch.distributed\n{LOADED}"
    said = python(code, SITE, fake_torch, executable=interpreter("3.9"))
    assert said.strip() == WATCHED


def test_a_tap_that_cannot_be_loaded_is_one_line(fake_torch: Path, tmp_path: Path) -> None:
    """Half an installation: torch is imported nevertheless."""
    lone = tmp_path / "agent" / "_site"
    shutil.copytree(SITE, lone, ignore=shutil.ignore_patterns("__pycache__"))
    said = python("import torch.distributed; print('on')", lone, fake_torch).splitlines()
    assert "on" in said
    assert [line for line in said if line.startswith("frd: warning: tap: ")]
    assert len(said) == 2


def test_a_handler_of_the_program_raises_in_the_program(fake_torch: Path) -> None:
    """A signal comes while the tap is loaded, and its handler raises: the import is left with that
    exception, as it is without the tap. It is not taken for an error of the tap."""
    code = """
import os, signal, sys

def times_out(*_):
    raise TimeoutError

def hook(event, args):
    if event == "open" and str(args[0]).endswith(("tap.py", "tap.cpython-311.pyc")):
        os.kill(os.getpid(), signal.SIGALRM)

signal.signal(signal.SIGALRM, times_out)
sys.addaudithook(hook)
try:
    import torch.distributed
except TimeoutError:
    print("raised", signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
    assert python(code, SITE, fake_torch) == "raised set()\n"


def test_a_warning_into_a_broken_pipe(fake_torch: Path, tmp_path: Path) -> None:
    """No process reads stderr any more, and the program has the default action for SIGPIPE, which
    would end it: the tap, which cannot be loaded, warns in vain."""
    lone = tmp_path / "agent" / "_site"
    shutil.copytree(SITE, lone, ignore=shutil.ignore_patterns("__pycache__"))
    code = "import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
    code += "import torch.distributed; print('on', flush=True)"
    ours, theirs = os.pipe()
    os.close(ours)
    path = os.pathsep.join(map(str, (lone, fake_torch)))
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    )
    os.close(theirs)
    assert (process.communicate(timeout=30)[0], process.returncode) == ("on\n", 0)


@pytest.mark.parametrize(
    "shadowed",
    ["print('theirs')", "raise RuntimeError('theirs')", "import no_such_module", None],
)
def test_a_shadowed_sitecustomize_is_imported(tmp_path: Path, shadowed: str | None) -> None:
    """What it prints, raises or sets is what it would without the tap."""
    other = tmp_path / "other"
    other.mkdir()
    if shadowed is not None:
        (other / "sitecustomize.py").write_text(shadowed)
    code = "import sys; m = sys.modules.get('sitecustomize')"
    code += f"; print(sys.path, getattr(m, '__file__', '').startswith({str(other)!r}))"
    without = python(code, other)
    assert python(code, SITE, other) == without


def test_exec_leaves_what_the_user_has_set(tmp_path: Path) -> None:
    """Of two names for one setting, the user's choice goes to both."""
    base = {
        "PYTHONPATH": f"mine:{SITE}::yours",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "50",
        "TORCH_FR_DUMP_TEMP_FILE": "/elsewhere/r",
    }
    env = environment(base, str(tmp_path / "run"))
    assert env["PYTHONPATH"].split(":") == [str(SITE), "mine", "", "yours"]
    assert env["TORCH_FR_BUFFER_SIZE"] == env["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "50"
    assert env["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == "/elsewhere/r"
    assert "TORCH_NCCL_ENABLE_TIMING" not in env
    assert "FRD_JOB" not in env


def test_exec_sets_what_the_user_has_not(tmp_path: Path) -> None:
    """Ring, dump files in the run directory, timing and job on request."""
    run_dir = tmp_path / "run"
    env = environment({}, str(run_dir), timing=True, job="j")
    assert env["PYTHONPATH"] == str(SITE)
    assert env["TORCH_FR_BUFFER_SIZE"] == env["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    assert env["TORCH_FR_DUMP_TEMP_FILE"] == str(run_dir / "dumps" / "rank_")
    assert (run_dir / "dumps").stat().st_mode & 0o777 == 0o700
    assert (env["TORCH_NCCL_ENABLE_TIMING"], env["FRD_JOB"]) == ("1", "j")
    assert env["FRD_RUN_DIR"] == str(run_dir)


def test_exec_becomes_the_command(tmp_path: Path) -> None:
    """Same pid, its exit code, its standard streams, and SIGPIPE as in any shell."""
    script = "echo $$; yes | head -n 1; echo ${PIPESTATUS[0]}; exit 7"
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    agent = RunLock(run_dir, Holder())
    assert agent.keep(0.0)
    process = subprocess.Popen(
        [sys.executable, "-c", EXEC, "bash", "-c", script],
        env=os.environ | {"FRD_RUN_DIR": str(run_dir)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    stdout, stderr = process.communicate(timeout=30)
    agent.close()
    assert stdout.split() == [str(process.pid), "y", "141"]
    assert (process.returncode, stderr) == (7, "")


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    """The error names it; nothing was started."""
    with pytest.raises(FrdError, match=r"exec: no command"):
        exec_command([])
    done = run_program(
        [sys.executable, "-c", EXEC, "/no/such/program"],
        env=os.environ | {"FRD_RUN_DIR": str(tmp_path / "run")},
    )
    assert "FrdError: exec: '/no/such/program': No such file" in done.stderr


# -- exec --allow-ptrace ------------------------------------------------------------------------


PRCTL = Path(__file__).parents[3] / "yama" / "prctl.c"
"""No kernel with Yama is here: this `prctl` of the C library notes its calls."""
ANY = -1
PROCESSES = """
import multiprocessing, os, subprocess, sys, time
import torch.distributed

def say(name):
    print(name, os.getpid(), flush=True)

say("program")
if (pid := os.fork()) == 0:
    say("fork")
    os._exit(0)
os.waitpid(pid, 0)
child = multiprocessing.get_context("fork").Process(target=say, args=("multiprocessing",))
child.start()
child.join()
for name, module in (("ranks", "torch.distributed"), ("other", "json")):
    code = f"import os, {module}; print('{name}', os.getpid(), flush=True)"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return shared_library(PRCTL, tmp_path_factory.mktemp("yama") / "prctl.so")


def calls(
    folder: Path, library: str, *options: str, **env: str
) -> tuple[dict[str, int], list[str]]:
    """The job's processes by name, and the lines of its calls."""
    command = daemons.exec_command(folder / "run", sys.executable, "-c", PROCESSES)
    command[command.index("exec") + 1 : command.index("exec") + 1] = options
    python_path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    given = {"LD_PRELOAD": library, "PTRACERS": str(folder / "calls"), "PYTHONPATH": python_path}
    done = run_program(command, env=os.environ | given | env)
    warnings = [line for line in done.stderr.splitlines() if "no agent watches" not in line]
    assert (done.returncode, warnings) == (0, [])
    processes = {name: int(pid) for name, pid in re.findall(r"^(\w+) (\d+)$", done.stdout, re.M)}
    assert len(processes) == 5
    noted = folder / "calls"
    return processes, noted.read_text().splitlines() if noted.exists() else []


def test_each_process_of_the_job_asks_for_itself(fake_torch: Path, library: str) -> None:
    """The program, its forked children and a program that it starts, once each, for any reader; a
    Python that never imports torch.distributed does not. That the kernel refuses is no word."""
    processes, noted = calls(fake_torch, library, "--allow-ptrace")
    other = processes.pop("other")
    assert noted == [f"{pid} {ANY}" for pid in processes.values()]
    assert not [line for line in noted if line.startswith(f"{other} ")]


@pytest.mark.parametrize(
    ("env", "asked"),
    [({"FRD_ALLOW_PTRACE": "1"}, 4), ({"FRD_ALLOW_PTRACE": "0"}, 0), ({}, 0)],
    ids=["set in a pod", "another value", "by default"],
)
def test_the_variable_of_a_pod(
    fake_torch: Path, library: str, env: dict[str, str], asked: int
) -> None:
    """Where no exec is typed, FRD_ALLOW_PTRACE=1 is set; otherwise no process is opened."""
    assert len(calls(fake_torch, library, **env)[1]) == asked
