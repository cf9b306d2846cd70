"""What these tests need of a machine: ``python -m tests.gpu.machine`` says why one cannot run them,
or which versions it has."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable

SHARED_GPU_SINCE = (2, 30, 0)
"""The first NCCL that lets several ranks share a GPU."""
RANK_BYTES = 1 << 30
"""CUDA context, NCCL's buffers and tensors of a rank of these tests."""
MOST_RANKS = 20
"""Of four jobs at a time, one of them with 8 ranks."""
MOST_GPUS = 8
"""With so many no rank shares one."""

BACKEND = os.environ.get("FRD_GPU_BACKEND", "nccl")
"""``gloo`` runs the jobs on CPUs, to try the tests themselves."""

SHARING = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_CTAS": "2",  # the kernels of all ranks must be resident together
}
"""Variables that let ranks share a GPU."""


def facts() -> dict[str, str]:
    """``skip``, a reason or nothing, and ``versions``; asked in a process that then gives its GPU
    memory back."""
    command = [sys.executable, "-m", "tests.gpu.machine", "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    if done.returncode:
        return {"skip": f"torch: {done.stderr.strip()[-200:]}", "versions": ""}
    known: dict[str, str] = json.loads(done.stdout)
    return known


def reason_to_skip(
    cuda: str | None, devices: int, nccl: Callable[[], tuple[int, ...]], free: Callable[[], int]
) -> str:
    """Why these tests cannot run; empty if they can. `cuda` is the version that torch was built
    for, `free` the free bytes of the first device."""
    if cuda is None:
        return "this torch is no CUDA build: install one, or run make test-gpu"
    if not devices:
        return "no GPU: the NVIDIA driver is not loaded, or shows no device"
    if devices >= MOST_GPUS:
        return ""
    if (version := nccl()) < SHARED_GPU_SINCE:
        return (
            f"NCCL {_dotted(version)} refuses to share a GPU: "
            f"install nvidia-nccl {_dotted(SHARED_GPU_SINCE)} or later"
        )
    if (left := free()) < MOST_RANKS * RANK_BYTES:
        return f"{left >> 20} MiB of GPU memory are free: {MOST_RANKS * RANK_BYTES >> 20} needed"
    return ""


def _reason_to_skip() -> str:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed: make test-gpu installs it"
    if BACKEND == "gloo":
        return ""
    import torch

    return reason_to_skip(
        torch.version.cuda,
        torch.cuda.device_count(),
        _nccl_version,
        lambda: int(torch.cuda.mem_get_info()[0]),
    )


def _nccl_version() -> tuple[int, ...]:
    """Of the library that torch has loaded, not of the one that it was built with."""
    number = ctypes.c_int()
    ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
    return number.value // 10_000, number.value // 100 % 100, number.value % 100


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _versions() -> str:
    import torch

    if BACKEND == "gloo":
        return f"torch {torch.__version__}, gloo on CPUs"
    gpu = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    cuda = f"CUDA {torch.version.cuda}, NCCL {_dotted(_nccl_version())}"
    return f"torch {torch.__version__}, {cuda}, {gpu}"


def main() -> None:
    skip = _reason_to_skip()
    known = {"skip": skip, "versions": "" if skip else _versions()}
    if "--json" in sys.argv:
        print(json.dumps(known))
    else:
        print(f"skipped: {skip}" if skip else known["versions"])


if __name__ == "__main__":
    main()
