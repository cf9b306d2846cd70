"""What suspects wait for: in live gloo jobs, from the rank's /proc to findings and metrics, and
with torch's own DataLoader workers."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frd.cli.commands.demo.scenarios import Scenario
from frd.model import Certainty, WaitKind, WaitsFor
from tests.world.daemons import JOBS, fetch, findings, until, watched
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
