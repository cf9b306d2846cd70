"""What the tap sees of the main thread, and when it publishes a stage."""

from __future__ import annotations

import json
import os
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from frd_agent import tap

LAUNCHED = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "2",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "9",
}
C10D = "/site-packages/torch/distributed/distributed_c10d.py"


def function(name: str, file: str, calls: Callable[[], None]) -> Callable[[], None]:
    """A function of that name in a module of that file."""

    def body() -> None:
        calls()

    body.__code__ = body.__code__.replace(co_name=name, co_filename=file)
    return body


def code(name: str, file: str) -> CodeType:
    return function(name, file, lambda: None).__code__


INSIDE = [code("_store_based_barrier", C10D), code("init_process_group", C10D)]
OUTSIDE = [code("load_model", "train.py"), code("main", "train.py")]


def seen_inside(*functions: tuple[str, str]) -> tuple[str, list[str]]:
    """The stage and the functions that a thread sees while the main thread is in these calls."""
    found: list[tuple[str, list[str]]] = []

    def look() -> None:
        codes = tap.of_main_thread("f_code")
        found.append((tap.stage_in(codes), [code.co_name for code in codes]))

    def wait() -> None:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    calls = wait
    for name, file in reversed(functions):
        calls = function(name, file, calls)
    calls()
    (one,) = found
    return one


def test_the_stage_of_the_main_thread() -> None:
    """The innermost function of torch that waits for others counts; one of the same name in a
    user's module does not. Of a program that recurses, only the innermost frames are looked at."""
    stage, names = seen_inside(("main", "a.py"), ("init_process_group", C10D), ("barrier", C10D))
    assert stage == "init_process_group"
    assert names[names.index("barrier") :][:3] == ["barrier", "init_process_group", "main"]
    assert seen_inside(("new_group", C10D), ("_new_group_with_tag", C10D))[0] == "new_group"
    assert seen_inside(("init_process_group", "mine.py"))[0] == ""
    assert seen_inside(("all_reduce", C10D))[0] == ""
    assert len(seen_inside(*[("deeper", "a.py")] * 300)[1]) == tap.MAX_DEPTH


class Owned:
    """An object of the program that notes the thread that destroys it."""

    ended_on: list[int] = []  # noqa: RUF012 -- of all objects

    def __del__(self) -> None:
        self.ended_on.append(threading.get_ident())


def test_no_object_of_the_program_is_destroyed_by_the_tap() -> None:
    """The main thread calls and returns all the time while another walks its frames, and switches
    come as often as they can: what a frame owned ends on the main thread."""
    done, walks = threading.Event(), 0

    def walk() -> None:
        nonlocal walks
        while not done.is_set():
            tap.of_main_thread("f_code", "f_lineno")
            walks += 1

    def work(depth: int) -> Owned:
        mine = Owned()
        return work(depth - 1) if depth else mine

    interval, walker = sys.getswitchinterval(), threading.Thread(target=walk)
    sys.setswitchinterval(1e-6)
    try:
        walker.start()
        while walks < 2_000:
            work(20)
    finally:
        sys.setswitchinterval(interval)
        done.set()
        walker.join()
    assert set(Owned.ended_on) == {threading.main_thread().ident}
    Owned.ended_on.clear()


@pytest.mark.parametrize(
    ("changes", "launch"),
    [
        ({}, (2, 4)),
        ({"LOCAL_RANK": ""}, (2, 4)),
        ({"RANK": "4"}, None),
        ({"RANK": "-1"}, None),
        ({"WORLD_SIZE": "many"}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"MASTER_ADDR": ""}, None),
        ({"MASTER_PORT": ""}, None),
    ],
)
def test_what_an_environment_says(changes: dict[str, str], launch: tuple[int, int] | None) -> None:
    """Only one with all that init_process_group reads names a rank, and only one among others."""
    assert tap.launch_of(LAUNCHED | changes) == launch


