"""Real NATS servers with JetStream on loopback, and the faults of single servers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.world.certs import Files
from tests.world.daemons import end, free_port, start, until

BINARY: Final = Path(sys.executable).with_name("nats-server")
USER: Final = "frd:correct horse"
"""USER:PASSWORD of the account that the replicas use."""
_ACCOUNTS: Final = """
accounts {
  SYS: {
    users: [{user: admin, password: admin}]
    exports: [{service: "$SYS.REQ.SERVER.PING.VARZ", response: stream, accounts: [FRD]}]
  }
  FRD: {
    jetstream: enabled
    users: [{user: frd, password: "correct horse"}]
    IMPORTS
  }
  PLAIN: {users: [{user: plain, password: plain}]}
}
system_account: SYS
"""
_IMPORT: Final = 'imports: [{service: {account: SYS, subject: "$SYS.REQ.SERVER.PING.VARZ"}}]'


class NatsServer:
    """One server, which keeps its port and its folder when it starts again."""

    def __init__(self, name: str, config: Path, port: int, monitor: int) -> None:
        self.name = name
        self.url = f"nats://127.0.0.1:{port}"
        self._config = config
        self._monitor = monitor
        self._process: subprocess.Popen[str] | None = None
        self.frozen = False

    def start(self) -> None:
        assert self._process is None, f"{self.name} runs already"
        self._process = start(
            [BINARY, "--config", self._config],
            log=self._config.with_suffix(".log"),
            stdout=subprocess.DEVNULL,
        )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and not self.frozen

    def kill(self) -> None:
        """As if its machine died, except that peers see the connections close."""
        if process := self._process:
            self._process = None
            end(process)
        self.frozen = False

    def terminate(self) -> None:
        """An ordinary end: it hands over leaderships; returns when the process has exited."""
        process = self._process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        self.kill()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, and nothing answers."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)
        self.frozen = False

    def ask(self, path: str) -> Any:
        """The JSON answer of the monitoring port."""
        address = f"http://127.0.0.1:{self._monitor}/{path}"
        with urllib.request.urlopen(address, timeout=2) as answer:
            return json.load(answer)


class NatsServers:
    """`count` servers that form one cluster; with one, a server without a cluster."""

    def __init__(
        self,
        folder: Path,
        count: int = 3,
        *,
        jetstream: bool = True,
        accounts: bool = False,
        may_ask: bool = True,
        sync: str = "always",
        advertise: bool = True,
        tls: Files | None = None,
    ) -> None:
        """
        With `tls`, clients must encrypt.
        Unless `advertise`, servers do not report each other's addresses to clients.
        With `accounts`, clients need `USER`; `may_ask`: they can ask for the servers' settings.
        """
        ports = [(free_port(), free_port(), free_port()) for _ in range(count)]
        routes = ", ".join(f"nats://127.0.0.1:{route}" for _, route, _ in ports)
        self.all: list[NatsServer] = []
        for number, (port, route, monitor) in enumerate(ports):
            name = f"n{number}"
            lines = [
                f"server_name: {name}",
                f"listen: 127.0.0.1:{port}",
                f"http: 127.0.0.1:{monitor}",
            ]
            if jetstream:
                store = f'store_dir: "{folder / name}", max_file_store: 200GB'
                lines += [f"jetstream {{{store}, sync_interval: {sync}}}"]
            if count > 1:
                cluster = f"name: frd, listen: 127.0.0.1:{route}, routes: [{routes}]"
                cluster += "" if advertise else ", no_advertise: true"
                lines += [f"cluster {{{cluster} }}"]
            if accounts:
                lines += [_ACCOUNTS.replace("IMPORTS", _IMPORT if may_ask else "")]
            if tls is not None:
                lines += [f'tls {{cert_file: "{tls.cert}", key_file: "{tls.key}"}}']
            config = folder / f"{name}.conf"
            config.write_text("\n".join(lines))
            self.all.append(NatsServer(name, config, port, monitor))
        self._jetstream = jetstream

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(server.url for server in self.all)

    def start(self) -> None:
        for server in self.all:
            server.start()
        self.await_ready()

    def await_ready(self) -> None:
        """Until all running servers answer, and JetStream has a leader."""

        def ready() -> bool:
            path = "healthz" if self._jetstream else "varz"
            for server in self.all:
                if server.running:
                    server.ask(path)
            if not self._jetstream or len(self.all) == 1:
                return True
            meta = [s.ask("jsz").get("meta_cluster", {}) for s in self.all if s.running]
            return all(m.get("leader") and m.get("cluster_size") == len(self.all) for m in meta)

        until(ready, "NATS servers", ignoring=OSError)

    def heal(self) -> None:
        """Continue or start every server that does not run."""
        for server in self.all:
            if server.running:
                continue
            if server.frozen:
                server.thaw()
            else:
                server.start()
        self.await_ready()

    def leader(self, stream: str) -> NatsServer:
        """The server that leads the stream, as all running servers see it."""

        def look() -> NatsServer | None:
            for server in self.all:
                if server.running and (name := _leader(server.ask("jsz?streams=1"), stream)):
                    return next((s for s in self.all if s.name == name and s.running), None)
            return None

        return until(look, f"a leader of {stream}", ignoring=OSError)

    def end(self) -> None:
        for server in self.all:
            server.kill()


def _leader(answer: Any, stream: str) -> str | None:
    for account in answer.get("account_details", []):
        for detail in account.get("stream_detail", []):
            if detail["name"] == stream:
                return str(detail.get("cluster", {}).get("leader") or "") or None
    return None


@contextlib.contextmanager
def nats_servers(folder: Path, count: int = 3, **options: Any) -> Iterator[NatsServers]:
    servers = NatsServers(folder, count, **options)
    try:
        servers.start()
        yield servers
    finally:
        servers.end()
