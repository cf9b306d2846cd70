"""The Debian packages' Prometheus and Alertmanager, and the webhook that Alertmanager calls.

Each is a real process with a free port and its own folder. Configurations are those that
docs/metrics.md shows, with addresses and intervals put in, so that what people copy is what runs.
"""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import yaml

from tests.world.daemons import end, free_address, get, start
from tests.world.webhook import Receiver

ROOT = Path(__file__).parents[2]
RULES = ROOT / "helm/frd/rules"
LOCAL = "http://127.0.0.1:9374"
"""Where the rules and dashboards as they are shipped have the service."""


def documented(name: str) -> dict[str, Any]:
    """The YAML block of docs/metrics.md that begins with ``# NAME``."""
    page = (ROOT / "docs/metrics.md").read_text("utf-8")
    (block,) = re.findall(rf"^```yaml\n(# {name}\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    loaded: dict[str, Any] = yaml.safe_load(block)
    return loaded


class _Daemon:
    """A process that listens on `address`, from entering the context to leaving it."""

    def __init__(self, folder: Path, program: str) -> None:
        self.folder = folder
        self.address = free_address()
        self._program = program
        self._process: subprocess.Popen[str] | None = None

    def _start(self, config: dict[str, Any], *options: str) -> None:
        path = self.folder / f"{self._program}.yml"
        path.write_text(yaml.safe_dump(config))
        command = [self._program, f"--config.file={path}", f"--web.listen-address={self.address}"]
        self._process = start([*command, *options], log=self.folder / f"{self._program}.log")

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        end(self._process)


class Prometheus(_Daemon):
    """Scrapes and evaluates once a second, by the shipped rules; the service names the agents.

    With `as_documented`, only addresses and paths of docs/metrics.md and of the rules are replaced.
    """

    def __init__(
        self,
        folder: Path,
        *services: str,
        alertmanager: str = "",
        as_documented: bool = False,
    ) -> None:
        super().__init__(folder, "prometheus")
        self._as_documented = as_documented
        self._services = services
        self._alertmanager = alertmanager

    def __enter__(self) -> Self:
        rules = self.folder / "frd.rules.yaml"
        text = (RULES / "frd.rules.yaml").read_text("utf-8")
        config = documented("prometheus.yml")
        *scraped, agents = config["scrape_configs"]
        if not self._as_documented:  # as fast as a test would have it
            text = re.sub("keep_firing_for: .*", "keep_firing_for: 6s", text)
            text = re.sub("interval: .*", "interval: 1s", text)
            for one in config["scrape_configs"]:
                one["scrape_interval"] = "1s"
        rules.write_text(text.replace(LOCAL, f"http://{self._services[0]}"))
        for one in scraped:
            one["static_configs"] = [{"targets": list(self._services)}]
        del agents["static_configs"]
        agents["http_sd_configs"] = [
            {"url": f"http://{address}/api/v1/targets", "refresh_interval": "1s"}
            for address in self._services
        ]
        config["rule_files"] = [str(rules)]
        (managers,) = config["alerting"]["alertmanagers"]
        managers["static_configs"] = [{"targets": [self._alertmanager]}]
        if not self._alertmanager:
            del config["alerting"]
        # An alert that Alertmanager was not there for is sent again; by default after a minute.
        options = ["--rules.alert.resend-delay=5s", f"--storage.tsdb.path={self.folder / 'tsdb'}"]
        self._start(config, *options)
        return self

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query; none while Prometheus does not answer.

        Raises:
            ValueError: the query does not parse, or cannot be computed.
        """
        url = f"http://{self.address}/api/v1/query?{urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=10) as reply:
                result: list[dict[str, Any]] = json.load(reply)["data"]["result"]
        except urllib.error.HTTPError as error:
            with error:
                if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # it has not read its own past yet
                    return []
                raise ValueError(f"{expression}: {error.read().decode()}") from None
        except OSError:
            return []
        return result


class Alertmanager(_Daemon):
    """Notifies one webhook, immediately unless `as_documented`."""

    def __init__(self, folder: Path, webhook: str, *, as_documented: bool = False) -> None:
        super().__init__(folder, "prometheus-alertmanager")
        self._webhook = webhook
        self._as_documented = as_documented

    def __enter__(self) -> Self:
        config = documented("alertmanager.yml")
        if not self._as_documented:
            config["route"] |= {"group_wait": "0s", "group_interval": "1s"}
        (receiver,) = config["receivers"]
        receiver["webhook_configs"] = [{"url": self._webhook}]
        options = ["--cluster.listen-address=", f"--storage.path={self.folder / 'alertmanager'}"]
        self._start(config, *options)
        return self


def notification(webhook: Receiver, alert: str, status: str) -> tuple[float, dict[str, Any]] | None:
    """The first notification of this alert with the status ``firing`` or ``resolved``, and its
    time."""
    for at, content in zip(webhook.times, list(webhook.received), strict=False):
        if content["groupLabels"]["alertname"] == alert and content["status"] == status:
            return at, content
    return None


def longest_wait_s(http: str, job: str) -> float:
    """How long the first of the waiting ranks of a job has waited."""
    ranks = get(http, f"/api/v1/jobs/{job}")["ranks"]
    return max(float(rank["waiting_s"]) for rank in ranks)