class Process:
    """A process under a tap: its environment, its stack and its clock."""

    def __init__(self, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run_dir = run_dir
        self.now_s = 1_000.0
        self.codes = OUTSIDE
        self.environ = LAUNCHED | {"FRD_RUN_DIR": str(run_dir), "FRD_JOB": "train"}
        clock = {"monotonic": lambda: self.now_s, "time_ns": lambda: round(self.now_s * 1e9)}
        monkeypatch.setattr(tap, "time", SimpleNamespace(**clock))
        monkeypatch.setattr(tap, "of_main_thread", self._frames)

    def _frames(self, *attributes: str, ident: int | None = None) -> list[Any]:
        if len(attributes) == 1:
            return list(self.codes)
        return [(code, code.co_firstlineno) for code in self.codes]

    def stage(self, *, is_forked: bool = False) -> tap.Stage:
        return tap.Stage(self.environ, is_forked=is_forked)

    def is_published(self) -> bool:
        return any(self.run_dir.iterdir())

    def published(self) -> dict[str, Any]:
        """The stage file, the only file that is there."""
        (path,) = self.run_dir.iterdir()
        read: dict[str, Any] = json.loads(path.read_text())
        assert path.name == f"{read['token']}.stage"
        return read


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(tmp_path, monkeypatch)


def test_an_ordinary_initialization_writes_nothing(process: Process) -> None:
    """A process imports, waits four seconds in init_process_group and has its groups."""
    stage = process.stage()
    stage.look_at_no_rank()
    process.now_s += 4
    process.codes = INSIDE
    stage.look_at_no_rank()
    process.now_s += 4
    stage.look_at_no_rank()
    process.codes = OUTSIDE
    stage.end()
    stage.close()
    assert not process.is_published()


def test_a_process_on_its_way_to_be_a_rank(process: Process) -> None:
    """It loads a model for some time, then waits in init_process_group, then has its groups."""
    stage = process.stage()
    process.now_s += 5
    stage.look_at_no_rank()
    first = process.published()
    assert (first["op"], first["since_ns"], first["as_of_ns"]) == ("", 1_000 * 10**9, 1_005 * 10**9)
    assert first["frames"][0][::2] == ["train.py", "load_model"]
    claim = first["claim"]
    assert (claim["job"], claim["run"], claim["rank"]) == ("train", "n1:9", 2)
    assert (claim["pid"], claim["attempt"], claim["groups"]) == (os.getpid(), 0, [])

    process.now_s += 1
    process.codes = INSIDE
    stage.look_at_no_rank()
    inside = process.published()
    assert (inside["op"], inside["since_ns"]) == ("init_process_group", 1_006 * 10**9)
    process.now_s += 1
    stage.look_at_no_rank()
    assert process.published() == inside
    process.now_s += tap.STAGE_EVERY_S
    stage.look_at_no_rank()
    again = process.published()
    assert (again["since_ns"], again["as_of_ns"]) == (1_006 * 10**9, 1_010 * 10**9)
    stage.end()
    assert not process.is_published()


def test_a_rank_whose_counters_rest(process: Process) -> None:
    """It is published at the first look and once a second, without a claim, and with the processor
    time of the thread. Its stage begins again in another call, and ends when the rank moves."""
    stage = process.stage()
    process.now_s += 60
    process.codes = [code("new_group", C10D), *OUTSIDE]
    stage.look_at_rank()
    first = process.published()
    assert (first["op"], first["claim"], first["since_ns"]) == ("new_group", None, 1_060 * 10**9)
    assert first["frames"][0][2] == "new_group"
    assert 0 < first["ran_ns"] <= (tap.ran_ns(os.getpid()) or 0)
    process.now_s += tap.TICK_S
    stage.look_at_rank()
    assert process.published() == first
    process.now_s += tap.LOOK_EVERY_S
    process.codes = OUTSIDE
    stage.look_at_rank()
    then = process.published()
    assert (then["op"], then["since_ns"], then["as_of_ns"]) == ("", *[round(1_061.2 * 1e9)] * 2)
    stage.end()
    assert not process.is_published()
    process.now_s += 60
    stage.look_at_rank()
    assert process.published()["since_ns"] == round(1_121.2 * 1e9)
    stage.close()
    assert not process.is_published()


def test_a_process_that_was_published_before_it_was_a_rank(process: Process) -> None:
    """At its first rest as a rank its claim is gone, so that its exit record is not the stage's."""
    stage = process.stage()
    process.now_s += 5
    stage.look_at_no_rank()
    stage.look_at_rank()
    published = process.published()
    assert (published["claim"], published["since_ns"]) == (None, 1_005 * 10**9)
    stage.close()
    assert not process.is_published()


def test_a_stage_that_cannot_be_removed(process: Process) -> None:
    """It is tried again: the rank moves, and its file must not say that it rests."""
    stage = process.stage()
    stage.look_at_rank()
    (path,) = process.run_dir.iterdir()
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match=path.name):
        stage.end()
    path.rmdir()
    path.touch()
    stage.end()
    assert not process.is_published()


def test_a_look_that_cannot_be_written(process: Process, tmp_path: Path) -> None:
    """The agent watches this rank; of a process on its way to be one it knows nothing, so word is
    left for it. Nothing else stays in the directory."""
    process.run_dir = tmp_path / "run"
    process.environ["FRD_RUN_DIR"] = str(process.run_dir)
    stage = process.stage()
    stage.look_at_rank()
    (path,) = process.run_dir.iterdir()
    path.unlink()
    path.mkdir()
    process.now_s += tap.LOOK_EVERY_S
    with pytest.raises(IsADirectoryError):
        stage.look_at_rank()
    assert [one.name for one in process.run_dir.iterdir()] == [path.name]
    process.run_dir.chmod(0o777)
    process.now_s += tap.LOOK_EVERY_S
    with pytest.raises(PermissionError):
        stage.look_at_rank()
    assert not list(tmp_path.glob("refused.*"))
    stage = process.stage()
    process.now_s += 5
    with pytest.raises(PermissionError):
        stage.look_at_no_rank()
    assert list(tmp_path.glob("refused.*"))


