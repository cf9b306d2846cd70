"""Phases of a program: what `frd_agent.phase` keeps, and what the tap publishes of it."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import frd_agent
from frd_agent import phase, phases, tap
from frd_agent.counters import Counters
from frd_agent.node_time import NodeTime
from frd_agent.ranks.tap_files import PhaseReader
from tests.unit.agent.tap.test_tap_start import python
from tests.unit.agent.tap.test_tap_world import World
from tests.world.daemons import until

MAIN = threading.main_thread().ident or 0
S = 1_000_000_000


class Clock:
    """Time of the program, which passes only when a test says so."""

    def __init__(self) -> None:
        self.ns = 1_700_000_000 * S

    def __call__(self) -> int:
        return self.ns

    def passes(self, seconds: float) -> None:
        self.ns += round(seconds * S)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """A process with a tap and no phase yet."""
    monkeypatch.setitem(sys.modules, "_frd_tap", tap)
    clock = Clock()
    monkeypatch.setattr(phases, "_time_ns", clock)
    phases._forget()
    yield clock
    phases._forget()


def opened(main: int = MAIN) -> list[tuple[str, ...]]:
    return [path for path, _, until_ns in phases.read(main) if not until_ns]


def ended(main: int = MAIN) -> list[tuple[str, ...]]:
    return [path for path, _, until_ns in phases.read(main) if until_ns]


# -- what a program may do ---------------------------------------------------------------------


def test_phases_inside_each_other(clock: Clock) -> None:
    """Eval inside epoch 3: both are open with their own beginnings, and end one after the other."""
    began = clock.ns
    with phase("epoch 3"):
        clock.passes(10)
        with phase("eval"):
            clock.passes(2)
            assert phases.read(MAIN) == [
                (("epoch 3",), began, 0),
                (("epoch 3", "eval"), began + 10 * S, 0),
            ]
        assert phases.read(MAIN) == [
            (("epoch 3", "eval"), began + 10 * S, began + 12 * S),
            (("epoch 3",), began, 0),
        ]
    assert ended() == [("epoch 3", "eval"), ("epoch 3",)]


def test_phases_that_change_fast_are_not_read(clock: Clock) -> None:
    """A thousand steps a second inside an epoch: only the epoch is there to be published."""
    with phase("epoch"):
        for _ in range(1_000):
            with phase("step"):
                clock.passes(0.001)
                assert ("epoch", "step") not in opened()
        assert [path for path, *_ in phases.read(MAIN)] == [("epoch",)]


def test_a_decorator(clock: Clock) -> None:
    """Each call is a phase, of a recursive function too; name and result are the function's own."""

    @phase("fit")
    def fit(depth: int) -> list[tuple[str, ...]]:
        """Fits."""
        clock.passes(1)
        return fit(depth - 1) if depth else opened()

    assert fit(2) == [("fit",), ("fit", "fit"), ("fit", "fit", "fit")]
    assert (fit.__name__, fit.__doc__) == ("fit", "Fits.")
    assert opened() == []


def test_an_async_function(clock: Clock) -> None:
    """The phase lasts until the coroutine is over, not until it is created. Without parentheses the
    decorator gives the phase the name of the function."""

    @phase
    async def load() -> list[tuple[str, ...]]:
        await asyncio.sleep(0)
        clock.passes(1)
        return opened()

    assert asyncio.run(load()) == [("load",)]
    assert opened() == []


def test_tasks_that_take_turns(clock: Clock) -> None:
    """A and B begin in this order and end in this order: B goes on without A."""
    first, second = phase("a"), phase("b")
    with first:
        second.__enter__()
        clock.passes(1)
        assert opened() == [("a",), ("a", "b")]
    assert opened() == [("b",)]
    second.__exit__(None, None, None)
    assert opened() == []


def test_an_exception_ends_the_phase_and_passes(clock: Clock) -> None:
    """The program's own error comes out as it is."""

    @phase("eval")
    def evaluate() -> None:
        clock.passes(1)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        evaluate()
    assert (opened(), ended()) == ([], [("eval",)])


class Odd:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (3, "3"),
        (None, "None"),
        (Odd(), "Odd"),
        ("x" * 10_000, "x" * 64),
        ("a\nb\0", "a\nb\0"),
        ("", ""),
        (b"eval", "b'eval'"),
    ],
)
def test_odd_names(clock: Clock, name: object, shown: str) -> None:
    """Whatever a program passes as a name, it runs on."""
    with phase(name):
        clock.passes(1)
        assert opened() == [(shown,)]


