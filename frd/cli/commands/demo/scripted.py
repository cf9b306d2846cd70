"""The program of a scripted rank: what a real job's rank does in a scenario, without torch.

All ranks follow the script by the wall clock, so their recorders report what a real job's recorders
would. Run as `python -m frd.cli.commands.demo.scripted SCENARIO` with a launcher's environment
(RANK, WORLD_SIZE, FRD_JOB, FRD_RUN_DIR, FRD_DEMO_START_AT).

A rank writes a tap's files and answers like torch's worker server; an agent watches one of a
process. Nothing is communicated: the recorder reports what the script enters and leaves as Gloo's
Flight Recorder does (entries stay `scheduled`, `retired` says completed).
"""

from __future__ import annotations

import faulthandler
import fcntl
import json
import os
import resource
import socketserver
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final

from frd.cli.commands.demo.scenarios import SCENARIOS
from frd_agent import tap

STEP_S: Final = 0.05
FAULT_STEP: Final = 60
LATE_S: Final = 8.0
STRAGGLES_S: Final = 0.03
FOREVER_S: Final = 3600.0
LOCKED_WITHIN_S: Final = 0.5
BATCH_BYTES: Final = 8 << 20
BATCHES: Final = 40
WORLD = "default_pg"
RING = 2000


class ScriptedRank:
    """`groups`: ranks by description; the index of a group is its name in PyTorch."""

    def __init__(
        self,
        run_dir: Path,
        rank: int = 0,
        world: int = 1,
        *,
        job: str = "scripted",
        groups: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self.groups = dict(groups or {WORLD: tuple(range(world))})
        self.entries: deque[dict[str, Any]] = deque(maxlen=RING)
        self._enqueued: dict[str, int] = {}
        self._completed: dict[str, int] = {}
        self._lock = threading.Lock()
        tap.make_run_dir(str(run_dir))
        token = os.urandom(6).hex()
        self.socket = run_dir / f"{token}.sock"
        self._files = tap.Files(str(run_dir), token)
        self.identity = self._identity(token, job, rank, world)
        self._server = _WorkerServer(str(self.socket), _Handler)
        self._server.rank = self
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.publish_identity()
        self.publish()

    def enter(self, group: str = WORLD, op: str = "all_reduce") -> None:
        """Enqueue the group's next collective."""
        with self._lock:
            seq = self._enqueued[group] = self._enqueued.get(group, 0) + 1
            number = list(self.groups).index(group)
            entry = _entry(sum(self._enqueued.values()) - 1, seq, number, group, op)
            self.entries.append(entry)

    def leave(self, group: str = WORLD) -> None:
        """Complete the group's oldest open collective."""
        with self._lock:
            seq = self._completed[group] = self._completed.get(group, 0) + 1
            for entry in reversed(self.entries):
                if entry["process_group"][1] == group and entry["collective_seq_id"] == seq:
                    entry["retired"] = True
                    return

    # -- the tap's files -----------------------------------------------------------------------

    def publish_identity(self) -> None:
        self._files.write_identity(json.dumps(self.identity))

    def publish(self) -> None:
        """The counters of `pg_status`, which a tap writes several times a second."""
        rows = [(tap.GENERIC, *row) for row in self._status()]
        self._files.write_counters(time.time_ns(), time.monotonic_ns(), rows)

    def end(self, error: BaseException) -> None:
        """Write the exit record of a program that died of an exception."""
        detail = f"{type(error).__name__}: {error}"
        self.identity["exit"] = {"kind": "exception", "detail": detail, "at_ns": time.time_ns()}
        self.publish_identity()

    # -- the worker server's answers -----------------------------------------------------------

    def dump(self) -> bytes:
        status = {
            str(number): {
                "last_enqueued_collective": str(enqueued),
                "last_started_collective": str(started),
                "last_completed_collective": str(completed),
            }
            for number, enqueued, started, completed in self._status()
        }
        with self._lock:
            return json.dumps(
                {
                    "version": "2.10",
                    "comm_lib_version": "",
                    "nccl_comm_state": {},
                    "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}},
                    "pg_status": status,
                    "entries": list(self.entries),
                }
            ).encode()

    def _status(self) -> list[tuple[int, int, int, int]]:
        """Number of the group, and the collectives enqueued, started and completed."""
        with self._lock:
            return [
                (number, self._enqueued[group], -1, self._completed.get(group, 0))
                for number, group in enumerate(self.groups)
                if group in self._enqueued
            ]

    def _identity(self, token: str, job: str, rank: int, world: int) -> dict[str, Any]:
        return tap.identity_of(os.environ, token, None) | {
            "job": job,
            "attempt": 0,
            "rank": rank,
            "local_rank": rank,
            "world_size": world,
            "torch_version": "",
            "backends": ["gloo"],
            "socket": self.socket.name,
            "shm": f"{token}.shm",
            "groups": [
                {"name": str(number), "desc": desc, "ranks": list(ranks), "backend": "gloo"}
                for number, (desc, ranks) in enumerate(self.groups.items())
                if rank in ranks
            ],
        }


class _WorkerServer(socketserver.ThreadingUnixStreamServer):
    """`POST /handler/<name>` and `GET /handler/`, like torch's C++ server."""

    daemon_threads = True
    rank: ScriptedRank


class _Handler(BaseHTTPRequestHandler):
    server: _WorkerServer

    def do_GET(self) -> None:
        self._answer(b'["ping", "fr_trace_json", "dump_traceback"]')

    def do_POST(self) -> None:
        name = self.path.partition("?")[0].removeprefix("/handler/")
        if name == "fr_trace_json":
            self._answer(self.server.rank.dump())
        elif name == "dump_traceback":
            with tempfile.TemporaryFile() as text:
                faulthandler.dump_traceback(text, all_threads=True)
                text.seek(0)
                self._answer(text.read())
        else:
            self.send_error(404)

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):  # the agent was killed
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet: the agent sends a request every second."""


def _entry(record_id: int, seq: int, number: int, group: str, op: str) -> dict[str, Any]:
    """One record as Gloo's recorder writes it."""
    return {
        "record_id": record_id,
        "pg_id": number,
        "process_group": [str(number), group],
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"gloo:{op}",
        "time_created_ns": time.time_ns(),
        "input_sizes": [[1024]],
        "input_dtypes": ["Float"],
        "output_sizes": [[1024]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": 0,
        "time_discovered_completed_ns": 0,
        "retired": False,
        "timeout_ms": 1_800_000,
        "is_p2p": False,
        "thread_id": "1",
        "thread_name": "python",
    }


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