@pytest.mark.parametrize("is_rank", [True, False])
def test_no_code_of_the_program_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_rank: bool
) -> None:
    """A function that is deleted after a look ends on the program's own thread, not at the next
    look of the tap."""
    process = Process(tmp_path, monkeypatch)
    stage = process.stage()
    process.now_s += 5
    for _ in range(2):  # written, and not due again
        process.codes = [code("cell", "notebook.py")]
        kept = weakref.ref(process.codes[0])
        (stage.look_at_rank if is_rank else stage.look_at_no_rank)()
        process.codes = []
        assert kept() is None


def test_the_thread_that_runs_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray runs it in a thread; the processor time of that is what counts. Without Ray no thread
    but the main one is walked."""
    done, began = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        done.wait()

    file = "/site-packages/ray/train/v2/_internal/execution/worker_group/thread_runner.py"
    thread = threading.Thread(target=function("_run_target", file, wait))
    assert tap.program_thread() == (None, os.getpid())
    thread.start()
    try:
        began.wait()
        assert tap.program_thread() == (None, os.getpid())
        monkeypatch.setitem(sys.modules, "ray", tap)
        ident, task = tap.program_thread()
        assert (ident, task) == (thread.ident, thread.native_id)
        assert 0 < (tap.ran_ns(task) or 0) < 10**9
    finally:
        done.set()
        thread.join()
    assert tap.ran_ns(0) is None


def test_how_often_the_thread_of_the_program_is_looked_for(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To walk all threads takes long where there are hundreds: it is done at the first two looks at
    the same threads."""
    found = []

    def find() -> tuple[int | None, int]:
        found.append(process.now_s)
        return None, os.getpid()

    monkeypatch.setattr(tap, "program_thread", find)
    stage = process.stage()

    def look(times: int) -> int:
        before = len(found)
        for _ in range(times):
            process.now_s += tap.LOOK_EVERY_S
            stage.look_at_rank()
        return len(found) - before

    assert look(5) == 2
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert look(5) == 2
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("why", ["launcher", "forked", "no local rank", "no stack"])
def test_who_does_not_claim_a_rank(process: Process, why: str) -> None:
    """A launcher whose environment names a rank, a forked helper, a process that no launcher of
    ranks has started, one whose stack cannot be read: outside of init_process_group, none of them
    is published."""
    if why == "launcher":
        process.codes = [*OUTSIDE, code("main", "/site-packages/torch/distributed/run.py")]
    if why == "no local rank":
        del process.environ["LOCAL_RANK"]
    if why == "no stack":
        process.codes = []
    stage = process.stage(is_forked=why == "forked")
    for _ in range(3):
        process.now_s += 30
        stage.look_at_no_rank()
    assert not process.is_published()


def test_an_end_before_the_first_group(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """A published process raises before it is a rank: its exit record stays for the agent."""
    stage = process.stage()
    process.now_s += 5
    stage.look_at_no_rank()
    monkeypatch.setattr(sys, "last_type", FileNotFoundError, raising=False)
    monkeypatch.setattr(sys, "last_value", FileNotFoundError("no model"), raising=False)
    monkeypatch.setattr(sys, "last_traceback", None, raising=False)
    stage.close()
    published = process.published()
    assert published["exit"]["detail"] == "FileNotFoundError: no model"


def test_a_rank_that_changes(process: Process) -> None:
    """The program sets another rank in its environment, and then removes it."""
    stage = process.stage()
    process.now_s += 5
    stage.look_at_no_rank()
    process.environ["RANK"] = "3"
    process.now_s += tap.STAGE_EVERY_S
    stage.look_at_no_rank()
    published = process.published()
    assert published["claim"]["rank"] == 3
    del process.environ["RANK"]
    stage.look_at_no_rank()
    assert not process.is_published()


def test_process_groups_without_init_process_group(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only process of its launch is published once threads of a process group run; before, it
    waits for no rank."""
    process.environ |= {"RANK": "0", "WORLD_SIZE": "1"}
    stage = process.stage()
    process.now_s += 60
    stage.look_at_no_rank()
    assert not process.is_published()
    monkeypatch.setattr(tap, "has_groups", lambda: True)
    process.now_s += 5
    stage.look_at_no_rank()
    assert process.published()["has_groups"] is True


def test_threads_of_process_groups() -> None:
    """Those of Gloo and NCCL have names in the kernel, and torchft's has one in Python."""
    done = threading.Event()

    def run(name: bytes) -> None:
        Path("/proc/thread-self/comm").write_bytes(name)
        done.wait()

    for name, comm, found in (("a", b"mine", False), ("b", b"pt_gloo_runloop", True)):
        thread = threading.Thread(target=run, args=(comm,), name=name)
        thread.start()
        try:
            task = Path(f"/proc/self/task/{thread.native_id}/comm")
            while task.read_bytes().strip() != comm:
                pass
            assert tap.has_groups() is found
        finally:
            done.set()
            thread.join()
            done.clear()
    thread = threading.Thread(target=done.wait, name="async_quorum_0")
    thread.start()
    assert tap.has_groups()
    done.set()
    thread.join()
