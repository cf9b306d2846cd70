"""The scripted NVIDIA driver of `tests/nvml/driver.c`: built and scripted.

The library bears the name that pynvml looks for. A process finds it through `environment`, at its
start; this one through `preload`, after which the loader knows the name. Where there is no compiler
there is no driver (`build` returns None).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "nvml" / "driver.c"
LIBRARY = "libnvidia-ml.so.1"
SCRIPT = "FRD_TEST_NVML"
GIB = 1 << 30

GPU_IS_LOST, NO_PERMISSION, DRIVER_NOT_LOADED, NOT_SUPPORTED, UNKNOWN = 15, 4, 9, 3, 999


def build(folder: Path) -> Path | None:
    """The folder that holds the library; None without a compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{LIBRARY}"]
    command = [compiler, *options, "-o", str(folder / LIBRARY), str(SOURCE), "-lpthread"]
    subprocess.run(command, check=True)
    return folder


def preload(folder: Path) -> None:
    ctypes.CDLL(str(folder / LIBRARY))


@dataclass
class Driver:
    """Answers of the driver from the next `write` on."""

    script: Path
    devices: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Bytes used and total by UUID, in the order of their index."""
    instances: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)
    """Index of the device, slot, bytes used and total by UUID."""
    processes: list[tuple[str, str, int, int]] = field(default_factory=list)
    """UUID, ``compute`` or ``graphics``, pid, bytes used."""
    errors: dict[tuple[str, str], int] = field(default_factory=dict)
    """By call and UUID (or ``*``)."""
    hangs: str = ""

    def write(self) -> Driver:
        lines = [
            *(f"device {i} {u} {a} {b}" for i, (u, (a, b)) in enumerate(self.devices.items())),
            *(f"instance {i} {s} {u} {a} {b}" for u, (i, s, a, b) in self.instances.items()),
            *(f"process {u} {which} {pid} {used}" for u, which, pid, used in self.processes),
            *(f"error {call} {uuid} {code}" for (call, uuid), code in self.errors.items()),
            *([f"hang {self.hangs}"] if self.hangs else []),
        ]
        fresh = self.script.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(self.script)
        return self

    def environment(self, folder: Path) -> dict[str, str]:
        """For a process that is to find this driver."""
        paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {SCRIPT: str(self.script), "LD_LIBRARY_PATH": os.pathsep.join(paths)}


def uuid(number: int, kind: str = "GPU") -> str:
    return f"{kind}-{number:08x}-0000-4000-8000-{number:012x}"
