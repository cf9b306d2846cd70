"""What goes wrong around a job: an agent, a node, a directory of another user."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.slurm.cluster import RECIPE, SHARED, Cluster
from tests.world.daemons import throughout

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


def test_no_agent_inherits_from_a_dead_one(cluster: Cluster) -> None:
    """An agent is killed, and another job's agent starts on its node: the first job stays blind
    there, and its ranks and its other agent go on, although this site ends steps with a failed
    task."""
    cluster.env["SLURM_KILL_BAD_EXIT"] = "1"
    first = cluster.submit(*SHARED)
    first.until_watched()
    (agent,) = cluster.nodes["n2"].processes(f"frd-agent run --run-dir /tmp/frd-{first.number}-")
    os.kill(agent, signal.SIGKILL)
    first.until(first.blind, "blind")
    second = cluster.submit(*SHARED)
    second.until_watched()

    def is_blind() -> None:
        (why,) = first.blind()
        assert "the agent on n2 is gone" in why
        assert not second.blind()
        unwatched = [one["rank"] for one in first.ranks() if one["state"] == "unwatched"]
        assert unwatched == [1], first.report()

    throughout(10.0, is_blind)
    assert first.slurm()["JobState"] == "RUNNING"


def test_a_node_that_is_killed(cluster: Cluster) -> None:
    """All processes of a node end at one moment: the finding is about that node."""
    job = cluster.submit()
    job.until_watched()
    cluster.nodes["n2"].kill()
    (found,) = job.until(job.findings, "a finding")
    suspects = {(one["node"], one["reason"]) for one in found["suspects"]}
    assert suspects == {("n2", "unreachable")}, found
    job.until(job.blind, "blind")


def test_directories_of_others(cluster: Cluster) -> None:
    """Another user has guessed the name: a directory has it on one node, and a link on the other.
    The job trains without being watched, says why, and touches neither."""
    name = f"frd-{cluster.next_job}-guessed"
    text, changes = re.subn(r"\$\(mktemp -u .*\)", f"/tmp/{name}", RECIPE.read_text())
    assert changes == 1
    script = cluster.work / "guessed.sbatch"
    script.write_text(text)
    paths = [node.tmp / name for node in cluster.nodes.values()]
    paths[0].symlink_to(cluster.work)
    paths[1].mkdir()
    paths[1].chmod(0o777)
    job = cluster.submit(script=script)
    job.until(lambda: "rank 3 trains" in job.log(), "ranks train")
    job.break_("end")
    assert job.wait() == ("COMPLETED", "0:0", "0:0")
    (warning,) = [line for line in job.log().splitlines() if "frd: warning" in line]
    assert f"/tmp/{name}: cannot be made on" in warning
    assert {"n1", "n2"} <= set(re.findall(r"\w+", warning))
    assert job.state() == ""
    assert paths[0].is_symlink()
    assert not list(paths[1].iterdir())
