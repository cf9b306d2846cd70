"""What a rank waits for whose DataLoader is stuck, with torch's own workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from frd.model import Certainty, WaitKind, WaitsFor
from tests.world.suspects import inspect, suspect

pytestmark = pytest.mark.torch

LOADER = """
    import os, sys, warnings
    import torch
    from torch.utils.data import DataLoader, Dataset
    class Shards(Dataset):
        def __len__(self):
            return 100
        def __getitem__(self, index):
            if index == 5:
                {stuck}
            return torch.zeros(1)
    batches = iter(DataLoader(Shards(), batch_size=1, num_workers=2))
    for _ in range(5):
        next(batches)
    print("ready", flush=True)
    next(batches)
"""
FORMS = {
    "read": ("os.read(os.open(sys.argv[1], os.O_RDONLY), 1)", WaitKind.FILE_READ),
    "sleep": ("__import__('time').sleep(300)", WaitKind.SLEEP),
    "loop": ("exec('while True: pass')", WaitKind.ON_CPU),
}


@pytest.mark.parametrize("form", FORMS)
def test_one_of_two_workers_is_stuck(tmp_path: Path, form: str) -> None:
    """The rank polls a pipe; behind it one worker is stuck, and the other one has no work."""
    stuck, kind = FORMS[form]
    path = tmp_path / "shard-17.tar"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR)

    def is_settled(found: WaitsFor) -> bool:
        what = (found.kind, found.certainty, found.rest)
        return what == (kind, Certainty.SEEN, "1 other worker is idle")

    with suspect(LOADER.replace("{stuck}", stuck), path) as rank:
        found = inspect(rank.pid, enough=is_settled)
        assert found.pid != rank.pid
    os.close(fd)
    assert (found.process, found.topic) == ("pt_data_worker", "data")
    assert found.says.startswith(f"its loader worker (pid {found.pid}) has been ")
    if kind is WaitKind.FILE_READ:
        assert found.what == str(path)
