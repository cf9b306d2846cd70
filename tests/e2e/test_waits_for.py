"""What suspects wait for: in live gloo jobs, from the rank's /proc to findings and metrics, and
with torch's own DataLoader workers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import Scenario
from frd.errors import FrdError
from frd.model import Certainty, WaitKind, WaitsFor
from tests.world.daemons import JOBS, Stage, fetch, findings, throughout, until, watched
from tests.world.hanging_fuse import SOURCE, NoMount, hanging_fuse
from tests.world.suspects import inspect, suspect
from tests.world.verdicts import high_at_most

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


def found(call: str, what: str, release: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """The suspect of the job's finding, once it is known what it waits for. `release` is called
    before the job ends: even a killed process stays in such a call."""
    scenario = Scenario("waiting", "a rank waits", str(JOBS / "waiting.py"))
    with watched(scenario, 3, 2.0, [call, what]) as (stage, client):

        def its_suspect() -> dict[str, Any] | None:
            one = next(iter(findings(client, state="open")), None)
            if one is None or "waits_for" not in one["suspects"][0]:
                return None
            if one["suspects"][0]["confidence"] != "high":
                return None  # the next evaluation decides by what was answered
            named: dict[str, Any] = one["suspects"][0]
            assert named["waits_for"].get("what", "") in one["summary"]
            label = f'waits_for="{named["waits_for"]["kind"]}"'
            shown = fetch(client.address).splitlines()
            (series,) = (line for line in shown if line.startswith("frd_suspect{"))
            assert 'rank="2"' in series
            assert label in series
            with_text = {line.partition("{")[0] for line in shown if what in line}
            assert with_text <= {"frd_finding_info"}, "no path or address in another label"
            return named

        try:
            named = until(its_suspect, lambda: stage.log("rank2"), 60)
            high_at_most(stage, client, 2)
            return named
        finally:
            release()


@pytest.mark.recorder
def test_a_checkpoint_on_a_file_server_that_does_not_answer(tmp_path: Path) -> None:
    """Rank 2 is in fsync: file, mount and server are named."""
    (tmp_path / "ckpt").mkdir()
    try:
        with hanging_fuse(tmp_path / "ckpt") as nas:
            stuck = found("fsync", f"{nas.folder}/shard.bin", nas.close)
    except NoMount as error:
        pytest.skip(str(error))
    assert (stuck["rank"], stuck["confidence"]) == (2, "high")
    waits_for = stuck["waits_for"]
    assert (waits_for["kind"], waits_for["certainty"]) == ("file_sync", "seen")
    assert waits_for["text"].startswith(
        f"rank 2 waits for storage: its main thread has been in fsync() of {nas.folder}/shard.bin "
        f"(fuse {SOURCE} on {nas.folder}) for "
    )


@pytest.mark.recorder
def test_a_server_that_does_not_answer() -> None:
    """Rank 2 is in recv: the address is named."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        waits_for = found("socket", address)["waits_for"]
    assert (waits_for["kind"], waits_for["certainty"]) == ("socket", "seen")
    assert waits_for["what"] == address


# -- a DataLoader ----------------------------------------------------------------------------------

LOADER = """
    import os, sys, warnings
    import torch
    from torch.utils.data import DataLoader, Dataset
    class Shards(Dataset):
        def __len__(self):
            return 100
        def __getitem__(self, index):
            if index == 5:
                {stuck}
            return torch.zeros(1)
    batches = iter(DataLoader(Shards(), batch_size=1, num_workers=2))
    for _ in range(5):
        next(batches)
    print("ready", flush=True)
    next(batches)
"""
FORMS = {
    "read": ("os.read(os.open(sys.argv[1], os.O_RDONLY), 1)", WaitKind.FILE_READ),
    "sleep": ("__import__('time').sleep(300)", WaitKind.SLEEP),
    "loop": ("exec('while True: pass')", WaitKind.ON_CPU),
}


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_one_of_two_workers_is_stuck(tmp_path: Path, form: str) -> None:
    """The rank polls a pipe; behind it one worker is stuck, and the other one has no work."""
    stuck, kind = FORMS[form]
    path = tmp_path / "shard-17.tar"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR)

    def is_settled(found: WaitsFor) -> bool:
        what = (found.kind, found.certainty, found.rest)
        return what == (kind, Certainty.SEEN, "1 other worker is idle")

    with suspect(LOADER.replace("{stuck}", stuck), path) as rank:
        found = inspect(rank.pid, enough=is_settled)
        assert found.pid != rank.pid
    os.close(fd)
    assert (found.process, found.topic) == ("pt_data_worker", "data")
    assert found.says.startswith(f"its loader worker (pid {found.pid}) has been ")
    if kind is WaitKind.FILE_READ:
        assert found.what == str(path)


# -- initialization --------------------------------------------------------------------------------
# Real gloo jobs whose initialization takes long, or never ends: which ranks are known, how they
# stand, and which one is named.


JOB = "demo-initialization"

Rank = dict[str, Any]


@contextlib.contextmanager
def job(place: str) -> Iterator[tuple[Stage, Client, Path]]:
    """With the file that lets rank 2 go on."""
    scenario = Scenario("initialization", "a long initialization", str(JOBS / "initialization.py"))
    with (
        tempfile.TemporaryDirectory() as folder,
        watched(scenario, 4, 3.0, [place, f"{folder}/go"]) as (stage, client),
    ):
        yield stage, client, Path(folder) / "go"


