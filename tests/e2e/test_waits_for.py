"""What suspects wait for, in live gloo jobs: from the rank's /proc to findings and metrics."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frd.cli.commands.demo.scenarios import Scenario
from tests.world.daemons import JOBS, fetch, findings, until, watched
from tests.world.hanging_fuse import SOURCE, NoMount, hanging_fuse

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


def found(call: str, what: str, release: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """The suspect of the job's finding, once it is known what it waits for. `release` is called
    before the job ends: even a killed process stays in such a call."""
    scenario = Scenario("waiting", "a rank waits", str(JOBS / "waiting.py"))
    with watched(scenario, 3, 2.0, [call, what]) as (stage, client):

        def named() -> dict[str, Any] | None:
            one = next(iter(findings(client, state="open")), None)
            if one is None or "waits_for" not in one["suspects"][0]:
                return None
            suspect: dict[str, Any] = one["suspects"][0]
            assert one["summary"].endswith(suspect["waits_for"]["text"])
            label = f'waits_for="{suspect["waits_for"]["kind"]}"'
            shown = fetch(client.address)
            assert f'rank="2",reason="cpu_stuck",{label}' in shown
            assert what not in shown, "no path or address in a label"
            return suspect

        try:
            return until(named, lambda: stage.log("rank2"), 60)
        finally:
            release()


def test_a_checkpoint_on_a_file_server_that_does_not_answer(tmp_path: Path) -> None:
    """Rank 2 is in fsync: file, mount and server are named."""
    (tmp_path / "ckpt").mkdir()
    try:
        with hanging_fuse(tmp_path / "ckpt") as nas:
            suspect = found("fsync", f"{nas.folder}/shard.bin", nas.close)
    except NoMount as error:
        pytest.skip(str(error))
    assert (suspect["rank"], suspect["confidence"]) == (2, "high")
    waits_for = suspect["waits_for"]
    assert (waits_for["kind"], waits_for["certainty"]) == ("file_sync", "seen")
    assert waits_for["text"].startswith(
        f"rank 2 waits for storage: its main thread has been in fsync() of {nas.folder}/shard.bin "
        f"(fuse {SOURCE} on {nas.folder}) for "
    )


def test_a_server_that_does_not_answer() -> None:
    """Rank 2 is in recv: the address is named."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        suspect = found("socket", address)
    waits_for = suspect["waits_for"]
    assert (waits_for["kind"], waits_for["certainty"]) == ("socket", "seen")
    assert waits_for["what"] == address
