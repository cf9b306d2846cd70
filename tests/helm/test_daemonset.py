"""What the DaemonSet's init container makes of the directory of the host, run on a real one.

Other users are real, too: processes with another uid that try what they may and may not do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helm.chart import ROOT, render

PACKAGE = ROOT / "agents/frd_agent"
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories to other users"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is absent (util-linux)"),
]


@pytest.fixture
def host() -> Iterator[Path]:
    """The directory of the host, which other users can reach, as the kubelet makes it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        place = Path(folder)
        place.chmod(0o755)
        (place / "frd").mkdir()
        (place / "frd").chmod(0o755)
        yield place / "frd"


def prepare(host: Path, uid: int) -> None:
    """Run the init container's command with the capabilities that it has.

    Raises:
        subprocess.CalledProcessError: it fails, so the kubelet does not start the agent.
    """
    values = {"agent": {"daemonset": {"enabled": True, "runAsUser": uid}}}
    container = render(values).pod("DaemonSet")["initContainers"][0]
    program, flag, script = container["command"]
    with tempfile.TemporaryDirectory() as image:
        shutil.copytree(PACKAGE / "_site", Path(image) / "tap/_site")
        shutil.copy(PACKAGE / "tap.py", Path(image) / "tap")
        script = script.replace("/opt/frd", image).replace("/run/frd", str(host))
        added = container["securityContext"]["capabilities"]["add"]
        kept = ",".join(["-all", *(f"+{name.lower()}" for name in added)])
        limits = ["setpriv", "--no-new-privs", "--bounding-set", kept, "--inh-caps=-all"]
        subprocess.run([*limits, program, flag, script], check=True, capture_output=True)


def may(uid: int, script: str, host: Path) -> bool:
    """Whether a process of that user, in the directory, runs the script to its end."""
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    command = [*user, "sh", "-ec", script]
    return subprocess.run(command, cwd=host, capture_output=True, check=False).returncode == 0


def state(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_uid, found.st_mode & 0o7777


def test_ranks_of_many_users_publish_on_a_node(host: Path) -> None:
    """Each user makes private files and directories; none can remove, rename or read another's, nor
    replace the tap that all load."""
    prepare(host, 0)
    assert state(host) == (0, 0o755)
    assert state(host / "run") == state(host / "run/dumps") == (0, 0o1777)
    for uid in (2000, 3000):
        mine = f"umask 077; echo mine > run/{uid}.json; mkdir run/{uid}; echo 1 > run/dumps/{uid}"
        assert may(uid, mine, host)
        assert may(uid, "cat tap/tap.py tap/_site/sitecustomize.py", host)
    for attempt in (
        "cat run/2000.json",
        "rm -f run/2000.json",
        "mv run/2000.json run/stolen",
        "rm -rf run/2000",
        "mv run/dumps run/elsewhere",
        "mv run other",
        "echo >> tap/tap.py",
        "mv tap other",
        "touch new",
    ):
        assert not may(3000, attempt, host), attempt
    assert may(2000, "rm run/2000.json", host)


def test_a_node_of_one_user_is_closed_to_others(host: Path) -> None:
    """The run directory belongs to the ranks' uid alone; others may leave a note next to it."""
    prepare(host, 1000)
    assert state(host) == (0, 0o1777)
    assert state(host / "run") == state(host / "run/dumps") == (1000, 0o700)
    assert may(1000, "echo mine > run/rank.json", host)
    assert not may(2000, "ls run", host)
    assert may(2000, "echo > refused.2000", host)
    for attempt in ("mv tap other", "rm refused.2000"):
        assert not may(1000, attempt, host), attempt


def test_an_installation_with_another_user_takes_over(host: Path) -> None:
    """In either direction, also from a directory of the release before, and again at every restart;
    what ranks have published stays theirs."""
    (host / "run/dumps").mkdir(parents=True)
    for path in (host / "run", host / "run/dumps"):
        path.chmod(0o700)
    os.chown(host, 1000, 1000)
    for uid in (1000, 1000, 0, 0, 1000):
        prepare(host, uid)
        assert state(host / "run") == ((0, 0o1777) if uid == 0 else (1000, 0o700))
        assert state(host / "tap/tap.py")[0] == 0
        if not (host / "run/rank.json").exists():
            assert may(1000, "umask 077; echo mine > run/rank.json", host)
        assert state(host / "run/rank.json") == (1000, 0o600)


@pytest.mark.parametrize("name", ["run", "run/dumps", "tap"])
def test_a_symbolic_link_is_refused(host: Path, name: str) -> None:
    """A user who could once write in the directory cannot have another path changed by root."""
    target = host.parent / "target"
    target.mkdir(mode=0o750)
    (host / name).parent.mkdir(exist_ok=True)
    (host / name).symlink_to(target)
    with pytest.raises(subprocess.CalledProcessError):
        prepare(host, 0)
    assert state(target) == (0, 0o750)
    assert not list(target.iterdir())
