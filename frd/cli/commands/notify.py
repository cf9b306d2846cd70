"""`frd notify test`: one message to a webhook of the configuration, to see that it arrives."""

from __future__ import annotations

import time
from pathlib import Path

import click

from frd import config
from frd.cli.options import PATH
from frd.config import NotifyTarget, public_url
from frd.errors import ConfigError, FrdError
from frd.model import AlignedNs
from frd.service.findings.delivery import Outcome, Result, check_files, post
from frd.service.findings.messages import Event, Notice, body, sample_finding
from frd.store.findings import Owed
from frd.usage import examples

_EXAMPLES = examples("frd notify test chat", "frd notify test pager --config /etc/frd/frd.toml")


@click.group("notify", epilog=_EXAMPLES)
def command() -> None:
    """Messages to the webhooks of `[[notify]]`."""


@command.command("test", epilog=_EXAMPLES)
@click.argument("name", metavar="NAME")
@click.option("--config", "path", type=PATH, metavar="FILE", help="The service's TOML file.")
def test(name: str, path: Path | None) -> None:
    """Send a test message to one webhook, and print its answer.

    The message says that it is a test. PagerDuty gets an alert, and its end right behind it. The
    exit code is 1 if the webhook does not accept the message.
    """
    effective = config.load(path)
    targets = {target.name: target for target in effective.notify}
    if (target := targets.get(name)) is None:
        known = ", ".join(targets) or "none: add a [[notify]] section"
        raise ConfigError(f"notify: {name!r}: not configured: known are {known}")
    check_files(target)
    now = AlignedNs(time.time_ns())
    events: tuple[Event, ...] = ("test", "closed") if target.format == "pagerduty" else ("test",)
    for event in events:
        notice = Notice(event, sample_finding(now))
        content = body(notice, target, public_url(effective), has_pages=False)
        began_s = time.monotonic()
        outcome = post(target, Owed(name, f"{notice.finding.id}-{event}", now, content))
        _report(target, outcome, time.monotonic() - began_s)


def _report(target: NotifyTarget, outcome: Outcome, took_s: float) -> None:
    said = f"notify {target.name}: {outcome.why} after {took_s:.2f} s"
    if outcome.result is not Result.SENT:
        raise FrdError(f"{said}: not accepted: check its URL and format ({target.format})")
    click.echo(f"{said}: accepted")
