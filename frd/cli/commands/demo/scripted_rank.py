"""A rank without torch: it writes a tap's files and answers like torch's worker server.

It replaces a real rank if torch is not installed. An agent watches one of a process.
Nothing is communicated: the caller says when the rank enters and leaves a collective, and
the recorder reports it as Gloo's Flight Recorder does (entries stay `scheduled`, `retired` says
completed).
"""

from __future__ import annotations

import faulthandler
import json
import os
import socketserver
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from frd_agent import tap

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
