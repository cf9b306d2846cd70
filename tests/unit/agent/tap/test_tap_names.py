"""How a rank names its job and attempt, and where it looks for the agent."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from frd_agent import tap

HOST = socket.gethostname()
MINE = {"FRD_JOB_DEFAULT": "train-alice"}
UUID = "c11575b9-6f90-4efe-9b0f-196b286463fd"


@pytest.mark.parametrize(
    ("environ", "init_method", "job"),
    [
        ({"FRD_JOB": "a", "TORCHELASTIC_RUN_ID": "b", "SLURM_JOB_ID": "c"}, None, "a"),
        ({"FRD_JOB": " ", "TORCHELASTIC_RUN_ID": "b", "SLURM_JOB_ID": "c"}, None, "b"),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "17"}, None, "17"),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "n1", "MASTER_PORT": "9"}, None, "n1:9"),
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": "9"}, "env://", f"{HOST}:9"),
        ({"MASTER_ADDR": "127.0.0.2", "MASTER_PORT": "9"}, None, f"{HOST}:9"),
        ({}, "tcp://10.0.0.1:2345", "10.0.0.1:2345"),
        ({"MASTER_ADDR": "n1", "MASTER_PORT": "9"}, "tcp://[::1]:23?x=1", f"{HOST}:23"),
        ({}, "file:///nfs/rendezvous", f"{HOST}:/nfs/rendezvous"),
        ({}, None, HOST),
        ({"SLURM_JOB_ID": "17", "SLURM_JOB_NAME": "pretrain"}, None, "pretrain-17"),
        (
            {"TORCHELASTIC_RUN_ID": "17", "SLURM_JOB_ID": "17", "SLURM_JOB_NAME": "pretrain"},
            None,
            "pretrain-17",
        ),
        (
            {
                "TORCHELASTIC_RUN_ID": "19",
                "SLURM_JOB_ID": "19",
                "SLURM_JOB_NAME": "sweep",
                "SLURM_ARRAY_JOB_ID": "17",
                "SLURM_ARRAY_TASK_ID": "3",
            },
            None,
            "sweep-17_3",
        ),
        ({"TORCHELASTIC_RUN_ID": UUID, "MASTER_ADDR": "n1", "MASTER_PORT": "9"}, None, UUID),
        (MINE | {"TORCHELASTIC_RUN_ID": UUID, "MASTER_PORT": "9"}, None, f"train-alice@{HOST}"),
        (MINE | {"MASTER_ADDR": "n1", "MASTER_PORT": "29500"}, None, "train-alice@n1"),
        (MINE | {"MASTER_ADDR": "n1", "MASTER_PORT": "9"}, None, "train-alice@n1:9"),
        (MINE | {"TORCHELASTIC_RUN_ID": "b"}, None, "b"),
        (MINE | {"FRD_JOB": "a"}, None, "a"),
        (MINE, None, f"train-alice@{HOST}"),
    ],
)
def test_job(environ: dict[str, str], init_method: str | None, job: str) -> None:
    """A name given by people wins; else launchers and rendezvous give one equal on all ranks."""
    assert tap.job_of(environ, init_method) == job


@pytest.mark.parametrize(
    ("environ", "attempt"),
    [
        ({}, 0),
        ({"TORCHELASTIC_RESTART_COUNT": "2"}, 2),
        ({"FRD_ATTEMPT": "5", "TORCHELASTIC_RESTART_COUNT": "2"}, 5),
        ({"FRD_ATTEMPT": "first", "SLURM_RESTART_COUNT": "1"}, 1),
        ({"FRD_RUN_NUMBER": "3"}, 3),
        ({"FRD_RUN_NUMBER": "3", "TORCHELASTIC_RESTART_COUNT": "2"}, 5),
        ({"SLURM_RESTART_COUNT": "1", "TORCHELASTIC_RESTART_COUNT": "0"}, 1),
        ({"GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "2"}, 2),
        ({"GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "2"}, 0),
        (
            {
                "GROUP_WORLD_SIZE": "2",
                "SLURM_RESTART_COUNT": "1",
                "TORCHELASTIC_RESTART_COUNT": "2",
            },
            1,
        ),
        ({"FRD_RUN_NUMBER": "3", "FRD_ATTEMPT": "1"}, 1),
    ],
)
def test_attempt(environ: dict[str, str], attempt: int) -> None:
    """Restarts are counted by the launcher, on top of the runs; what is no number is passed
    over."""
    assert tap.attempt_of(environ) == attempt


def test_run_dir(tmp_path: Path) -> None:
    """Given, else under the session's runtime directory, else one of one's own in the temporary."""
    assert tap.run_dir({"FRD_RUN_DIR": str(tmp_path / "a" / ".." / "b")}) == str(tmp_path / "b")
    assert tap.run_dir({"XDG_RUNTIME_DIR": "/run/user/1"}) == "/run/user/1/frd"
    assert tap.run_dir({"XDG_RUNTIME_DIR": "run"}).endswith(f"/frd-{os.getuid()}")


@pytest.mark.parametrize(
    ("environ", "init_method", "run"),
    [
        ({"FRD_JOB": "train", "MASTER_ADDR": "n1", "MASTER_PORT": "9"}, "env://", "n1:9"),
        ({"FRD_JOB": "train", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}, None, "n1:29500"),
        (MINE | {"FRD_JOB": "train"}, "tcp://10.0.0.1:2345", "10.0.0.1:2345"),
        ({"FRD_JOB": "train", "SLURM_JOB_ID": "17"}, None, ""),
    ],
)
def test_a_run_is_where_its_ranks_meet(
    environ: dict[str, str], init_method: str | None, run: str
) -> None:
    """Whatever the job is called: two launches that run together cannot meet at one address."""
    assert tap.run_of(environ, init_method) == run


def test_without_a_place_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root of a container is read-only and nothing is mounted at /tmp: the default directory
    has a name nevertheless, and only a process that makes it fails. Nothing is written."""
    usable = tmp_path / "usable"
    usable.mkdir()
    name = f"frd-{os.getuid()}"
    monkeypatch.setattr(tap, "_TEMPORARY", ("/nonexistent/tmp", str(usable)))
    assert tap.default_run_dir({}) == str(usable / name)
    assert tap.default_run_dir({"TMPDIR": str(tmp_path)}) == str(tmp_path / name)
    assert tap.default_run_dir({"TMPDIR": "/nonexistent/job"}) == str(usable / name)
    monkeypatch.setattr(tap, "_TEMPORARY", ("/nonexistent/tmp",))
    assert tap.default_run_dir({}) == f"/nonexistent/tmp/{name}"
    with pytest.raises(OSError, match="/nonexistent"):
        tap.make_run_dir("/proc/nonexistent/run")
    assert os.listdir(usable) == []


@pytest.mark.parametrize(
    ("variables", "ranks"),
    [
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_NTASKS_PER_NODE": "8"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2),4"}, 8),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2),
        ({"LOCAL_WORLD_SIZE": "0"}, 8),
        ({"LOCAL_WORLD_SIZE": "many"}, 8),
        ({}, 8),
    ],
)
def test_ranks_that_start_together(variables: dict[str, str], ranks: int) -> None:
    """By torchrun, srun or mpirun; else as many as a large node has, or as there are."""
    assert tap.ranks_here(variables, 64) == ranks
    assert tap.ranks_here({}, 2) == 2
