"""A receiver of webhooks: a real HTTP server that keeps what it is sent."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Receiver:
    """Answers with `status`; while `gate` is not set, it does not answer at all."""

    def __init__(self, port: int = 0) -> None:
        self.received: list[dict[str, Any]] = []
        self.times: list[float] = []
        """When each of `received` arrived."""
        self.headers: list[dict[str, str]] = []
        self.asked = 0
        self.status = 200
        self.location = ""
        self.gate = threading.Event()
        self.gate.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.asked += 1
                receiver.gate.wait(60)
                status = receiver.status
                if status == 200:
                    receiver.times.append(time.time())
                    receiver.received.append(content)
                    receiver.headers.append(dict(self.headers))
                self.send_response(status)
                if receiver.location:
                    self.send_header("Location", receiver.location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}/hook/s3cret"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def events(self) -> list[str]:
        return [content["event"] for content in list(self.received)]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
