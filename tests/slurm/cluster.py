"""A Slurm cluster on this machine: a login node with the controller, and two compute nodes.

Each of them is a pair of namespaces with a host name, /tmp, users, addresses and its own boot id,
so that agents and ranks of two nodes differ as on real ones. They share the clock, the network
and the processors of this machine. The job's script is the recipe, which an ordinary user submits
unchanged; the service is a real `frd serve`.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

from frd.cli.client import Client
from tests.world.daemons import end, findings, free_port, run_program, start, until
from tests.world.streams import Service, serving

T = TypeVar("T")
ROOT: Final = Path(__file__).parents[2]
RECIPE: Final = ROOT / "examples/slurm/train.sbatch"
STALL_AFTER_S: Final = 5.0
LOST_AFTER_S: Final = 20.0
RANKS: Final = 2
"""Ranks of a node, one for each of its invented GPUs."""
PATIENCE_S: Final = 120.0
"""Limit for what takes seconds on an idle machine."""
_UID: Final = 12_001
_NODES: Final = {"n1": "127.0.1.1", "n2": "127.0.1.2"}
CPUS: Final = os.cpu_count() or 1
SHARED: Final = ("--oversubscribe", f"--cpus-per-task={CPUS}", "--gpus-per-node=1")
"""Flags of a job that shares its nodes, instead of --exclusive: it has one rank on each."""


class Machine:
    """One machine of the cluster."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.tmp = folder / name / "tmp"
        """Its /tmp."""
        self.tmp.mkdir(parents=True)
        (folder / name / "spool").mkdir()
        self.tmp.chmod(0o1777)
        addresses = "".join(f"{address} {node}\n" for node, address in _NODES.items())
        user = f"alice:x:{_UID}:{_UID}::{folder / 'work'}:/bin/bash\n"
        own = {
            "/etc/hosts": f"127.0.0.1 localhost login\n{addresses}",
            "/etc/passwd": Path("/etc/passwd").read_text() + user,
            "/etc/group": f"{Path('/etc/group').read_text()}alice:x:{_UID}:\n",
            "/proc/sys/kernel/random/boot_id": f"{uuid.uuid4()}\n",
        }
        script = ["set -e", f"hostname {name}", *_visible(folder, self.tmp)]
        for path, text in own.items():
            file = folder / name / Path(path).name
            file.write_text(text)
            script.append(f"mount --bind {file} {path}")
        script += ["echo ready", "exec sleep infinity"]
        apart = ["unshare", "--uts", "--mount", "--propagation", "private"]
        env = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._first = start([*apart, "sh", "-c", "\n".join(script)], env=env)
        assert self._first.stdout is not None
        assert self._first.stdout.readline() == "ready\n"
        # Open until the machine is killed: else another one may get the number of its namespace,
        # and be killed with it.
        self._namespace: int | None = os.open(f"/proc/{self._first.pid}/ns/mnt", os.O_RDONLY)
        self._daemons: list[subprocess.Popen[str]] = []

    def enter(self, *command: object) -> list[str]:
        """The command line that runs `command` on this machine."""
        inside = ["nsenter", "--target", str(self._first.pid), "--uts", "--mount"]
        return [*inside, *map(str, command)]

    def start(self, *command: object, env: Mapping[str, str], log: Path) -> None:
        """A daemon of root."""
        options = {"env": env, "log": log, "stdout": subprocess.DEVNULL}
        self._daemons.append(start(self.enter(*command), **options))  # type: ignore[arg-type]  # mypy wants one type for all options

    def kill(self) -> None:
        """The end of all its processes."""
        while pids := list(self.processes()):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in (self._first, *self._daemons):
                end(process)
        if self._namespace is not None:
            os.close(self._namespace)
            self._namespace = None

    def processes(self, words: str = "") -> Iterator[int]:
        """Those with `words` in their command line."""
        if self._namespace is None:
            return
        mine = os.fstat(self._namespace)
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if os.path.samestat(os.stat(path / "ns/mnt"), mine) and words in command:
                    yield int(path.name)


