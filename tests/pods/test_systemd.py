"""A machine with systemd as PID 1, in a privileged container: what docs/workstation.md says to type
is typed there, and the daemons live through what happens to services.

All scenarios share the machine, in this order, because installing takes most of the time. Alice
trains; the service asks for tokens, so findings are read as root does.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.docs.pages import block
from tests.pods.engine import NETWORK, ROOT, EngineError, podman
from tests.pods.images import SYSTEMD, TORCH, pip_settings, site_packages
from tests.world.daemons import throughout, until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300), pytest.mark.xdist_group("systemd")]
UNITS: Final = ("frd", "frd-agent@alice")
_INSTALL_S: Final = 240.0
_HELD_UP_S: Final = 3.0


class Machine:
    def __init__(self, folder: Path) -> None:
        self.name = f"machine-{uuid.uuid4().hex[:8]}"
        self.installed = ""
        """What the console block printed."""
        source = folder / "frd"
        shutil.copytree(ROOT, source, ignore=_not_released)
        self._train = folder / "train.py"
        shutil.copy(ROOT / "tests/pods/contexts/training/train.py", self._train)
        podman(
            "run",
            "--detach",
            f"--name={self.name}",
            "--hostname=node-a",
            f"--network={NETWORK}",
            *("--privileged", "--systemd=always", "--cgroupns=host"),
            *pip_settings(),
            f"--volume={source}:/src:rw",
            f"--volume={site_packages()}:{TORCH}:ro",
            f"--volume={self._train}:/home/alice/train.py:ro",
            SYSTEMD,
        )
        self.await_start()
        self.type("useradd alice; useradd bob; mkfifo --mode=0666 /home/alice/shard-17.tar")

    def await_start(self) -> None:
        state = "is-system-running"
        until(lambda: self.says("systemctl", state) == "running", partial(self.says, "systemctl"))

    def run(self, *command: str, within_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        return podman("exec", "--workdir=/src", self.name, *command, check=False, within_s=within_s)

    def says(self, *command: str) -> str:
        return self.run(*command).stdout.strip()

    def type(self, lines: str, *, within_s: float = 60.0) -> str:
        """As root in a shell that stops at the first error; what all commands print."""
        done = self.run("bash", "-ec", lines, within_s=within_s)
        if done.returncode:
            raise EngineError(f"{done.stdout[-2000:]}{done.stderr[-2000:]}\n{self.journal()}")
        return done.stdout + done.stderr

    def show(self, unit: str, what: str) -> str:
        return self.says("systemctl", "show", "--value", f"--property={what}", unit)

    def is_active(self, unit: str) -> bool:
        return self.show(unit, "ActiveState") == "active"

    def journal(self, *options: str, since: str = "@0") -> str:
        """Lines of service and agents."""
        units = ("--unit=frd.service", "--unit=frd-agent@*")
        return self.says(
            *("journalctl", "--output=cat", "--no-pager", "--quiet", f"--since={since}"),
            *(*units, *options),
        )

    def now(self) -> str:
        return f"@{self.says('date', '+%s.%N')}"

    # -- what frd says -------------------------------------------------------------------------

    def frd(self, *arguments: str) -> Any:
        """The JSON that a command of root prints."""
        token = ("--token-file", "/etc/frd/operator-token")
        return json.loads(self.says("/opt/frd/bin/frd", *arguments, "--json", *token))

    def finding(self, words: str) -> dict[str, Any]:
        """The open one, once its suspect's stack has these words."""

        def found() -> dict[str, Any] | None:
            for one in self.frd("findings")["findings"]:
                if any(words in "\n".join(s.get("stack", ())) for s in one["suspects"]):
                    return dict(one)
            return None

        return until(found, lambda: f"{self.frd('findings')}\n{self.journal()[-4000:]}")

    def sees(self, ranks: int) -> bool:
        watching = self.frd("status")["watching"]
        return not watching["blind"] and watching["ranks"] == ranks

    # -- Alice's job ---------------------------------------------------------------------------

    def start_job(self) -> None:
        """With the command line of the page, in a session of her own."""
        (line,) = block("docs/workstation.md", "frd-agent exec --run-dir").splitlines()
        env = "--setenv=FAULT=/home/alice/fault --setenv=SHARD=/home/alice/shard-17.tar"
        where = f"--uid=alice --unit=train --working-directory=/home/alice {env}"
        self.type(f"rm -f /home/alice/fault; systemd-run --quiet --collect {where} {line}")
        until(lambda: self.sees(2), lambda: self.says("journalctl", "--no-pager", "--lines=50"))

    def break_job(self, fault: str) -> None:
        self.type(f"echo {fault} > /home/alice/fault.new; mv /home/alice/fault{{.new,}}")

    def end_job(self) -> None:
        self.type("systemctl kill --signal=KILL train")
        until(lambda: not self.frd("findings")["findings"], "no open finding")


