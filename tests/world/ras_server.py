"""A RAS service of NCCL by hand: it speaks the protocol, and answers with what it is given.

`tests/golden/ras` has answers of real ones. `moved` gives such an answer the process ids and the
host of a test.
"""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "ras"
HOST: Final = "127.0.0.1"


def recorded(name: str) -> bytes:
    return (GOLDEN / f"{name}.json").read_bytes()


def moved(name: str, pids: Mapping[int, int], host: str = HOST) -> bytes:
    """A recorded answer about other processes: new ids by the recorded ones."""
    document: dict[str, Any] = json.loads(recorded(name))
    for one in document["communicators"]:
        for rank in (*one["ranks"], *one["missing_ranks"]):
            rank["pid"], rank["host"] = pids[rank["pid"]], host
    return json.dumps(document, indent=2).encode()


class RasServer:
    """Answers in turn with `answers`, the last of them again and again. `says` are answers to
    single lines instead of those of a real service."""

    def __init__(self, *answers: bytes, says: Mapping[str, bytes] | None = None) -> None:
        self.answers = list(answers)
        self.says = dict(says or {})
        self.heard: list[list[str]] = []
        """The lines of each connection."""
        self.address = ""

    def next_answer(self) -> bytes:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def serving_ras(service: RasServer) -> Iterator[RasServer]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            heard: list[str] = []
            service.heard.append(heard)
            while line := self.rfile.readline().decode().rstrip("\n"):
                heard.append(line)
                if line in service.says:
                    self.wfile.write(service.says[line])
                elif line.startswith("CLIENT PROTOCOL "):
                    self.wfile.write(b"SERVER PROTOCOL 2\n")
                elif line.startswith(("TIMEOUT ", "SET FORMAT ")):
                    self.wfile.write(b"OK\n")
                elif line == "VERBOSE STATUS":
                    self.wfile.write(service.next_answer())
                    return
                else:
                    self.wfile.write(f"ERROR: Unknown command {line}\n".encode())

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """The client may hang up at any time."""

    with Server((HOST, 0), Handler) as server:
        service.address = f"{HOST}:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()
