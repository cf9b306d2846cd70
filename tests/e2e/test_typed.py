"""What README and the pages show is typed here as it is, by a person in an empty home.

Nothing is replaced but `ID`. Addresses come from variables, because the default ports may be in
use; a stall opens after three seconds instead of ten.
"""

from __future__ import annotations

import json
import re
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from frd.cli.client import Client
from frd_agent.exec import environment as exec_environment
from tests.docs.pages import ROOT, block, commands, line, lines
from tests.docs.shell import environment, run
from tests.world.daemons import finding_with, first_line, free_address, launched, running, until
from tests.world.io_traces import Call, Writer, write_trace
from tests.world.telemetry_files import event
from tests.world.telemetry_files import write as write_telemetry

FINDINGS = 3
"""Exit code of commands that report findings."""
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def person(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Her environment; she is in the folder `here`."""
    for name in ("here", "home"):
        (tmp_path / name).mkdir()
    with tempfile.TemporaryDirectory(prefix="frd-") as runtime:  # short: sockets are in it
        yield environment(tmp_path) | {
            "HOME": str(tmp_path / "home"),
            "XDG_RUNTIME_DIR": runtime,
            "FRD_GRPC": free_address(),
            "FRD_HTTP": free_address(),
            "FRD_AGENT_METRICS": free_address(),
            "FRD_POLICY__STALL_AFTER_S": "3",
        }


@pytest.fixture
def here(tmp_path: Path, person: dict[str, str]) -> Path:
    return tmp_path / "here"


@contextmanager
def typed(shown: str, env: dict[str, str], folder: Path, log: str) -> Iterator[str]:
    """A block with one line, which runs until the end; yields the first line that it prints."""
    (only,) = lines(shown)
    with running(["bash", "-c", only], cwd=folder, env=env, log=folder / log) as process:
        yield first_line(process)
        process.send_signal(signal.SIGTERM)


@pytest.mark.recorder
@pytest.mark.long
@pytest.mark.torch
def test_a_job_hangs_on_a_workstation(person: dict[str, str], here: Path) -> None:
    """Service, agent and job run as README and docs/workstation.md start them; then every line that
    asks about the hang, and every line for the time after a crash, works."""
    up = block("README.md", "frd up")
    start = block("README.md", "frd-agent exec")
    assert block("docs/workstation.md", "frd up") == up
    assert block("docs/workstation.md", "frd-agent exec -- ") == start
    train = (ROOT / "examples/missing_rank.py").read_text().replace("default=2", "default=1")
    (here / "train.py").write_text(train)
    write_telemetry(here / "rank_0.jsonl", [event(at / 10) for at in range(50)])
    write_trace(
        here / "traces/job-1.pfw", [*Writer("v2.2", 1).lines([Call("read", 0, 9, file="/x")])]
    )

    def works(shown: str) -> None:
        finds = shown.startswith(("frd findings ID", "frd analyze")) and "--memory" not in shown
        code, printed = run(re.sub(r"\bID\b", finding, shown), person, here)
        assert code == (FINDINGS if finds else 0), f"{shown}: {printed}"

    with typed(up, person, here, "up.log") as page:
        assert page == f"page: http://{person['FRD_HTTP']}/\n", (here / "up.log").read_text()
        until(lambda: "connected" in (here / "up.log").read_text(), "an agent that watches")
        with launched(["bash", "-c", start], cwd=here, env=person, log=here / "job.log"):
            finding = finding_with(Client(person["FRD_HTTP"]), "dump")["id"]
            asking = lines(block("README.md", "frd findings --watch"))
            closes = next(at for at, one in enumerate(asking) if " close " in one)
            others = lines(block("docs/workstation.md", "frd doctor --"))
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(works, asking[:closes] + others))
                list(pool.map(works, lines(block("docs/workstation.md", "frd status"))))
                after = lines(block("README.md", "frd analyze dumps"))
                list(pool.map(works, after + asking[closes:]))
    exported = (here / "all.jsonl").read_text().splitlines()
    assert finding in [json.loads(line)["id"] for line in exported]
    assert (here / "t.pftrace").stat().st_size > 0
    assert "frd: warning" not in (here / "job.log").read_text()


def test_a_service_for_slurm(person: dict[str, str], here: Path) -> None:
    """`frd init` makes what `frd serve` needs beyond loopback, and what the variables name."""
    init, serve = lines(block("README.md", "frd init"))
    code, printed = run(init, person, here)
    assert code == 0, printed
    with typed(serve, person, here, "serve.log") as addresses:
        assert json.loads(addresses)["grpc"] == person["FRD_GRPC"], (here / "serve.log").read_text()
    *exports, submit = lines(block("README.md", "sbatch examples"))
    assert commands(submit)[0][0] == "sbatch"
    code, printed = run("; ".join([*exports, "frd-agent run --check"]), person, here)
    assert code == 0, printed
    named = re.findall(r"=\$PWD/(\S+)", " ".join(exports))
    assert len(named) == 4
    assert all((here / name).exists() for name in named)


def test_a_job_for_kubernetes(person: dict[str, str], here: Path) -> None:
    """kubectl gets a valid job with the names of README's registry."""
    from tests.helm.chart import check

    apply = line("README.md", "kubectl apply")
    kubectl = Path(person["PATH"].partition(":")[0]) / "kubectl"
    kubectl.write_text('#!/bin/sh\necho "$*" >&2\ncat\n')
    kubectl.chmod(0o755)
    (here / "examples").symlink_to(ROOT / "examples")
    code, printed = run(apply, person, here)
    said, _, applied = printed.partition("\n")
    assert (code, said) == (0, "apply --filename -")
    for thing in yaml.safe_load_all(applied):
        check(thing)
    images = set(re.findall(r"image: (\S+)", applied))
    assert images == {f"registry.example/team/{name}" for name in ("frd:0.1.0", "training:1")}


def test_a_task_prolog_for_slurm(person: dict[str, str], here: Path) -> None:
    """The prolog of docs/slurm.md sets what `frd-agent exec` would set."""
    (here / "prolog").write_text(block("docs/slurm.md", "TaskProlog"))
    code, printed = run("SLURM_JOB_ID=7 bash prolog", person, here)
    assert code == 0, printed
    said = dict(one.removeprefix("export ").split("=", 1) for one in printed.splitlines())
    assert all(one.startswith("export ") for one in printed.splitlines())
    run_dir = str(here / "run")
    wanted = exec_environment({}, run_dir)
    assert said.pop("FRD_RUN_DIR") == "/tmp/frd-7"
    assert said.pop("PYTHONPATH").startswith("/opt/frd/tap/_site")
    assert said == {name: wanted[name] for name in said}
    assert set(wanted) - set(said) <= {"FRD_RUN_DIR", "PYTHONPATH", *DUMPS}


DUMPS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""The folder of the dumps, which only exec makes."""
