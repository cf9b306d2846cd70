"""Limits that follow the memory of the service: those that are 0 in the configuration."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from frd.config.settings import Config
from frd.engine.room import OBJECT_BYTES

_CGROUP: Final = ("memory.max", "memory/memory.limit_in_bytes")


def with_room(config: Config, cgroup: Path = Path("/sys/fs/cgroup")) -> Config:
    """The configuration in force: half of the memory is for what the engine holds, a quarter for
    the declarations of one peer. In a container `cgroup` has its limit."""
    objects, policy, limits = _memory_bytes(cgroup) // OBJECT_BYTES, config.policy, config.limits
    most, of_peer = policy.max_objects or objects // 2, limits.objects_per_peer or objects // 4
    update = {
        "policy": replace(policy, max_objects=most),
        "limits": replace(limits, objects_per_peer=of_peer),
    }
    return config.model_copy(update=update)


def _memory_bytes(cgroup: Path) -> int:
    known = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in _CGROUP:
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
            known.append(int((cgroup / name).read_text()))
    return min(known)