def _visible(folder: Path, tmp: Path) -> Iterator[str]:
    """Commands for its own /tmp, and for folders that an ordinary user can enter: what the job
    needs stays, even if it is in /tmp or in a home that only its owner may enter."""
    needed = sorted({ROOT, folder, Path(sys.prefix), Path(sys.base_prefix).resolve()})
    yield "mount -t tmpfs none /mnt"
    for number, path in enumerate(needed):
        yield f"mkdir /mnt/{number}; mount --bind {path} /mnt/{number}"
    yield f"mount --bind {tmp} /tmp"
    covered = {Path("/tmp")}
    for path in needed:
        for parent in reversed(path.parents):
            if not parent.stat().st_mode & 0o001 and covered.isdisjoint([parent, *parent.parents]):
                covered.add(parent)
                yield f"mount -t tmpfs -o mode=755 none {parent}"
    for number, path in enumerate(needed):
        if not covered.isdisjoint(path.parents):
            yield f"mkdir -p {path}; mount --bind /mnt/{number} {path}"


class Cluster:
    """Of one test; all its processes end with it."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self.nodes: dict[str, Machine] = {}
        self.next_job = random.randrange(1, 60_000)
        self.train = ROOT / "tests/slurm/train.py"
        self.service: Service
        self.client: Client

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, stack: contextlib.ExitStack) -> None:
        folder = Path(tempfile.mkdtemp(prefix="c", dir=os.environ["FRD_SLURM"]))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        self.folder, self.work = folder, folder / "work"
        self.work.mkdir()
        os.chown(self.work, _UID, _UID)
        config = folder / "frd.toml"
        policy = f"stall_after_s = {STALL_AFTER_S}\nlost_after_s = {LOST_AFTER_S}\n"
        config.write_text(f"[policy]\n{policy}")
        flags = ("--config", config)
        self.service = stack.enter_context(
            serving(folder / "data", *flags, log=folder / "service.log")
        )
        self.client = Client(self.service.http)
        self._configure()
        self.env = {
            "PATH": f"{sys.prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": f"{ROOT}:{ROOT}/agents",
            "SLURM_CONF": str(folder / "slurm.conf"),
            "HOME": str(self.work),
            "OMP_NUM_THREADS": "1",
            "FRD_AGENT_SERVICE": self.service.grpc,
        }
        machines = {}
        for name in ("login", *_NODES):
            machines[name] = Machine(folder, name)
            stack.callback(machines[name].kill)
        self.login = machines.pop("login")
        self.nodes = machines
        key = folder / "munge.key"
        key.write_bytes(random.randbytes(128))
        key.chmod(0o600)
        files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        munged = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files]
        self.login.start(*munged, env=self.env, log=folder / "munged.log")
        until((folder / "munge.socket").exists, "munged")
        self.login.start("slurmctld", "-D", env=self.env, log=folder / "slurmctld.log")
        for name, node in self.nodes.items():
            node.start("slurmd", "-D", "-N", name, env=self.env, log=folder / f"{name}.log")
        until(lambda: self.run("sinfo", "-h", "-o", "%T %D").stdout == "idle 2\n", self.report)

    def _configure(self) -> None:
        text = f"""
