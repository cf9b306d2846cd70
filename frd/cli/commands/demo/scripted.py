"""The program of a scripted rank: what a real job's rank does in a scenario, without torch.

All ranks follow the script by the wall clock, so their recorders report what a real job's recorders
would. Run as `python -m frd.cli.commands.demo.scripted SCENARIO` with a launcher's environment
(RANK, WORLD_SIZE, FRD_JOB, FRD_RUN_DIR, FRD_DEMO_START_AT).
"""

from __future__ import annotations

import fcntl
import os
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from frd.cli.commands.demo.scenarios import SCENARIOS
from frd.cli.commands.demo.scripted_rank import WORLD, ScriptedRank
from frd_agent import tap

STEP_S: Final = 0.05
FAULT_STEP: Final = 60
LATE_S: Final = 8.0
STRAGGLES_S: Final = 0.03
FOREVER_S: Final = 3600.0
LOCKED_WITHIN_S: Final = 0.5
BATCH_BYTES: Final = 8 << 20
BATCHES: Final = 40


def groups_of(scenario: str, world: int) -> dict[str, tuple[int, ...]]:
    """Groups of a scenario by description; the index is the group's name in PyTorch."""
    groups = {WORLD: tuple(range(world))}
    bridge, last, half = world - 2, world - 1, (world - 2) // 2
    if scenario == "cascade":
        groups["first_half"] = (*range(half), bridge)
        groups["second_half"] = (*range(half, world - 2), bridge)
        groups["tail"] = (bridge, last)
    if scenario == "wrong_order":
        groups["encoder"] = groups["decoder"] = (0, 1)
    return groups


def healthy_step(scenario: str, rank: int, groups: dict[str, tuple[int, ...]]) -> list[str]:
    """Groups in which the rank enters an all_reduce, in this order."""
    match scenario:
        case "cascade":
            return [g for g in ("tail", "first_half", "second_half") if rank in groups[g]]
        case "wrong_order" if rank < 2:
            return ["encoder", "decoder", WORLD]
        case _:
            return [WORLD]


def faulty_op(
    scenario: str, rank: int, suspects: list[int], groups: dict[str, tuple[int, ...]]
) -> tuple[str, str] | None:
    """Group and op that the rank enters at the step of the fault and does not leave."""
    if rank in suspects or (scenario == "lock" and rank):
        match scenario:
            case "mismatch":
                return WORLD, "all_gather"
            case "wrong_order":
                return ("encoder", "decoder")[rank], "all_reduce"
            case _:
                return None
    return healthy_step(scenario, rank, groups)[0], "all_reduce"


def limit_memory(more_bytes: int) -> None:
    """Like `ulimit -d` in a launcher, counted from what the process has now."""
    status = Path("/proc/self/status").read_text()
    (data_kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmData:"))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int(data_kib) * 1024 + more_bytes, most))


def load_batch(seconds: float) -> None:
    """Where the stack of a faulty rank ends."""
    time.sleep(seconds)


def enter_collective(seconds: float) -> None:
    """Where the stacks of its peers end."""
    time.sleep(seconds)


def read_sample(folder: Path) -> None:
    """Read a file that never comes."""
    os.mkfifo(folder / "shard-17.tar")
    os.read(os.open(folder / "shard-17.tar", os.O_RDWR), 64)


def save(folder: Path, seconds: float) -> None:
    """Write a checkpoint under a lock that all ranks but the first take in turns."""
    with (folder / "checkpoint.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(seconds)


def play(scenario: str, number: int, rank: ScriptedRank) -> None:
    lock_held = threading.Event()

    def publish() -> None:
        """Like a tap's thread, which a held interpreter lock stops."""
        while not lock_held.wait(tap.TICK_S):
            rank.publish()

    threading.Thread(target=publish, daemon=True).start()
    suspects = SCENARIOS[scenario].suspects(len(rank.groups[WORLD]))
    is_faulty = number in suspects
    hangs = bool(suspects) and scenario not in ("memory", "straggler")
    hang_step = FAULT_STEP + (BATCHES if scenario == "oom" else 0)
    kept: list[bytearray] = []
    start = float(os.environ["FRD_DEMO_START_AT"])
    step = 0
    while True:
        time.sleep(max(0.0, start + step * STEP_S - time.time()))
        if is_faulty and step >= FAULT_STEP:
            match scenario:
                case "straggler":
                    load_batch(STRAGGLES_S)
                case "memory" if len(kept) < BATCHES:
                    kept.append(bytearray(b"\1") * BATCH_BYTES)
                case "oom":  # ends in a MemoryError
                    if not kept:
                        limit_memory(BATCHES * BATCH_BYTES + BATCH_BYTES // 2)
                    kept.append(bytearray(b"\1") * BATCH_BYTES)
                case "gil" if step == hang_step:
                    lock_held.set()
        if hangs and step == hang_step:
            hang(scenario, number, rank, suspects)
            start += LATE_S
        for group in healthy_step(scenario, number, rank.groups):
            rank.enter(group)
            rank.leave(group)
        step += 1


def hang(scenario: str, number: int, rank: ScriptedRank, suspects: list[int]) -> None:
    """Go no further, for some seconds or for ever."""
    if (sent := SCENARIOS[scenario].signal) is not None and number in suspects:
        os.kill(os.getpid(), sent)
    op = faulty_op(scenario, number, suspects, rank.groups)
    if op is not None:
        rank.enter(*op)
    folder, is_suspect = Path(tempfile.gettempdir()), number in suspects
    match scenario:
        case "starved" if is_suspect:
            read_sample(folder)
        case "lock" if number:
            time.sleep(0.0 if is_suspect else LOCKED_WITHIN_S)
            save(folder, FOREVER_S)
        case _:
            stuck = load_batch if is_suspect else enter_collective
            stuck(LATE_S if SCENARIOS[scenario].recovers else FOREVER_S)
    if op is not None:
        rank.leave(op[0])


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
