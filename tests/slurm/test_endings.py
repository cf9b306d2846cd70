"""How jobs of examples/slurm/train.sbatch end, for Slurm and for the service."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.slurm.cluster import CPUS, RECIPE, ROOT, SHARED, STALL_AFTER_S, Cluster
from tests.world.daemons import opened_s, throughout

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SLURM_PAGE = ROOT / "docs/slurm.md"
WELL = ("COMPLETED", "0:0", "0:0")


def without_torchrun(folder: Path) -> Path:
    """The recipe, changed as docs/slurm.md says for ranks that srun starts itself."""
    text, changes = re.subn(r"torchrun \\.*?\"\$@\"", 'python "$@"', RECIPE.read_text(), flags=re.S)
    assert changes == 1
    path = folder / "srun.sbatch"
    path.write_text(text)
    return path


def test_two_jobs_on_the_same_nodes(cluster: Cluster) -> None:
    """Healthy jobs that share nodes: one ends, without a warning or a finding; the other one is
    watched on and then cancelled: its ranks save a checkpoint first."""
    first, second = cluster.submit(*SHARED), cluster.submit(*SHARED)
    first.until_watched()
    second.until_watched()
    (check,) = re.findall("^srun --jobid=.*", SLURM_PAGE.read_text(), re.MULTILINE)
    done = cluster.run("bash", "-c", check.replace("4711", second.number))
    assert done.returncode == 0, done.stdout + done.stderr
    first.break_("end")
    assert first.wait() == WELL
    first.until_over()
    assert second.state() == "running"
    assert not second.blind()
    assert len(second.run_dirs()) == 2
    assert len({path.name for path in second.run_dirs()}) == 1

    second.ask("scancel", second.number)
    assert second.wait()[0] == "CANCELLED"
    second.until_over()
    assert second.log().count("saved") == 2
    for job in (first, second):
        assert not job.findings()
        assert not job.run_dirs()
        assert "frd: warning" not in job.log()
        assert job.cpus() == {CPUS}


def test_a_hung_job_that_is_cancelled(cluster: Cluster) -> None:
    """The stuck rank is named. Slurm kills it after the agents have left: the job is lost."""
    job = cluster.submit()
    job.until_watched()
    job.break_("read 1")
    (found,) = job.until(job.findings, "a finding")
    assert found["kind"] == "stall"
    assert [one["rank"] for one in found["suspects"]] == [1]
    assert job.cpus() == {CPUS}
    assert STALL_AFTER_S < opened_s(found) - job.broke_s() < STALL_AFTER_S + 5.0
    job.ask("scancel", job.number)
    assert job.wait()[0] == "CANCELLED"
    job.until_over("lost")
    (still,) = job.findings()
    assert (still["id"], still["state"]) == (found["id"], "closed")


def test_the_time_limit(cluster: Cluster) -> None:
    """The ranks save a checkpoint in the minute before the limit, and the job ends without a
    finding. For Slurm it has failed: torchrun was ended by a signal."""
    job = cluster.submit()
    job.until_watched()
    hours, minutes, seconds = map(int, job.slurm()["RunTime"].split(":"))
    limit = hours * 60 + minutes + (1 if seconds < 15 else 2)  # 45 s to 105 s from now
    job.ask("scontrol", "update", f"JobId={job.number}", f"TimeLimit={limit}")
    assert job.wait()[:2] == ("FAILED", "1:0"), job.report()
    assert job.log().count("saved") == 4
    job.until_over()
    assert not job.findings()
    assert not job.run_dirs()


def test_a_job_that_is_requeued(cluster: Cluster) -> None:
    """It goes on as the next attempt of the same job."""
    job = cluster.submit()
    job.until_watched()
    job.ask("scontrol", "requeue", job.number)
    job.until(lambda: job.slurm()["JobState"] == "PENDING", "it is in the queue")
    job.ask("scontrol", "update", f"JobId={job.number}", "StartTime=now")  # not after two minutes
    job.until(lambda: job.details()["attempt"] == 1, "the next attempt")
    job.until_watched()
    assert not job.blind()
    job.break_("end")
    assert job.wait()[:2] == WELL[:2]  # the derived one includes the first attempt
    job.until_over()
    assert not job.findings()


def test_an_array_without_torchrun(cluster: Cluster) -> None:
    """srun starts the ranks of an array's task. One of them ends with exit code 7: so does the job,
    and the finding names the rank."""
    flags = ("--array=3", "--ntasks-per-node=2", "--cpus-per-task=1")
    job = cluster.submit(*flags, script=without_torchrun(cluster.folder))
    job.name = f"train-{job.number}_3"
    job.until_watched()
    assert not job.blind()
    job.break_("exit 1")
    assert job.wait() == ("FAILED", "7:0", "7:0")
    job.until_over()
    (found,) = job.findings()
    assert found["kind"] == "rank_lost"
    assert [one["rank"] for one in found["suspects"]] == [1]


# -- what goes wrong around a job: an agent, a node, a directory of another user -------------------


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
