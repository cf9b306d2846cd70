"""The tap in real gloo ranks: what it publishes, and that the ranks do not notice it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO

import pytest

from frd.model import NodeRawNs
from frd_agent import tap
from frd_agent.ranks import tap_files
from frd_agent.ranks.stacks.reader import StackReader
from frd_agent.ranks.tap_files import CountersFile, Publication
from frd_agent.recorder.worker_server import Handlers
from tests.world.daemons import (
    JOBS,
    end,
    exec_command,
    free_port,
    rank_environment,
    run_program,
    start,
    until,
)
from tests.world.puppets import everywhere, puppets
from tests.world.run_dir import process_of

pytestmark = [pytest.mark.torch, pytest.mark.timeout(90)]


def identities(run_dir: Path, count: int) -> list[tap_files.TapIdentity]:
    """By rank, once there are `count`."""

    def whole() -> list[tap_files.TapIdentity]:
        found = tap_files.TapFile.scan(run_dir)
        assert not [file.problem for file in found if file.problem]
        known = [file.content for file in found if file.content is not None]
        return sorted(known, key=lambda i: i.info.rank) if len(known) == count else []

    return until(whole, within_s=10)


def identity(run_dir: Path) -> tap_files.TapIdentity:
    return identities(run_dir, 1)[0]


@contextlib.contextmanager
def threaded_worker(
    run_dir: Path, how: str
) -> Iterator[tuple[subprocess.Popen[str], Callable[[], None]]]:
    """One rank of `threaded_worker.py`, and what writes a line to it."""
    env = rank_environment(0, 1, free_port())
    command = exec_command(run_dir, sys.executable, str(JOBS / "threaded_worker.py"), how)
    process = start(command, env=env, without=("FRD_", "SLURM_"), stdin=subprocess.PIPE)
    assert process.stdin is not None

    def send(stdin: IO[str] = process.stdin) -> None:
        stdin.write("\n")
        stdin.flush()

    try:
        yield process, send
    finally:
        end(process)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory of another user")
def test_a_run_directory_of_another_user(tmp_path: Path) -> None:
    """Another user has made the directory, as anybody can make /tmp/frd-JOB: the rank trains, says
    so in one line, publishes nothing, and leaves a note; the agent takes no lock there."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    run_dir.chmod(0o777)
    os.chown(run_dir, 61_002, 61_002)
    refused = tmp_path / "refused.0"
    with puppets(1, run_dir) as (rank,):
        rank.do("init")
        rank.do("reduce 3")
        until(refused.exists, "its note")
        status, _, errors = rank.leave()
    assert status == 0
    said = [line for line in errors.splitlines() if line.startswith("frd: warning")]
    assert [line.split()[2] for line in said] == ["exec:", "tap:"]
    assert f"{run_dir}: belongs to uid 61002" in said[1]
    assert refused.read_text().startswith("run\n")
    assert os.listdir(run_dir) == []


def counted(shm: CountersFile, ops: int) -> Publication | None:
    """A sample of one group, once it has enqueued so many ops.

    Not completed: Gloo's threads retire ops out of order, and the last one sets the counter.
    """
    sample = shm.read()
    done = sample is not None and [row.enqueued for row in sample.counters.values()] == [ops]
    return sample if done else None


def ask(address: str, handler: str) -> bytes:
    return asyncio.run(Handlers(address).ask(handler))


@pytest.mark.recorder
def test_ranks_below_exec_are_published(tmp_path: Path) -> None:
    """Two ranks of a script that knows no frd: identity, groups, counters, socket, all private."""
    run_dir = tmp_path / "run"
    with puppets(2, run_dir, FRD_JOB="job-7", TORCHELASTIC_RESTART_COUNT="3") as ranks:
        everywhere(ranks, "init")
        everywhere(ranks, "reduce 5")
        for rank, published in enumerate(identities(run_dir, 2)):
            assert (published.attempt.job, published.attempt.attempt) == ("job-7", 3)
            assert (published.info.rank, published.info.local_rank, published.info.world_size) == (
                rank,
                rank,
                2,
            )
            assert published.info.pid == ranks[rank].process.pid
            assert published.info.backends == ("gloo",)
            assert [g.ranks for g in published.groups] == [(0, 1)]
            assert (published.groups[0].name, published.groups[0].desc) == ("0", "default_pg")
            assert published.exit is None
            path = run_dir / f"{published.token}.shm"
            with contextlib.closing(CountersFile(path, NodeRawNs)) as shm:
                sample = until(partial(counted, shm, 5), within_s=10)
                assert [recorder for recorder, _ in sample.counters] == [tap.GENERIC]
                assert abs(sample.published_at_ns - time.time_ns()) < 5e9
            dump = json.loads(ask(str(run_dir / f"{published.token}.sock"), "fr_trace_json"))
            assert len(dump["entries"]) == 5
        modes = {path.stat().st_mode & 0o777 for path in run_dir.iterdir() if path.is_file()}
        assert modes == {0o600}
        assert run_dir.stat().st_mode & 0o777 == 0o700
        sockets = [path.stat().st_mode & 0o777 for path in run_dir.glob("*.sock")]
        assert sockets == [0o600, 0o600]


