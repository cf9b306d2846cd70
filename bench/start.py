"""What frd costs a Python process at its start, and a rank when torch's worker server starts.

Each figure of a start is the time that one new interpreter spends: in frd's line of a `.pth` file,
in the `sitecustomize` of `frd-agent exec`, or in importing a torch.distributed that is empty, and
so in loading and starting the tap. Medians of many. The worker server, which has a thread per core,
is started in ranks that believe to have 8, 64 and 192 cores (`cores.c`).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # `bench` is not installed

from bench.report import show
from frd_agent import tap

SITE = Path(tap.__file__).parent / "_site"
TIMED = """
import os, sys, time
sys.path[:0] = {path!r}
began = time.perf_counter()
{line}
print((time.perf_counter() - began) * 1e3)
"""
SERVER = """
import os, sys, time
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(8))

def used():
    status = open("/proc/self/status").read()
    resident = open("/proc/self/smaps_rollup").read().partition("Pss:")[2]
    number = lambda name: int(status.partition(name + ":")[2].split()[0])
    return number("Threads"), number("VmSize") / 1024, int(resident.split()[0])

before, cpu_s = used(), time.process_time()
server = torch._C._distributed_c10d._WorkerServer(sys.argv[1])
time.sleep(1)
cpu_s = time.process_time() - cpu_s
print(*(after - was for after, was in zip(used(), before)), cpu_s * 1e3, flush=True)
os._exit(0)
"""


def timed(line: str, path: list[str], folder: Path) -> float:
    """Milliseconds, in an interpreter without any `.pth` file."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    code = TIMED.format(path=path, line=line)
    python = [sys.executable, "-S", "-c", code]
    run_dir = env | {"FRD_RUN_DIR": str(folder)}
    return float(subprocess.run(python, env=run_dir, capture_output=True, check=True).stdout)


def starts(folder: Path, runs: int) -> dict[str, float]:
    package = folder / "torch" / "distributed"
    package.mkdir(parents=True)
    for module in (package, package.parent):
        (module / "__init__.py").touch()
    purelib, root, fake = sysconfig.get_path("purelib"), str(SITE.parent.parent), str(folder)
    # Modules that torch imports in any case.
    torch = "import importlib.util, ctypes, json, signal, socket, subprocess\n"
    torch += "{}began = time.perf_counter()\nimport torch.distributed"
    kinds = {
        "pth_ms": ((SITE.parent.parent / "frd_tap.pth").read_text().strip(), [purelib, root]),
        "sitecustomize_ms": ("import sitecustomize", [str(SITE)]),
        "torch_without_tap_ms": (torch.format(""), [fake]),
        "torch_with_tap_ms": (torch.format("import frd_tap_start\n"), [str(SITE), fake]),
    }
    figures: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(runs):  # in turns, as a machine drifts
        for name, (line, path) in kinds.items():
            figures[name].append(timed(line, path, folder))
    return {name: round(statistics.median(values), 2) for name, values in figures.items()}


def servers(folder: Path) -> dict[str, object]:
    library = folder / "cores.so"
    source = Path(__file__).with_name("cores.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    found: dict[str, object] = {}
    for cores in (8, 64, 192):
        env = os.environ | {"LD_PRELOAD": str(library), "CORES": str(cores)}
        python = [sys.executable, "-c", SERVER, str(folder / f"{cores}.sock")]
        said = subprocess.run(
            python, env=env | {"OMP_NUM_THREADS": "1"}, capture_output=True, check=True
        ).stdout.split()
        found[f"server_{cores}_cores"] = {
            "threads": int(said[0]),
            "address_space_mib": round(float(said[1])),
            "resident_kib": int(said[2]),
            "cpu_ms": round(float(said[3]), 1),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--runs", type=int, default=40, help="starts of each kind (%(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = starts(Path(folder), arguments.runs) | servers(Path(folder))
    show(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
