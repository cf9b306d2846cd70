"""A rank without torch: it speaks the worker server's socket protocol and writes a tap's files.

Stands in for a real rank where torch cannot be had. Nothing is communicated between scripted
ranks: every one follows the same script by the wall clock, so that what their recorders say is
what a real job's recorders would. Run as `python -m frd.cli.commands.demo.scripted SCENARIO` with a
launcher's environment (RANK, WORLD_SIZE, FRD_JOB, FRD_RUN_DIR, FRD_DEMO_START_AT).
"""

from __future__ import annotations

import faulthandler
import json
import os
import socketserver
import sys
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from frd.cli.commands.demo.hoard import BATCHES, Hoard
from frd.cli.commands.demo.scenarios import SCENARIOS
from frd_agent import tap

STEP_S = 0.05
FAULT_STEP = 60
RING = 2000
LATE_S = 8.0
STRAGGLES_S = 0.03
FOR_EVER_S = 3600.0


@dataclass(frozen=True, slots=True)
class Op:
    """One collective that this rank enters."""

    group: str
    op: str = "all_reduce"
    hangs: bool = False


def groups_of(scenario: str, world: int) -> dict[str, tuple[int, ...]]:
    """Groups of a scenario by description; the position is PyTorch's name of the group."""
    groups = {"default_pg": tuple(range(world))}
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
        return [Op("encoder"), Op("decoder"), Op("default_pg")]
    return [Op("default_pg")]


def faulty_step(
    scenario: str, rank: int, suspects: tuple[int, ...], groups: dict[str, tuple[int, ...]]
) -> list[Op]:
    """What the rank still enters at the step of the fault, and never leaves."""
    guilty = rank in suspects
    if scenario == "mismatch":
        return [Op("default_pg", "all_gather" if guilty else "all_reduce", hangs=True)]
    if scenario == "wrong_order":
        first = {0: "encoder", 1: "decoder"}.get(rank, "default_pg")
        return [Op(first, hangs=True)]
    if guilty:
        return []
    first_op = healthy_step(scenario, rank, groups)[0]
    return [Op(first_op.group, hangs=True)]