def _not_released(folder: str, names: list[str]) -> list[str]:
    if Path(folder) == ROOT:
        return [name for name in names if name.startswith(".") or name == "tests"]
    return [name for name in names if name == "__pycache__"]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """The console block of the page has been typed."""
    made = Machine(tmp_path_factory.mktemp("machine"))
    try:
        made.installed = made.type(block("docs/workstation.md", "-m venv"), within_s=_INSTALL_S)
        yield made
    finally:
        podman("rm", "--force", "--time=0", made.name, check=False)


def test_the_console_block_works_as_typed(machine: Machine) -> None:
    """Both daemons are active, systemd has no complaint about the units, and nothing is worth a
    warning. The service's user can read what the service reads, and no other user can."""
    assert all(map(machine.is_active, UNITS))
    verified = machine.run(
        "systemd-analyze", "verify", "--man=no", *(f"{u}.service" for u in UNITS)
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    assert machine.journal("--priority=warning") == ""
    assert "only frd can read frd.toml, tokens; only root can read the others" in machine.installed
    listed = machine.type("cd /etc/frd; stat --format='%n %U %a' *").split("\n")
    assert sorted(filter(None, listed)) == [
        "agent-alice-token alice 600",
        "agent-alice.toml root 644",
        "agent-token root 600",
        "frd.toml frd 600",
        "operator-token root 600",
        "reader-token root 600",
        "tokens frd 600",
    ]
    asks = block("docs/workstation.md", "frd findings --token-file")
    assert machine.run("bash", "-c", asks).returncode == 0


def test_a_reload(machine: Machine) -> None:
    """A good file is used, by the service and by the agent. With a bad one the reload fails, says
    why with the priority of an error, and the daemons go on with what they had."""
    since, pids = machine.now(), [machine.show(unit, "MainPID") for unit in UNITS]
    files = ("/etc/frd/frd.toml", "/etc/frd/agent-alice.toml")
    machine.type(f"sed --in-place 's/^stall_after_s = .*/stall_after_s = {_HELD_UP_S}/' {files[0]}")
    machine.type(f"echo 'poll_s = 0.1' >> {files[1]}; systemctl reload {' '.join(UNITS)}")
    until(lambda: "policy.stall_after_s: changed" in machine.journal(since=since), machine.journal)
    until(lambda: "poll_s: changed" in machine.journal(since=since), machine.journal)
    for unit, file in zip(UNITS, files, strict=True):
        machine.type(f"cp --preserve {file} /root/good; sed --in-place '1i oops = 1' {file}")
        assert machine.run("systemctl", "reload", unit).returncode == 1
        assert machine.is_active(unit)
        machine.type(f"cp --preserve /root/good {file}; systemctl reload {unit}")
    errors = machine.journal("--priority=err", since=since)
    assert errors.count("oops: unknown key") == 2
    assert [machine.show(unit, "MainPID") for unit in UNITS] == pids


def test_an_upgrade_while_a_job_runs(machine: Machine) -> None:
    """Installed again and restarted under a healthy job: no finding, and the job is watched: when a
    rank then gets stuck in a read, rank, line and file are named."""
    machine.start_job()
    machine.type(block("docs/workstation.md", "--upgrade"), within_s=_INSTALL_S)
    until(lambda: machine.sees(2), machine.journal)

    def quiet() -> None:
        assert machine.frd("findings")["findings"] == []

    throughout(3 * _HELD_UP_S, quiet)
    machine.break_job("read 1")
    found = machine.finding("read_sample")
    (suspect,) = found["suspects"]
    assert (found["kind"], suspect["rank"]) == ("stall", 1)
    until(lambda: "shard-17.tar" in json.dumps(machine.frd("findings")), "the file")
    machine.end_job()


def test_both_daemons_are_killed_while_a_rank_holds_the_gil(machine: Machine) -> None:
    """The stack comes from py-spy, which the page installs. systemd starts the service again, then
    the agent: it is the same finding."""
    machine.start_job()
    machine.break_job("gil 1")
    found = machine.finding("tokenize")
    assert [suspect["rank"] for suspect in found["suspects"]] == [1]
    for unit in UNITS:
        pid = machine.show(unit, "MainPID")
        machine.type(f"systemctl kill --signal=KILL {unit}")
        until(lambda: machine.show(unit, "MainPID") not in (pid, "0"), "a restart")  # noqa: B023  called here
        until(lambda: machine.is_active(unit), "active")  # noqa: B023  the same
        until(lambda: machine.sees(2), machine.journal)
        assert [one["id"] for one in machine.frd("findings")["findings"]] == [found["id"]]
    machine.end_job()


def test_a_second_user(machine: Machine) -> None:
    """Bob's agent has its own file, token and port, as the page says, and cannot read Alice's."""
    machine.type(block("docs/workstation.md", "agent-bob-token"))
    assert machine.is_active("frd-agent@bob")
    fetch = "import urllib.request as u; u.urlopen('http://127.0.0.1:{}/metrics').read()"
    for port in (9375, 9376):
        machine.type(f'/opt/frd/bin/python -c "{fetch.format(port)}"')
    assert machine.run("runuser", "-u", "bob", "--", "ls", "/run/frd-alice").returncode
    assert machine.run("runuser", "-u", "bob", "--", "cat", "/etc/frd/tokens").returncode
    machine.type("systemctl disable --now frd-agent@bob")


def test_a_stop(machine: Machine) -> None:
    """Agent and service end in time and in order, without a line that is worth a warning."""
    since = machine.now()
    machine.type(f"systemctl stop {' '.join(UNITS)}", within_s=20)
    assert [machine.show(unit, "Result") for unit in UNITS] == ["success", "success"]
    assert "agent of node-a gone" in machine.journal(since=since)
    assert machine.journal("--priority=warning", since=since) == ""


def test_an_invalid_configuration_is_not_tried_again(machine: Machine) -> None:
    """The start fails immediately, and says why in the journal."""
    since = machine.now()
    for unit, file in (("frd", "frd.toml"), ("frd-agent@alice", "agent-alice.toml")):
        machine.type(f"sed --in-place '1i oops = 1' /etc/frd/{file}")
        assert machine.run("systemctl", "start", unit).returncode == 1
        assert machine.show(unit, "ActiveState") == "failed"
        assert machine.show(unit, "NRestarts") == "0"
        machine.type(f"sed --in-place 1d /etc/frd/{file}")
    assert machine.journal("--priority=err", since=since).count("oops: unknown key") == 2


def test_a_restart_of_the_machine(machine: Machine) -> None:
    """All is up again, with the findings of before."""
    machine.type(f"systemctl start {' '.join(UNITS)}")
    podman("restart", "--time=30", machine.name)
    machine.await_start()
    until(lambda: all(map(machine.is_active, UNITS)), machine.journal)
    until(lambda: machine.frd("status")["watching"]["agents"] == 1, machine.journal)
    said = [(one["kind"], one["summary"]) for one in machine.frd("findings", "--all")["findings"]]
    assert [kind for kind, _ in said] == ["stall", "stall"], said


def test_the_files_of_a_cluster(machine: Machine) -> None:
    """The certificates that docs/cluster.md says to install are read by NATS and by frd."""
    machine.type("cd /root; PATH=/opt/frd/bin:$PATH\n" + block("docs/cluster.md", "frd init pki"))
    machine.type(f"systemctl disable --now {' '.join(UNITS)}; userdel frd")
    machine.type("cd /root\n" + block("docs/cluster.md", "--owner=nats"))
    for user, folder in (("nats", "/etc/nats"), ("frd", "/etc/frd")):
        machine.type(
            f"runuser -u {user} -- cat {folder}/ca.pem {folder}/server.pem {folder}/server.key"
        )