@contextmanager
def threads_in(one: AbstractContextManager[object], count: int = 1) -> Iterator[None]:
    """So many threads are in this phase."""
    inside, leave = threading.Semaphore(0), threading.Event()

    def work() -> None:
        with one:
            inside.release()
            leave.wait(60)

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        assert all(inside.acquire(timeout=60) for _ in threads)
        yield
    finally:
        leave.set()
        for thread in threads:
            thread.join()


def test_other_threads(clock: Clock) -> None:
    """The main thread's phase is the rank's; while it has had none, another thread's counts."""
    with threads_in(phase("prefetch")):
        clock.passes(1)
        assert opened() == [("prefetch",)]
        with phase("train"):
            clock.passes(1)
            assert opened() == [("train",)]
        assert (opened(), ended()) == ([], [("train",)])


def test_a_generator_that_another_thread_ends(clock: Clock) -> None:
    """A phase in a generator is left when its last reference goes, in whichever thread."""

    def batches() -> Iterator[int]:
        with phase("loading"):
            yield 1

    kept = [batches()]
    next(kept[0])
    clock.passes(1)
    assert opened() == [("loading",)]
    thread = threading.Thread(target=kept.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert opened() == []


def test_what_has_ended_is_bounded(clock: Clock) -> None:
    """Phases go on to the next for ever."""
    for _ in range(100):
        with phase("next"):
            clock.passes(1)
    assert len(phases.read(MAIN)) == phases.MAX_ENDED


def test_an_end_beyond_a_limit_ends_no_other_phase(clock: Clock) -> None:
    """A recursive function, deeper than what is kept, comes up and goes down again: the phases that
    are kept go on. Two tasks beyond the limit that end in the order in which they began do, too."""
    seen: list[tuple[int, int]] = []
    walk = phase("walk")

    @walk
    def visit(depth: int) -> None:
        if depth < phases.MAX_DEPTH + 2:
            visit(depth + 1)
            visit(phases.MAX_DEPTH + 2)
            seen.append((depth, len(phases._stacks[MAIN])))

    visit(1)
    assert all(kept == min(depth, phases.MAX_DEPTH) for depth, kept in seen)
    assert (phases._stacks, phases._beyond) == ({}, {})
    deep = [phase(number) for number in range(phases.MAX_DEPTH + 2)]
    for one in deep:
        one.__enter__()
    assert len(phases._stacks[MAIN]) == phases.MAX_DEPTH
    for one in deep:
        one.__exit__(None, None, None)
    assert (phases._stacks, phases._beyond) == ({}, {})


def test_more_threads_than_are_kept(clock: Clock) -> None:
    """Loaders take all places and share one phase: the main thread still has its place, and
    a loader without one that comes and goes does not end the phase of another."""
    load = phase("load")
    with threads_in(load, phases.MAX_THREADS):
        with phase("train"):
            clock.passes(1)
            assert opened() == [("train",)]
        with threads_in(load):
            pass
        assert len(phases._stacks) == phases.MAX_THREADS
    assert (phases._stacks, phases._beyond) == ({}, {})


def test_the_exception_of_a_signal_handler_passes(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timeout of the program arrives in the middle of entering, and then of leaving a phase."""

    def time_out(*_: object) -> None:
        raise TimeoutError("mine")

    def interrupted() -> int:
        signal.raise_signal(signal.SIGUSR1)
        return clock()

    before = signal.signal(signal.SIGUSR1, time_out)
    try:
        monkeypatch.setattr(phases, "_time_ns", interrupted)
        with pytest.raises(TimeoutError, match="mine"), phase("eval"):
            pytest.fail("the timeout was lost")
        monkeypatch.setattr(phases, "_time_ns", clock)
        with pytest.raises(TimeoutError, match="mine"), phase("eval"):
            monkeypatch.setattr(phases, "_time_ns", interrupted)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert phases._stacks == {}


@pytest.mark.torch
def test_torch_compile_leaves_phases_out() -> None:
    """A model with phases inside and around it is compiled once, as one graph, as without a tap."""
    root = Path(frd_agent.__file__).parents[1]
    assert python(COMPILED, root).split() == ["True", "1", "{}"]


COMPILED = """
import sys
import torch
from torch._dynamo.testing import CompileCounter
from frd_agent import phase, phases
sys.modules["_frd_tap"] = phases
@phase("loss")
def loss(x): return x.cos()
def model(x):
    with phase("forward"): y = x.sin()
    return loss(y) + 1
counter = CompileCounter()
compiled = torch.compile(model, backend=counter, fullgraph=True)
x = torch.ones(4)
compiled(x)
with phase("epoch"): y = compiled(x)
print(torch.allclose(y, model(x)), counter.frame_count, phases._stacks)
"""


def test_threads_that_take_turns_as_often_as_they_can(clock: Clock) -> None:
    """Eight threads enter and leave while the tap's thread reads: nothing raises, nothing stays."""
    done = threading.Event()

    def work() -> None:
        for number in range(2_000):
            with phase("outer"), phase(number):
                clock.passes(1)

    def look() -> None:
        while not done.is_set():
            phases.read(MAIN)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(9) as pool:
            reading, *working = pool.submit(look), *(pool.submit(work) for _ in range(8))
            wait(working)
            done.set()
    finally:
        sys.setswitchinterval(interval)
    for one in (reading, *working):
        one.result()
    assert phases._stacks == {}


def test_without_a_tap_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tap in the process; one that comes in the middle of a phase learns of the next one."""
    monkeypatch.delitem(sys.modules, "_frd_tap", raising=False)
    with phase("eval"):
        assert phases._stacks == {}
        monkeypatch.setitem(sys.modules, "_frd_tap", tap)
        with phase("inner"):
            assert [name for _, name, _ in phases._stacks[MAIN]] == ["inner"]
    assert phases._stacks == {}


def test_a_forked_child_begins_without_phases(clock: Clock) -> None:
    """The child leaves the `with` of its parent, and enters its own."""
    with phase("parent"):
        clock.passes(1)
        read_end, write_end = os.pipe()
        if (pid := os.fork()) == 0:
            before = opened()
            with phase("child"):
                clock.passes(1)
                os.write(write_end, json.dumps([before, opened()]).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(write_end)
        with os.fdopen(read_end) as answer:
            assert json.load(answer) == [[], [["child"]]]
        assert opened() == [("parent",)]


def test_the_import_is_light() -> None:
    """A rank that imports it gets neither grpc nor numpy, nor anything else of frd."""
    root = Path(frd_agent.__file__).parents[1]
    code = "import sys, frd_agent; print(sorted(n for n in sys.modules if n.startswith(('frd', "
    code += "'grpc', 'numpy', 'asyncio', 'msgspec', 'google'))))"
    assert python(code, root).strip() == "['frd_agent', 'frd_agent.phases']"


# -- what the tap publishes --------------------------------------------------------------------


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FRD_RUN_DIR", str(tmp_path))
    return tmp_path


def fake_rank(world: World) -> SimpleNamespace:
    world.init()
    return SimpleNamespace(_world=world)


def published(run_dir: Path) -> list[Any]:
    return [json.loads(path.read_bytes())["phases"] for path in run_dir.glob("*.phases")]


def test_the_file_changes_with_the_phases_only(run_dir: Path, clock: Clock) -> None:
    """No file before the first phase; one for each change; names are text that UTF-8 can encode."""
    rank = tap.Tap(fake_rank(World()), os.environ, "0123456789ab")
    rank.publish_phases()
    assert published(run_dir) == []
    with phase("ep\udc80och"), phase("eval"):
        began = clock.ns
        clock.passes(1)
        rank.publish_phases()
        outer = "ep\\udc80och"
        assert published(run_dir) == [
            [
                {"path": [outer], "since_ns": began, "until_ns": 0},
                {"path": [outer, "eval"], "since_ns": began, "until_ns": 0},
            ]
        ]
        (path,) = run_dir.glob("*.phases")
        stamp = path.stat().st_ino
        clock.passes(1)
        rank.publish_phases()
        assert path.stat().st_ino == stamp
    rank.publish_phases()
    ((inner, outermost),) = published(run_dir)
    assert (inner["path"], outermost["until_ns"]) == ([outer, "eval"], clock.ns)


def test_the_real_thread_of_a_tap(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tap's own thread, in a process with process groups: the agent reads a phase that lasts,
    and at the end of the program, that it has ended."""
    monkeypatch.setitem(sys.modules, tap._C10D, fake_rank(World()))
    monkeypatch.setitem(sys.modules, "_frd_tap", tap)
    stop = threading.Event()
    thread = threading.Thread(target=tap._run, args=(stop, threading.Event(), None))
    with phase("eval"):
        thread.start()
        files = until(lambda: list(run_dir.glob("*.phases")), lambda: str(thread))
        stats = Counters()
        reader = PhaseReader(files[0], NodeTime(stats).one_to_raw, stats)
        reader.read()
        assert reader.spans is not None
        ((path, until_ns),) = [(span.path, span.until_ns) for span in reader.spans]
        assert (path, until_ns) == (("eval",), 0)
    stop.set()
    thread.join()
    reader.read()
    (span,) = reader.spans
    assert span.since_ns < span.until_ns
    assert stats.refused_files.total() == 0