@dataclass(slots=True)
class Recorder:
    """A Flight Recorder of Gloo's manners: entries stay `scheduled`, `retired` says completed."""

    groups: dict[str, tuple[int, ...]]
    entries: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=RING))
    seqs: dict[str, int] = field(default_factory=dict)
    completed: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, op: Op) -> dict[str, Any]:
        with self.lock:
            seq = self.seqs[op.group] = self.seqs.get(op.group, 0) + 1
            entry = {
                "record_id": sum(self.seqs.values()) - 1,
                "pg_id": list(self.groups).index(op.group),
                "process_group": [str(list(self.groups).index(op.group)), op.group],
                "collective_seq_id": seq,
                "p2p_seq_id": 0,
                "op_id": seq,
                "is_p2p": False,
                "profiling_name": f"gloo:{op.op}",
                "input_sizes": [[1024]],
                "output_sizes": [[1024]],
                "input_dtypes": ["Float"],
                "output_dtypes": ["Float"],
                "state": "scheduled",
                "time_created_ns": time.time_ns(),
                "time_discovered_started_ns": 0,
                "time_discovered_completed_ns": 0,
                "retired": False,
                "timeout_ms": 1_800_000,
                "thread_id": "1",
                "thread_name": "python",
            }
            self.entries.append(entry)
            return entry

    def leave(self, entry: dict[str, Any]) -> None:
        with self.lock:
            entry["retired"] = True
            self.completed[entry["process_group"][1]] = entry["collective_seq_id"]

    def status(self) -> list[tuple[int, int, int, int]]:
        """(pg_id, enqueued, started, completed), as `pg_status` counts."""
        with self.lock:
            return [
                (number, self.seqs[group], -1, self.completed.get(group, 0))
                for number, group in enumerate(self.groups)
                if group in self.seqs
            ]

    def dump(self) -> bytes:
        with self.lock:
            return json.dumps(
                {"version": "2.10", "comm_lib_version": "", "nccl_comm_state": {}}
                | {"pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}}
                | {"entries": list(self.entries)}
            ).encode()


class WorkerServer(socketserver.ThreadingUnixStreamServer):
    """`POST /handler/<name>` and `GET /handler/`, like torch's C++ server."""

    daemon_threads = True
    recorder: Recorder


class Handler(BaseHTTPRequestHandler):
    server: WorkerServer

    def do_GET(self) -> None:
        self._answer(b'["ping", "fr_trace_json", "dump_traceback"]')

    def do_POST(self) -> None:
        name = self.path.partition("?")[0].removeprefix("/handler/")
        if name == "fr_trace_json":
            self._answer(self.server.recorder.dump())
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
        self.wfile.write(body)

    def address_string(self) -> str:
        return "local"

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet: the agent asks every second."""


class Publisher:
    """The files of a tap, from a thread, as the real one writes them."""

    def __init__(self, rank: int, recorder: Recorder) -> None:
        directory = tap.run_dir(os.environ)
        tap.make_run_dir(directory, os.environ)
        token = os.urandom(6).hex()
        self._recorder = recorder
        self._files = tap.Files(directory, token)
        self._stopped = threading.Event()
        self._server = WorkerServer(str(Path(directory, f"{token}.sock")), Handler)
        self._server.recorder = recorder
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._told = self._identity(rank, token)
        self._files.write_identity(json.dumps(self._told))
        threading.Thread(target=self._publish, daemon=True).start()

    def stop_heartbeat(self) -> None:
        """What a held interpreter lock looks like from outside."""
        self._stopped.set()

    def end(self, error: BaseException) -> None:
        """The exit record of a program that died of an exception."""
        detail = f"{type(error).__name__}: {error}"
        self._told["exit"] = {"kind": "exception", "detail": detail, "at_ns": time.time_ns()}
        self._files.write_identity(json.dumps(self._told))

    def _publish(self) -> None:
        while not self._stopped.wait(tap.TICK_S):
            rows = [(tap.GENERIC, *row) for row in self._recorder.status()]
            self._files.write_counters(time.time_ns(), time.monotonic_ns(), rows)

    def _identity(self, rank: int, token: str) -> dict[str, Any]:
        groups = [
            {"name": str(number), "desc": desc, "ranks": list(ranks), "backend": "gloo"}
            for number, (desc, ranks) in enumerate(self._recorder.groups.items())
            if rank in ranks
        ]
        return {
            "schema": tap.SCHEMA,
            "token": token,
            "job": tap.job_of(os.environ),
            "attempt": 0,
            "rank": rank,
            "local_rank": rank,
            "world_size": len(self._recorder.groups["default_pg"]),
            "pid": os.getpid(),
            "host": os.uname().nodename,
            "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "torch_version": "",
            "backends": ["gloo"],
            "devices": [],
            "started_at_ns": time.time_ns(),
            "socket": f"{token}.sock",
            "shm": f"{token}.shm",
            "exit": None,
            "groups": groups,
        }


def load_batch(seconds: float) -> None:
    """Where a scripted culprit is stuck."""
    time.sleep(seconds)


def enter_collective(seconds: float) -> None:
    """Where its scripted peers wait."""
    time.sleep(seconds)


def play(scenario: str, rank: int, recorder: Recorder, publisher: Publisher) -> None:
    truth = SCENARIOS[scenario].truth(len(recorder.groups["default_pg"]))
    suspects = truth.suspects if truth is not None else ()
    start = float(os.environ["FRD_DEMO_START_AT"])
    never = -1
    hangs_at = {"memory": never, "straggler": never, "oom": FAULT_STEP + BATCHES}
    hang = hangs_at.get(scenario, FAULT_STEP)
    hoards = scenario in ("memory", "oom") and rank in suspects
    hoard: Hoard | None = None
    step = 0
    while True:
        time.sleep(max(0.0, start + step * STEP_S - time.time()))
        if hoards and step >= FAULT_STEP:
            hoard = hoard or Hoard(limited=scenario == "oom")
            hoard.keep()
        if scenario == "straggler" and rank in suspects:
            load_batch(STRAGGLES_S)
        if step == hang and suspects:
            _be_faulty(scenario, rank, suspects, recorder, publisher)
            start += LATE_S
        for op in healthy_step(scenario, rank, recorder.groups):
            recorder.leave(recorder.enter(op))
        step += 1


def _be_faulty(
    scenario: str, rank: int, suspects: tuple[int, ...], recorder: Recorder, publisher: Publisher
) -> None:
    late_only = SCENARIOS[scenario].recovers
    if (sent := SCENARIOS[scenario].signal) is not None and rank in suspects:
        os.kill(os.getpid(), sent)
    entered = [recorder.enter(op) for op in faulty_step(scenario, rank, suspects, recorder.groups)]
    if scenario == "gil" and rank in suspects:
        publisher.stop_heartbeat()
    stuck = load_batch if rank in suspects else enter_collective
    stuck(LATE_S if late_only else FOR_EVER_S)
    for entry in entered:
        recorder.leave(entry)


def main() -> None:
    scenario, rank = sys.argv[1], int(os.environ["RANK"])
    recorder = Recorder(groups_of(scenario, int(os.environ["WORLD_SIZE"])))
    publisher = Publisher(rank, recorder)
    try:
        play(scenario, rank, recorder, publisher)
    except MemoryError as error:
        publisher.end(error)
        raise


if __name__ == "__main__":
    main()
