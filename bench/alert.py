"""Time from a hang to the firing alert, with everything set up as documented.

A real job of two Gloo ranks hangs under a service with default settings; the real Prometheus and
Alertmanager run the configuration of docs/metrics.md with the shipped rules; only addresses and
paths are replaced. The time begins when the waiting collective is enqueued, and ends when
Prometheus first shows the alert as firing, and when Alertmanager calls the webhook.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

from frd.cli.commands.demo.scenarios import SCENARIOS
from frd.cli.commands.demo.stage import Stage
from frd.config import Config
from tests.world.daemons import until
from tests.world.prometheus import Alertmanager, Prometheus, longest_wait_s, notification
from tests.world.webhook import Receiver

ALERT: Final = "FrdCollectiveStalled"
LATE_S: Final = 60.0
DEFAULT_STALL_AFTER_S: Final = Config().policy.stall_after_s


def hang(folder: Path) -> dict[str, float]:
    """One hang: seconds until the alert fires, and until the webhook is called."""
    arguments = ["--seconds", f"{LATE_S}", "--rank", "1"]
    with Stage(SCENARIOS["slow"], 2, DEFAULT_STALL_AFTER_S, arguments) as stage:
        addresses = stage.start_service()
        stage.start_agent(addresses)
        with (
            Receiver() as webhook,
            Alertmanager(folder, webhook.url, as_documented=True) as manager,
            Prometheus(
                folder, addresses.http, alertmanager=manager.address, as_documented=True
            ) as prometheus,
        ):
            until(lambda: prometheus.query("frd_build_info"), "a first scrape")
            stage.start_job()
            until(lambda: prometheus.query(f'ALERTS{{alertname="{ALERT}"}}'), "the alert", 120)
            fired_at = time.time()
            began_at = fired_at - longest_wait_s(addresses.http, stage.job)
            notified_at, _ = until(
                lambda: notification(webhook, ALERT, "firing"), "the webhook", 60
            )
    return {"firing_s": fired_at - began_at, "webhook_s": notified_at - began_at}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    runs = []
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory(prefix="frd-bench-") as folder:
            runs.append(hang(Path(folder)))
            if not options.json:
                print({key: round(value, 1) for key, value in runs[-1].items()}, flush=True)
    report: dict[str, Any] = {
        f"{key}_{name}": round(of(run[key] for run in runs), 1)
        for key in ("firing_s", "webhook_s")
        for name, of in (("min", min), ("max", max))
    }
    print(json.dumps(report | {"runs": len(runs)}))


if __name__ == "__main__":
    main()