def test_groups_and_attempts_are_followed(tmp_path: Path) -> None:
    """New groups, their end, and a re-initialization appear within two seconds; the members of a
    group that is not set up at the store of the job are not global ranks."""
    with puppets(1, tmp_path) as [rank]:
        rank.do("init")
        assert identity(tmp_path).attempt.attempt == 0
        rank.do("group tail")
        until(lambda: [g.desc for g in identity(tmp_path).groups][1:] == ["tail"], within_s=2)
        rank.do("weights")
        until(lambda: len(identity(tmp_path).groups) == 3, within_s=2)
        assert [g.ranks for g in identity(tmp_path).groups] == [(0,), (0,), ()]
        rank.do("destroy")
        until(lambda: identity(tmp_path).groups == (), within_s=2)
        rank.do("init")
        until(lambda: identity(tmp_path).attempt.attempt == 1, within_s=2)
        assert [g.desc for g in identity(tmp_path).groups] == ["default_pg"]


@pytest.mark.recorder
def test_counters_go_stale_while_the_socket_answers(tmp_path: Path) -> None:
    """A rank that holds the GIL stops publishing, but its recorder can be read."""
    with puppets(1, tmp_path) as [rank]:
        rank.do("init")
        published = identity(tmp_path)
        path = tmp_path / f"{published.token}.shm"
        with contextlib.closing(CountersFile(path, NodeRawNs)) as shm:
            until(shm.read, within_s=10)
            rank.send("hold 4")

            def is_stale() -> bool:
                sample = shm.read()
                return sample is not None and time.time_ns() - sample.published_at_ns > 1.3e9

            until(is_stale, within_s=3.5)
            assert json.loads(ask(str(tmp_path / f"{published.token}.sock"), "fr_trace_json"))
        rank.answer()


@pytest.mark.parametrize(
    ("command", "code", "kind", "detail"),
    [("", 0, "clean", ""), ("fail boom", 1, "exception", "RuntimeError: boom")],
)
def test_an_end_leaves_a_record(
    tmp_path: Path, command: str, code: int, kind: str, detail: str
) -> None:
    """A program that ends, with or without an exception, leaves an exit record and no socket."""
    with puppets(1, tmp_path) as [rank]:
        rank.do("init")
        identity(tmp_path)
        assert rank.leave(command)[0] == code
        published = identity(tmp_path)
        assert published.exit is not None
        assert (published.exit.kind, published.exit.detail) == (kind, detail)
        assert published.socket is None
        assert not list(tmp_path.glob("*.sock"))


@pytest.mark.parametrize("how", ["os._exit", "helper", "sys.exit"])
def test_an_exception_of_the_thread_that_trained(how: str, tmp_path: Path) -> None:
    """A framework's worker keeps the exception of its train function, and lives on or exits: the
    identity has the exception and its line, as soon as that thread has ended and not before."""
    with threaded_worker(tmp_path, how) as (process, send):
        before = identity(tmp_path)
        send()
        until(lambda: identity(tmp_path).ended, "the record")
        record, is_over = identity(tmp_path).ended, identity(tmp_path).exit is not None
        if how != "sys.exit":
            assert not is_over
            send()
        assert process.wait(30) == 1
    assert (before.exit, before.raised) == (None, None)
    assert record is not None
    assert (record.kind, record.detail) == ("exception", "ValueError: bad batch")
    assert [frame.name for frame in record.frames] == ["load_batch", "train", "run"]


def test_a_train_function_that_returns(tmp_path: Path) -> None:
    """Its worker exits with 1 later, as its framework does: no exception is reported."""
    with threaded_worker(tmp_path, "return") as (process, send):
        identity(tmp_path)
        send()
        send()
        assert process.wait(30) == 1
    assert identity(tmp_path).ended is None


def test_a_killed_rank_leaves_none(tmp_path: Path) -> None:
    """SIGKILL leaves the identity as it was, without an exit record."""
    with puppets(1, tmp_path) as [rank]:
        rank.do("init")
        identity(tmp_path)
        rank.process.send_signal(signal.SIGKILL)
        assert rank.end()[0] == -signal.SIGKILL
        assert identity(tmp_path).exit is None
        assert list(tmp_path.glob("*.sock"))


