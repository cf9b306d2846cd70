"""How the tap knows of a Ctrl-C that the program has handled, in real processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from frd_agent import tap

TAP = Path(tap.__file__)
BEGIN = f"""
    import os, signal, sys
    from importlib.util import module_from_spec, spec_from_file_location
    spec = spec_from_file_location("_frd_tap", {str(TAP)!r})
    tap = sys.modules["_frd_tap"] = module_from_spec(spec)
    spec.loader.exec_module(tap)

    def interrupt():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()
        except KeyboardInterrupt:
            pass

    tap.hear_signals()
"""


def run(program: str) -> str:
    code = textwrap.dedent(BEGIN) + textwrap.dedent(program)
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_a_handled_interrupt_is_known_once() -> None:
    """A program handles a KeyboardInterrupt; its handler stays Python's, and other signals are no
    interrupt."""
    said = run("""
        signal.signal(signal.SIGTERM, lambda *_: None)
        os.kill(os.getpid(), signal.SIGTERM)
        before = tap.interrupted()
        interrupt()
        print(before, tap.interrupted(), tap.interrupted())
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    """)
    assert said == "False True False"


def test_the_pipe_of_another_library_stays() -> None:
    """asyncio's pipe was there first, or takes its place later."""
    said = run("""
        tap.hear_none()
        end = os.pipe2(os.O_NONBLOCK)[1]
        signal.set_wakeup_fd(end)
        tap.hear_signals()
        interrupt()
        tap.hear_none()
        print(tap.interrupted(), signal.set_wakeup_fd(-1) == end)
        tap.hear_signals()
        signal.set_wakeup_fd(end)
        tap.hear_none()
        print(signal.set_wakeup_fd(-1) == end)
    """)
    assert said.split() == ["False", "True", "True"]


def test_a_forked_child_has_no_pipe() -> None:
    """A child that was forked closes all that it does not know; signals write into none of its
    files."""
    said = run("""
        os.register_at_fork(after_in_child=tap._forked)
        if (pid := os.fork()) == 0:
            os._exit(signal.set_wakeup_fd(-1) + 1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), tap.interrupted())
        interrupt()
        print(tap.interrupted())
    """)
    assert said.split() == ["0", "False", "True"]


def test_closed_descriptors_get_no_file_of_the_program(tmp_path: Path) -> None:
    """A program closes all descriptors, opens files, and gets a Ctrl-C."""
    said = run(f"""
        os.closerange(3, 1024)
        files = [open({str(tmp_path)!r} + f"/{{at}}", "wb") for at in range(200)]
        sys.stderr = open(os.devnull, "w")  # Python reports the closed descriptor there
        interrupt()
        print(tap.interrupted(), any(os.path.getsize(one.name) for one in files), flush=True)
        os._exit(0)
    """)
    assert said == "False False"


def test_an_exception_of_a_handler_of_sigterm_hides_none() -> None:
    """SIGTERM arrives in the `finally` of a ValueError, and its handler raises."""
    said = run("""
        def handler(*_):
            raise RuntimeError("terminated")

        def clean_up():
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()

        signal.signal(signal.SIGTERM, handler)
        try:
            try:
                raise ValueError("bad batch")
            finally:
                clean_up()
        except RuntimeError as error:
            ended = error
        try:
            try:
                raise TimeoutError("no message yet")
            except TimeoutError:
                os.kill(os.getpid(), signal.SIGTERM)
                signal.pause()  # before it tries again
        except RuntimeError as error:
            waited = error
        for error in (ended, waited):
            sys.last_type, sys.last_value, sys.last_traceback = type(error), error, None
            print(tap._exit_record(1)["detail"])
        del sys.last_type, sys.last_value, sys.last_traceback
    """)
    assert said.splitlines() == ["ValueError: bad batch", "RuntimeError: terminated"]


def test_an_interrupt_is_published_before_the_end() -> None:
    """A program handles a KeyboardInterrupt, saves its state, and is killed."""
    said = run("""
        rank = object.__new__(tap.Tap)
        rank._interrupted_at, rank._raised = float("-inf"), id(None)
        rank._identity, rank.publish_identity = {}, lambda: print(rank._identity["printed"])
        rank.look_for_end()
        interrupt()
        rank.look_for_end()
        rank.look_for_end()
    """)
    assert len(said.splitlines()) == 1
    assert "'interrupted': True" in said


# -- tap children ----------------------------------------------------------------------------------
# What the tap records of the end of a child of multiprocessing, which prints its exception itself
# or not at all.


PROGRAM = f"""
import multiprocessing, os, signal, sys
from importlib.util import module_from_spec, spec_from_file_location

def load():  # as an import of torch.distributed does
    spec = spec_from_file_location("_frd_tap", {str(Path(tap.__file__))!r})
    module = sys.modules["_frd_tap"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.Stage.close = lambda self: os.write(1, (str(said(module)) + "\\n").encode())
    module.install()

def said(module):
    record = module._exit_record(1)
    line = record["frames"][0][2] if record.get("frames") else ""
    return record["detail"] + " " + line if line else record["detail"] or record["kind"]

if __name__ != "__main__" or sys.argv[1] == "fork":
    load()

def read():
    raise ValueError("bad batch")

def raises():
    read()

def exits():  # as torch.multiprocessing.spawn
    try:
        read()
    except Exception:
        sys.exit(1)

def exits_later():
    try:
        read()
    except Exception:
        pass
    sys.exit(1)

def is_done():
    try:
        read()
    except Exception:
        sys.exit(0)

def terminated():
    def handler(*_):
        sys.exit(143)
    signal.signal(signal.SIGTERM, handler)
    try:
        read()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

def returns():
    pass

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    for way in (raises, exits, exits_later, is_done, terminated, returns):
        child = context.Process(target=way)
        child.start()
        child.join()
"""
READ = "ValueError: bad batch read"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_exception_of_a_child(method: str, tmp_path: Path) -> None:
    """Children end by an exception, by sys.exit while they handle one and after that, by a handler
    of SIGTERM, and by themselves: the record has the exception that ended them, and no other."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-W", "error", str(script), method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:6] == [READ, READ, "clean", "clean", READ, "clean"], done
