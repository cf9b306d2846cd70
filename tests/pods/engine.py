"""podman, as these tests use it: with its own configuration, images and containers.

Everything is below one folder. The machine's own podman sees nothing of it, and removing all
containers removes those of these tests only. What a pod consists of is the business of `manifests`.

`python -m tests.pods.engine ARGUMENT..` is podman with this configuration, for people;
`python -m tests.pods.engine remove` removes all but the images.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = Path(os.environ.get("FRD_PODS", ROOT / ".pods"))
"""Images and state; as large as they are, they stay for the next run."""
NETWORK: Final = "frd-pods"
LIMIT_S: Final = 120.0
_CAPABILITIES: Final = (
    "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE NET_RAW SETFCAP "
    "SETGID SETPCAP SETUID SYS_CHROOT"
)
"""What Kubernetes' engines give to a container that asks for nothing."""


_CONF: Final = FOLDER / "containers.conf"
_STORAGE_CONF: Final = FOLDER / "storage.conf"


class EngineError(Exception):
    """podman failed; the text is what it said."""


def configure() -> None:
    """Write the engine's configuration, which `podman` then uses."""
    network = FOLDER / "network"
    network.mkdir(parents=True, exist_ok=True)
    capabilities = ", ".join(f'"{name}"' for name in _CAPABILITIES.split())
    _CONF.write_text(f"""
[containers]
default_capabilities = [{capabilities}]
default_ulimits = ["nofile=16384:16384", "nproc=32000:32000"]
log_driver = "k8s-file"
pids_limit = 0
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
image_default_format = "docker"
lock_type = "file"
tmp_dir = "{FOLDER}/tmp"
[network]
network_config_dir = "{network}"
""")
    _STORAGE_CONF.write_text(f"""
[storage]
driver = "overlay"
graphroot = "{FOLDER}/storage"
runroot = "{FOLDER}/run"
""")


def podman(
    *arguments: str | Path,
    check: bool = True,
    within_s: float = LIMIT_S,
    stdin: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `podman ARGUMENTS`; standard output and error are kept.

    Raises:
        EngineError: it failed, unless `check` is false.
    """
    done = subprocess.run(
        ["podman", *map(str, arguments)],
        env=os.environ | _variables(),
        input=stdin,
        check=False,
        capture_output=True,
        text=True,
        timeout=within_s,
    )
    if check and done.returncode:
        words = " ".join(map(str, arguments))
        raise EngineError(f"podman {words}: {done.stderr.strip()[-2000:]}")
    return done


def _variables() -> dict[str, str]:
    return {"CONTAINERS_CONF": str(_CONF), "CONTAINERS_STORAGE_CONF": str(_STORAGE_CONF)}


def inspect(name: str, kind: str = "container") -> dict[str, Any]:
    (found,) = json.loads(podman("inspect", "--type", kind, name).stdout)
    one: dict[str, Any] = found
    return one


def read_log(path: Path) -> str:
    """Standard output and error, from the file of the engine, which takes long to print them."""
    lines = path.read_text("utf-8", "replace").splitlines()
    parts = [line.split(" ", 3) for line in lines]  # time, stream, F or P (partial), text
    return "".join(p[3] + ("\n" if p[2] == "F" else "") for p in parts if len(p) == 4)


def execute(
    name: str, *command: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`kubectl exec`; the exit status is that of the command."""
    given = [f"--env={key}={value}" for key, value in (env or {}).items()]
    return podman("exec", *given, name, *command, check=False)


def make_network() -> None:
    """The network of all pods, on addresses that no other network of this machine uses."""
    if podman("network", "exists", NETWORK, check=False).returncode:
        podman("network", "create", NETWORK)


def remove_everything() -> None:
    """Pods, containers and the network of any earlier run; images stay."""
    configure()
    podman("pod", "rm", "--all", "--force", "--time", "0", check=False)
    podman("rm", "--all", "--force", "--time", "0", check=False)
    podman("network", "rm", "--force", NETWORK, check=False)
    parents = Path("/sys/fs/cgroup").glob("*/libpod_parent")
    for path in (path for parent in parents for path in (parent / "conmon", parent)):
        with contextlib.suppress(OSError):  # in use, by the machine's own podman
            path.rmdir()


def main() -> None:
    if sys.argv[1:] == ["remove"]:
        remove_everything()
    else:
        configure()
        os.execvpe("podman", ["podman", *sys.argv[1:]], os.environ | _variables())


if __name__ == "__main__":
    main()