def test_forked_children_are_not_ranks(tmp_path: Path) -> None:
    """Data loader workers run no tap; a child's end takes neither server nor record from a rank."""
    with puppets(1, tmp_path) as [rank]:
        rank.do("init")
        published = identity(tmp_path)
        assert "frd-tap" not in rank.do("load")
        rank.do("destroy")  # torch itself cannot end a forked child that inherits a process group
        assert rank.do("fork") == "child 0\n"
        assert ask(str(tmp_path / f"{published.token}.sock"), "ping")
        assert identity(tmp_path).exit is None
        assert rank.end()[0] == 0


def test_questions_at_the_end_do_no_harm(tmp_path: Path) -> None:
    """Three agents ask for stacks without pause while the interpreter ends: exit code 0."""

    async def ask_on(published: tap_files.TapIdentity, pid: int) -> None:
        shm = tmp_path / f"{published.token}.shm"
        handlers = Handlers(tmp_path / f"{published.token}.sock")

        async def agent(number: int) -> None:
            reader = StackReader(process_of(pid), handlers, shm)
            while not over.is_set():
                stack = await reader.read(py_spy_timeout_s=0.01)
                answered[number] += stack.source == "dump_traceback"

        await asyncio.gather(*map(agent, range(len(answered))))

    over, answered = threading.Event(), [0, 0, 0]
    with puppets(1, tmp_path) as [rank], ThreadPoolExecutor(1) as pool:
        try:
            rank.do("init")
            published = identity(tmp_path)
            until((tmp_path / f"{published.token}.sock").exists, within_s=10)
            asking = pool.submit(asyncio.run, ask_on(published, rank.process.pid))
            until(lambda: all(answered), "an answer to each agent")
            code, _, stderr = rank.leave()
        finally:
            over.set()
        assert code == 0, stderr
        asking.result()


def test_a_run_directory_with_a_long_name(tmp_path: Path) -> None:
    """A path too long for a unix socket changes nothing: both sides go by the directory."""
    run_dir = tmp_path / ("long" * 30) / "run"
    with puppets(1, run_dir) as [rank]:
        rank.do("init")
        published = identity(run_dir)
        assert published.socket is not None
        sockets = tap_files.SocketDir(run_dir)
        assert ask(sockets.address(run_dir / published.socket), "ping")
        sockets.close()


@pytest.mark.parametrize("last", ["", "fail x"])
def test_an_unusable_run_directory_changes_nothing_but_stderr(tmp_path: Path, last: str) -> None:
    """Output and exit code are those of a run without frd; exec and tap warn in one line each."""

    def run(run_dir: Path | None) -> tuple[int, str, list[str]]:
        log = tmp_path / "stderr"
        with log.open("w") as file, puppets(1, run_dir, stderr=file) as [rank]:
            printed = rank.do("init") + rank.do("reduce 3")
            if run_dir is not None:
                until(lambda: "frd: warning: tap" in log.read_text(), "the tap's failure")
            code, stdout, _ = rank.leave(last)
        return code, printed + stdout, [li for li in log.read_text().splitlines() if "frd:" in li]

    (tmp_path / "file").touch()
    code, stdout, lines = run(tmp_path / "file" / "run")
    assert (code, stdout, []) == run(None)
    assert [" ".join(line.split()[:3]) for line in lines] == [
        "frd: warning: exec:",
        "frd: warning: tap:",
    ]


@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-"], ids=["full", "closed"])
def test_without_stderr_the_command_runs(stderr: str, tmp_path: Path) -> None:
    """exec cannot warn of its directory: it does without, and writes nothing to stdout instead."""
    (tmp_path / "file").touch()
    command = shlex.join(exec_command(tmp_path / "file" / "run", "echo", "trained"))
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    done = run_program(["bash", "-c", f"{command} {stderr}"], env=buffered)
    assert (done.returncode, done.stdout) == (0, "trained\n")


def test_a_full_disk_and_a_full_stderr(tmp_path: Path) -> None:
    """Nothing can be written anywhere, not even the one line: the rank ends as ever."""
    (tmp_path / "file").touch()
    with (
        open("/dev/full", "w") as full,
        puppets(1, tmp_path / "file" / "run", stderr=full) as [rank],
    ):
        rank.do("init")
        rank.do("hold 1")  # the tap fails to write before and after it
        rank.do("reduce 3")
        assert rank.leave()[0] == 0