ClusterName=frd
SlurmctldHost=login(127.0.0.1)
SlurmctldPort={free_port()}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={self.folder}/munge.socket
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/%n/spool
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/%n/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
MinJobAge=3600
FirstJobId={self.next_job}
PartitionName=all Default=YES Nodes=ALL OverSubscribe=YES:4
"""
        for node, address in _NODES.items():
            where = f"NodeHostname={node} NodeAddr={address} Port={free_port()}"
            text += f"NodeName={node} {where} CPUs={CPUS} RealMemory=1000 Gres=gpu:{RANKS}\n"
        (self.folder / "slurm.conf").write_text(text)
        for number in range(RANKS):  # as /dev/null: Slurm wants devices
            os.mknod(self.folder / f"gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        gpus = f"AutoDetect=off\nName=gpu File={self.folder}/gpu[0-{RANKS - 1}]\n"
        (self.folder / "gres.conf").write_text(gpus)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        """A command of the user on the login node, in the folder of the submission."""
        user = ["setpriv", f"--reuid={_UID}", f"--regid={_UID}", "--clear-groups"]
        where = ["env", f"--chdir={self.work}"]
        return run_program(self.login.enter(*user, *where, *command), env=self.env)

    def submit(self, *flags: str, script: Path = RECIPE) -> Job:
        """A job of both nodes with `RANKS` ranks each."""
        size = ["--nodes=2", f"--gpus-per-node={RANKS}", "--time=10"]
        done = self.run("sbatch", "--parsable", *size, *flags, script, self.train)
        assert done.returncode == 0, done.stderr
        return Job(self, done.stdout.strip())

    def report(self) -> str:
        """For a test that fails."""
        jobs = self.run("scontrol", "-d", "show", "job").stdout
        logs = sorted([*self.folder.glob("*.log"), *self.work.glob("*")])
        parts = [f"--- {p.name}:\n{p.read_text('utf-8', 'replace')[-3000:]}" for p in logs]
        return "\n".join([jobs, *parts])


class Job:
    """A submitted job, as Slurm and the service see it."""

    def __init__(self, cluster: Cluster, number: str, name: str = "train") -> None:
        self.cluster = cluster
        self.number = number
        self.name = f"{name}-{number}"

    def until(self, condition: Callable[[], T | None], what: str) -> T:
        return until(condition, lambda: f"{what}: {self.report()}", PATIENCE_S)

    # -- Slurm's view --------------------------------------------------------------------------

    def slurm(self) -> dict[str, str]:
        """What `scontrol show job` prints."""
        shown = self.cluster.run("scontrol", "-d", "-o", "show", "job", self.number).stdout
        return dict(word.partition("=")[::2] for word in shown.split())

    def wait(self) -> tuple[str, str, str]:
        """State, exit code and the derived one, once Slurm has ended all its processes."""

        def over() -> dict[str, str] | None:
            found = self.slurm()
            is_over = found["JobState"] not in ("PENDING", "RUNNING", "COMPLETING")
            return found if is_over and not self._is_completing() else None

        found = self.until(over, f"the end of {self.number}")
        return found["JobState"], found["ExitCode"], found["DerivedExitCode"]

    def _is_completing(self) -> bool:
        return bool(self.cluster.run("squeue", "-h", "-j", self.number).stdout)

    def ask(self, *command: str) -> None:
        """Something of Slurm, about this job."""
        done = self.cluster.run(*command)
        assert done.returncode == 0, done.stderr

    def log(self) -> str:
        """What the script and the ranks have written."""
        path = self.cluster.work / f"train-{self.number}.log"
        return path.read_text() if path.exists() else ""

    def broke_s(self) -> float:
        """When a rank got stuck, by the clock of this machine."""
        return min(int(at) for at in re.findall(r"breaks at (\d+)", self.log())) / 1e9

    def break_(self, fault: str) -> None:
        """Let it happen: see train.py."""
        path = self.cluster.work / f"fault-{self.number}"
        path.with_suffix(".new").write_text(fault)
        path.with_suffix(".new").rename(path)

    def run_dirs(self) -> list[Path]:
        """The run directories that its nodes have."""
        folders = [node.tmp for node in self.cluster.nodes.values()]
        return [path for folder in folders for path in folder.glob(f"frd-{self.number}-*")]

    # -- the service's view --------------------------------------------------------------------

    def details(self) -> dict[str, Any]:
        path = f"/api/v1/jobs/{quote(self.name, safe='')}"
        found: dict[str, Any] = self.cluster.client.get(path)
        return found

    def state(self) -> str:
        """Empty if the service does not know the job."""
        jobs = self.cluster.client.get("/api/v1/jobs")["jobs"]
        return next((one["state"] for one in jobs if one["job"] == self.name), "")

    def until_watched(self) -> None:
        """All ranks train, and the service has matched collectives of theirs."""

        def watched() -> bool:
            return bool(self.state()) and (
                sum(int(group["matched"]) for group in self.details()["groups"]) > 10
            )

        self.until(watched, f"{self.name} is watched")

    def blind(self) -> list[str]:
        """Why the service is blind for this job."""
        watching = self.cluster.client.get("/api/v1/findings")["watching"]
        return [text for text in watching["blind"] if self.name in text]

    def cpus(self) -> set[int]:
        """How many processors its ranks may use."""
        return {int(number) for number in re.findall(r"trains on (\d+) CPUs", self.log())}

    def ranks(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.details()["ranks"]
        return found

    def findings(self, **query: str) -> list[dict[str, Any]]:
        return [one for one in findings(self.cluster.client, **query) if one["job"] == self.name]

    def until_over(self, state: str = "ended") -> None:
        """The service knows that the job is over, and misses nothing."""
        self.until(lambda: self.state() == state and not self.blind(), f"{self.name} is {state}")

    def report(self) -> str:
        seen = f"{self.name}: {self.state()}, {self.blind()}, {self.findings()}"
        return f"{seen}\n{self.cluster.report()}"
