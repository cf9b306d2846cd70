"""What a stuck rank is doing, in words: on real ranks, with real DataLoader workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frd.cli.commands.demo.scenarios import Scenario
from frd_agent.ranks.stacks.reader import NoStack, py_spy
from tests.world.daemons import JOBS, findings, frd, until, watched

pytestmark = [pytest.mark.torch, pytest.mark.recorder, pytest.mark.timeout(240)]


def line_of(text: str) -> int:
    lines = (JOBS / "doing.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.fixture(autouse=True)
def needs_py_spy() -> None:
    try:
        py_spy()
    except NoStack:
        pytest.skip("py-spy is not installed")


@pytest.mark.long
def test_a_stuck_worker_a_checkpoint_and_a_busy_rank(tmp_path: Path) -> None:
    """Rank 1 waits for a worker in `__getitem__`, rank 2 saves to a file that takes nothing, rank 3
    computes: finding, summary and dump name each, the worker with its pid and line."""
    script = Scenario("doing", "", str(JOBS / "doing.py"))
    with watched(script, 4, 4.0, [str(tmp_path / "pipe")]) as (_, client):

        def all_named() -> tuple[dict[str, Any], dict[int, Any]] | None:
            for finding in findings(client):
                suspects = {suspect["rank"]: suspect for suspect in finding["suspects"]}
                if set(suspects) == {1, 2, 3} and all(s.get("doing") for s in suspects.values()):
                    return finding, suspects
            return None

        finding, suspects = until(all_named, lambda: str(findings(client)))
        waits, saves, computes = (suspects[rank] for rank in (1, 2, 3))
        place = f"doing.py:{line_of('time.sleep(600)')}"
        stuck = waits["workers"][0]
        assert stuck["name"] == "pt_data_worker"
        assert stuck["stack"] == [f"{place} in __getitem__"]
        assert waits["doing"] == (
            f"waits for its DataLoader worker pid {stuck['pid']}: {place} __getitem__"
        )
        assert Path(f"/proc/{stuck['pid']}/comm").read_text() == "pt_data_worker\n"
        assert [worker["doing"] for worker in waits["workers"][1:]] == ["waits for work"]
        assert "idle: used no processor time" in waits["evidence"]
        assert saves["doing"] == "saving a checkpoint"
        assert saves["stack"][0] == f"doing.py:{line_of('torch.save(')} in save"
        assert saves["inside"].startswith("torch/serialization.py:")
        assert computes["doing"] == "busy"
        assert "busy: uses " in computes["evidence"]
        for phrase in (waits["doing"], "saving a checkpoint (doing.py:", ": busy ("):
            assert phrase in finding["summary"]
        screen = " ".join(frd("findings", finding["id"], "--http", client.address).stdout.split())
        assert f"process {stuck['pid']}, pt_data_worker: loading a batch" in screen

        folder = tmp_path / "dump"
        frd("dump", "--http", client.address, "--stacks", "--ranks", "1", "-o", folder)
        [text] = [path.read_text() for path in folder.rglob("rank_1.stack.txt")]
        _, _, section = text.partition(f"== child {stuck['pid']} pt_data_worker\n")
        assert f"__getitem__ ({JOBS / 'doing.py'}:{line_of('time.sleep(600)')})" in section
