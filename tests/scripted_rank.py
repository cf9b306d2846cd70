"""Ranks without torch, for tests and for measuring the agent: the same files, socket and dumps.

A `ScriptedRank` publishes what a tap publishes and answers what torch's worker server answers, from
a ring that the test fills by hand. Run as a program it hosts several ranks that each complete so
many collectives a second, for as long as it is left alone:

    python tests/scripted_rank.py --run-dir DIR --ranks 8 --rate 200
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import socketserver
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from frd_agent import tap

_OK = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_HANDLERS = ["fr_trace_json", "ping"]


def entry(
    record_id: int, seq: int, group: tuple[str, str] = ("0", "default_pg"), **more: Any
) -> Any:
    """One record as Gloo's recorder writes it."""
    return {
        "record_id": record_id,
        "pg_id": int(group[0]) if group[0].isdecimal() else 0,
        "process_group": list(group),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": "gloo:all_reduce",
        "time_created_ns": time.time_ns(),
        "input_sizes": [[1024, 64]],
        "input_dtypes": ["Float"],
        "output_sizes": [[1024, 64]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": 0,
        "time_discovered_completed_ns": 0,
        "retired": False,
        "timeout_ms": 1_800_000,
        "is_p2p": False,
        "thread_id": "140000000000000",
        "thread_name": "python",
        **more,
    }


class ScriptedRank:
    """One rank in one group; several may live in one process."""

    def __init__(
        self,
        run_dir: Path,
        rank: int = 0,
        world: int = 1,
        *,
        job: str = "scripted",
        ring: int = 2000,
    ) -> None:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.token = os.urandom(6).hex()
        self.socket = run_dir / f"{self.token}.sock"
        self.entries: deque[dict[str, Any]] = deque(maxlen=ring)
        self.seq = self.completed = 0
        self.asked = 0
        self._lock = threading.Lock()
        self._files = tap.Files(str(run_dir), self.token)
        self.identity: dict[str, Any] = {
            "schema": tap.SCHEMA,
            "token": self.token,
            "job": job,
            "attempt": 0,
            "rank": rank,
            "local_rank": rank,
            "world_size": world,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "boot_id": "scripted",
            "torch_version": "2.13.0",
            "backends": ["gloo"],
            "devices": [],
            "started_at_ns": time.time_ns(),
            "socket": self.socket.name,
            "shm": f"{self.token}.shm",
            "exit": None,
            "groups": [
                {"name": "0", "desc": "default_pg", "ranks": list(range(world)), "backend": "gloo"}
            ],
        }
        self._server = _Server(str(self.socket), _Handler)
        self._server.rank = self
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.publish_identity()
        self.publish()

    def enter(self) -> None:
        """Enqueue the next collective."""
        with self._lock:
            self.seq += 1
            self.entries.append(entry(self.seq - 1, self.seq))

    def leave(self) -> None:
        """Complete the oldest one that is open."""
        with self._lock:
            self.completed += 1
            for record in reversed(self.entries):
                if record["collective_seq_id"] == self.completed:
                    record["retired"] = True
                    return

    def publish_identity(self) -> None:
        self._files.write_identity(json.dumps(self.identity))

    def publish(self) -> None:
        at_ns, mono_ns = time.time_ns(), time.monotonic_ns()
        rows = [(tap.GENERIC, 0, self.seq, -1, self.completed)] if self.seq else []
        self._files.write_counters(at_ns, mono_ns, rows)

    def publish_memory(self, devices: list[tap.Device]) -> None:
        """What its allocator holds, by device."""
        now_ns = time.time_ns()
        self._files.write_memory(now_ns, time.time_ns(), time.monotonic_ns(), devices, [])

    def dump(self) -> bytes:
        with self._lock:
            status = {
                "last_enqueued_collective": str(self.seq),
                "last_started_collective": "-1",
                "last_completed_collective": str(self.completed),
            }
            return json.dumps(
                {
                    "version": "2.10",
                    "comm_lib_version": "",
                    "nccl_comm_state": {},
                    "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}},
                    "pg_status": {"0": status} if self.seq else {},
                    "entries": list(self.entries),
                }
            ).encode()

    def close(self) -> None:
        """Like the end of the process, but for the files."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.socket.unlink(missing_ok=True)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    rank: ScriptedRank


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        request = self.rfile.readline()
        if not request:
            return
        while self.rfile.readline() not in (b"\r\n", b"\n", b""):
            pass
        assert isinstance(self.server, _Server)
        if b"fr_trace_json" in request:
            self.server.rank.asked += 1
            body = self.server.rank.dump()
        else:
            body = json.dumps(_HANDLERS).encode()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # who asked was killed
            self.wfile.write((_OK % len(body)).encode() + body)


def main() -> None:
    parser = argparse.ArgumentParser(description="scripted ranks that keep moving")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rate", type=float, default=200.0, help="collectives a second, each")
    args = parser.parse_args()
    ranks = [ScriptedRank(args.run_dir, i, args.ranks) for i in range(args.ranks)]
    began = time.monotonic()
    published = 0
    while True:
        time.sleep(0.05)
        due = int((time.monotonic() - began) * args.rate)
        for rank in ranks:
            while rank.seq < due:
                rank.enter()
                rank.leave()
        if time.monotonic() - began > published:
            published += 1
            for rank in ranks:
                rank.publish()


if __name__ == "__main__":
    main()
