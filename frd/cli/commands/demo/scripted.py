"""The program of a scripted rank: what a real job's rank does in a scenario, without torch.

All ranks follow the script by the wall clock, so their recorders report what a real job's recorders
would. Run as `python -m frd.cli.commands.demo.scripted SCENARIO` with a launcher's environment
(RANK, WORLD_SIZE, FRD_JOB, FRD_RUN_DIR, FRD_DEMO_START_AT).
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frd.cli.commands.demo.scenarios import SCENARIOS
from frd.cli.commands.demo.scripted_rank import WORLD, ScriptedRank
from frd_agent import tap

STEP_S = 0.05
FAULT_STEP = 60
LATE_S = 8.0
STRAGGLES_S = 0.03
FOREVER_S = 3600.0
BATCH_BYTES: Final = 8 << 20
BATCHES: Final = 40


@dataclass(frozen=True, slots=True)
class Op:
    """One collective that this rank enters."""

    group: str
    op: str = "all_reduce"


def groups_of(scenario: str, world: int) -> dict[str, tuple[int, ...]]:
    """Groups of a scenario by description; the position is PyTorch's name of the group."""
    groups = {WORLD: tuple(range(world))}
    bridge, last, half = world - 2, world - 1, (world - 2) // 2
    if scenario == "cascade":
        groups["first_half"] = (*range(half), bridge)
        groups["second_half"] = (*range(half, world - 2), bridge)
        groups["tail"] = (bridge, last)
    if scenario == "wrong_order":
        groups["encoder"] = groups["decoder"] = (0, 1)
    return groups


def healthy_step(scenario: str, rank: int, groups: dict[str, tuple[int, ...]]) -> list[Op]:
    if scenario == "cascade":
        order = ("tail", "first_half", "second_half")
        return [Op(group) for group in order if rank in groups[group]]
    if scenario == "wrong_order" and rank < 2:
        return [Op("encoder"), Op("decoder"), Op(WORLD)]
    return [Op(WORLD)]


def faulty_step(
    scenario: str, rank: int, suspects: tuple[int, ...], groups: dict[str, tuple[int, ...]]
) -> list[Op]:
    """The ops that the rank enters at the step of the fault and never leaves."""
    guilty = rank in suspects
    if scenario == "mismatch":
        return [Op(WORLD, "all_gather" if guilty else "all_reduce")]
    if scenario == "wrong_order":
        first = {0: "encoder", 1: "decoder"}.get(rank, WORLD)
        return [Op(first)]
    if guilty:
        return []
    first_op = healthy_step(scenario, rank, groups)[0]
    return [Op(first_op.group)]


class Hoard:
    """Memory that a culprit keeps: real pages, so that the agent samples a true value.

    At most `BATCHES`; with `limited`, the process's own limit ends it there with a MemoryError.
    """

    def __init__(self, *, limited: bool) -> None:
        self._batches: list[bytearray] = []
        self._limited = limited
        if limited:
            _allow(BATCHES * BATCH_BYTES + BATCH_BYTES // 2)

    def keep(self) -> None:
        if self._limited or len(self._batches) < BATCHES:
            self._batches.append(bytearray(b"\1") * BATCH_BYTES)


def _allow(more_bytes: int) -> None:
    """Like `ulimit -d` in a launcher, counted from what the process has now."""
    status = Path("/proc/self/status").read_text()
    (data_kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmData:"))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int(data_kib) * 1024 + more_bytes, most))


class Heartbeat:
    """Publishes the rank's counters from a thread, as a tap does."""

    def __init__(self, rank: ScriptedRank) -> None:
        self._rank = rank
        self._stopped = threading.Event()
        threading.Thread(target=self._publish, daemon=True).start()

    def stop(self) -> None:
        """Seen from outside, a held interpreter lock."""
        self._stopped.set()

    def _publish(self) -> None:
        while not self._stopped.wait(tap.TICK_S):
            self._rank.publish()


def load_batch(seconds: float) -> None:
    """Where a scripted culprit is stuck."""
    time.sleep(seconds)


def enter_collective(seconds: float) -> None:
    """Where its scripted peers wait."""
    time.sleep(seconds)


def play(scenario: str, number: int, rank: ScriptedRank) -> None:
    heartbeat = Heartbeat(rank)
    truth = SCENARIOS[scenario].truth(len(rank.groups[WORLD]))
    suspects = truth.suspects if truth is not None else ()
    start = float(os.environ["FRD_DEMO_START_AT"])
    never = -1
    hangs_at = {"memory": never, "straggler": never, "oom": FAULT_STEP + BATCHES}
    hang = hangs_at.get(scenario, FAULT_STEP)
    hoards = scenario in ("memory", "oom") and number in suspects
    hoard: Hoard | None = None
    step = 0
    while True:
        time.sleep(max(0.0, start + step * STEP_S - time.time()))
        if hoards and step >= FAULT_STEP:
            hoard = hoard or Hoard(limited=scenario == "oom")
            hoard.keep()
        if scenario == "straggler" and number in suspects:
            load_batch(STRAGGLES_S)
        if step == hang and suspects:
            _be_faulty(scenario, number, suspects, rank, heartbeat)
            start += LATE_S
        for op in healthy_step(scenario, number, rank.groups):
            rank.enter(op.group, op.op)
            rank.leave(op.group)
        step += 1


def _be_faulty(
    scenario: str,
    number: int,
    suspects: tuple[int, ...],
    rank: ScriptedRank,
    heartbeat: Heartbeat,
) -> None:
    late_only = SCENARIOS[scenario].recovers
    if (sent := SCENARIOS[scenario].signal) is not None and number in suspects:
        os.kill(os.getpid(), sent)
    ops = faulty_step(scenario, number, suspects, rank.groups)
    for op in ops:
        rank.enter(op.group, op.op)
    if scenario == "gil" and number in suspects:
        heartbeat.stop()
    stuck = load_batch if number in suspects else enter_collective
    stuck(LATE_S if late_only else FOREVER_S)
    for op in ops:
        rank.leave(op.group)


def main() -> None:
    scenario, number, world = sys.argv[1], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rank = ScriptedRank(
        Path(tap.run_dir(os.environ)),
        number,
        world,
        job=tap.job_of(os.environ),
        groups=groups_of(scenario, world),
    )
    try:
        play(scenario, number, rank)
    except MemoryError as error:
        rank.end(error)
        raise


if __name__ == "__main__":
    main()