def ranks(client: Client) -> list[Rank]:
    """All ranks of the job that the service knows, in order."""
    with contextlib.suppress(FrdError):  # the job is not known yet
        found: list[Rank] = client.get(f"/api/v1/jobs/{JOB}")["ranks"]
        return found
    return []


def trained(client: Client) -> int:
    """Collectives that all ranks have completed."""
    groups = client.get(f"/api/v1/jobs/{JOB}")["groups"]
    return max((group["completed"] for group in groups), default=-1)


def once(stage: Stage, client: Client, is_right: Callable[[list[Rank]], bool]) -> list[Rank]:
    """The ranks, once they are right."""

    def right() -> list[Rank] | None:
        known = ranks(client)
        return known if is_right(known) else None

    return until(right, lambda: f"{ranks(client)}\n{stage.log('agent')}\n{stage.log('rank0')}")


def waiting(known: list[Rank]) -> list[str]:
    return [rank["waiting_in"] for rank in known]


@pytest.mark.soak
def test_a_rank_that_does_not_come() -> None:
    """Rank 2 loads a model for ever, the others are in init_process_group: all four are known, with
    the processes that they are, and three of them wait. One is stopped, and is silent. Ctrl-C ends
    rank 2."""
    with job("absent") as (stage, client, _):
        inside = "init_process_group"
        known = once(stage, client, lambda all_: waiting(all_) == [inside, inside, "", inside])
        assert [rank["pid"] for rank in known] == [process.pid for process in stage.ranks]
        assert known[2]["detail"] == "has no process group yet"
        assert {rank["state"] for rank in known} == {"live"}
        once(stage, client, lambda all_: all_[0]["waiting_s"] > 4)

        stage.ranks[0].send_signal(signal.SIGSTOP)
        once(stage, client, lambda all_: all_[0]["state"] == "silent")
        stage.ranks[2].send_signal(signal.SIGINT)
        known = once(stage, client, lambda all_: all_[2]["state"] == "finished")
        assert "KeyboardInterrupt" in known[2]["detail"]


@pytest.mark.parametrize(
    ("place", "op", "detail"),
    [
        ("absent", "init_process_group", "has no process group yet"),
        pytest.param("new_group", "new_group", "", marks=pytest.mark.soak),
    ],
)
def test_the_rank_that_does_not_come_is_named(
    place: str, op: str, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 2 does something else while three ranks wait; the finding has its stack and what it
    waits for."""
    monkeypatch.setenv("FRD_POLICY__INIT_STALL_AFTER_S", "6")  # not a minute
    with job(place) as (stage, client, _):
        known = once(stage, client, lambda all_: waiting(all_) == [op, op, "", op])
        assert known[2]["detail"] == detail
        finding = until(
            lambda: sure(client), lambda: f"{findings(client)}\n{stage.log('agent')}", 60
        )
        high_at_most(stage, client, 2)
    assert (finding["kind"], finding["collective"]["op"]) == ("stall", op)
    (suspect,) = finding["suspects"]
    assert (suspect["rank"], suspect["reason"]) == (2, "cpu_stuck")
    assert suspect["stack"][0].endswith("in load_model")
    assert finding["victims"] == [0, 1, 3]
    assert finding["effect"].startswith(f"holds up 3 ranks in {op} for ")


def sure(client: Client) -> dict[str, Any] | None:
    """The finding, if its suspect is certain, with its stack and what it waits for."""
    for one in findings(client, state="open"):
        (suspect, *others) = one["suspects"]
        is_high = suspect["confidence"] == "high" and not others
        if is_high and suspect["stack"] and "waits_for" in suspect:
            return one
    return None


@pytest.mark.recorder
@pytest.mark.parametrize("place", ["late", pytest.param("helpers", marks=pytest.mark.soak)])
def test_a_slow_start(place: str) -> None:
    """Rank 2 comes some seconds after the others, in one job every rank has helper processes that
    inherit its environment: the processes that were known before train as the same ranks, no rank
    is lost or reported twice, and there is no finding."""
    with job(place) as (stage, client, go):
        pids = [process.pid for process in stage.ranks]
        once(stage, client, lambda all_: waiting(all_).count("init_process_group") == 3)
        go.touch()
        until(lambda: trained(client) > 20, lambda: f"{ranks(client)}\n{stage.log('rank0')}")
        assert [rank["pid"] for rank in ranks(client)] == pids

        def is_well() -> None:
            known = ranks(client)
            assert [(rank["pid"], rank["state"]) for rank in known] == [(p, "live") for p in pids]
            assert findings(client) == []

        throughout(8.0, is_well)


def test_a_rank_that_dies_before_it_comes() -> None:
    """Rank 2 raises before init_process_group: its row says why, and no rank is lost. Then the
    launcher ends the others."""
    with job("dies") as (stage, client, go):
        once(stage, client, lambda all_: len(all_) == 4)
        go.touch()
        known = once(stage, client, lambda all_: all_[2]["state"] == "finished")
        why = "ended before it had a process group: FileNotFoundError: no checkpoint"
        assert known[2]["detail"].startswith(why)
        for number in (0, 1, 3):
            stage.ranks[number].send_signal(signal.SIGTERM)
        known = once(stage, client, lambda all_: {rank["state"] for rank in all_} == {"finished"})
        assert "killed by SIGTERM" in known[0]["detail"]
        assert findings(client) == []
