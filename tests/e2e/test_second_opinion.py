"""What NCCL says of a hang: real service and agent, scripted ranks, and a RAS service by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.world.cluster import STALL_S, Cluster, until
from tests.world.daemons import frd, free_address, running
from tests.world.ras_server import RasServer, moved, serving_ras

pytestmark = pytest.mark.timeout(120)
RANK = """
import sys, time
from pathlib import Path
from tests.world.played_rank import PlayedRank

rank = PlayedRank(Path(sys.argv[1]), int(sys.argv[2]), 4)
rank.identity["backends"] = ["nccl"]
rank.publish_identity()
for _ in range(19):
    time.sleep(0.02)
    rank.enter()
    rank.leave()
rank.enter()
while True:
    rank.publish()
    time.sleep(1.0)
"""
LAGS = (
    "NCCL RAS: rank 1 has launched 31 AllReduce in communicator 63e59fe8c2f77187 (4 ranks), "
    "the others 32"
)


@contextmanager
def stuck(folder: Path, ras: str) -> Iterator[tuple[Cluster, list[int]]]:
    """Four ranks that are all in one collective, and the ids of their processes."""
    with Cluster(folder, stall_after_s=STALL_S) as cluster, ExitStack() as stack:
        cluster.start_agent()
        command = [sys.executable, "-c", RANK, str(cluster.run_dir(0))]
        ranks = [
            stack.enter_context(running([*command, str(rank)], env={"NCCL_RAS_ADDR": ras}))
            for rank in range(4)
        ]
        yield cluster, [process.pid for process in ranks]


def only(cluster: Cluster) -> dict[str, Any] | None:
    return next(iter(cluster.findings("open")), None)


def test_nccl_has_an_opinion(tmp_path: Path) -> None:
    """RAS is asked once, when the finding has opened. Its answer is in the finding and on the
    screen; the verdict stays."""
    with serving_ras(RasServer(b"{}")) as ras, stuck(tmp_path, ras.address) as (cluster, pids):
        ras.answers = [moved("lagging", dict(zip((671, 674, 677, 678), pids, strict=True)))]

        def answered() -> dict[str, Any] | None:
            finding = only(cluster)
            return finding if finding and "second_opinion" in finding else None

        finding = until(answered, lambda: str(cluster.findings()))
        assert finding["second_opinion"] == [LAGS]
        assert (finding["reason"], finding["suspects"]) == ("network_or_device", [])
        assert finding["headline"].endswith("check network and devices")
        assert [lines[-1] for lines in ras.heard] == ["VERBOSE STATUS"]
        asked = 'frd_agent_ras_questions_total{result="answered"}'
        assert cluster.agent_metric(0, asked) == 1
        shown = frd("findings", finding["id"], "--http", cluster.http).stdout
        assert "NCCL RAS: rank 1 has launched 31 AllReduce" in " ".join(shown.split())


def test_nccl_has_none(tmp_path: Path) -> None:
    """Nothing listens: the finding opens as ever, and stays as it is."""
    with stuck(tmp_path, free_address()) as (cluster, _):
        before = until(lambda: only(cluster), "no finding")
        failed = 'frd_agent_ras_questions_total{result="failed"}'
        until(lambda: cluster.agent_metric(0, failed) == 1, "RAS is not asked")
        until(
            lambda: "no second opinion" in cluster.service.log.read_text(),
            cluster.service.log.read_text,
        )
        after = only(cluster)
        assert after is not None
        assert "second_opinion" not in after
        assert (after["id"], after["reason"]) == (before["id"], "network_or_device")
