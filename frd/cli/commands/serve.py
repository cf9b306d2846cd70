"""`frd serve`: the central service, until SIGTERM or SIGINT; on SIGHUP it reads its file again."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from frd import logs
from frd.cli.options import serve_flags, serve_options
from frd.config import load as load_config
from frd.config import public_url
from frd.errors import ConfigError
from frd.usage import calm_grpc, examples

if TYPE_CHECKING:
    from frd.config import Config
    from frd.service.app import App
    from frd.service.metrics.recent_peak import RecentPeak

_TURN_S: Final = 0.0005

log = logging.getLogger(__name__)


@click.command(
    "serve",
    epilog=examples(
        "frd serve                                  # on this machine only",
        "frd serve --config frd.toml",
        "frd serve --grpc 127.0.0.1:0 --http 127.0.0.1:0 --data-dir data",
    ),
)
@serve_options
@click.option(
    "--insecure",
    is_flag=True,
    default=None,
    help="Listen beyond loopback without TLS and tokens; see docs/security.md.",
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), help="Format of the log on stderr."
)
def command(
    config: Path | None, insecure: bool | None, log_format: str | None, **serve: Any
) -> None:
    """Run the central service.

    Prints one JSON line with the bound addresses once it is ready; port 0 takes any free one.
    """
    # Without gRPC's own lines on stderr; gRPC reads the variable when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    calm_grpc()
    flags = {**serve_flags(**serve), "insecure": insecure, "log.format": log_format}
    load = functools.partial(load_config, config, flags)
    effective = load()
    logs.configure(effective.log.level, effective.log.format)
    tune()
    from frd.service.metrics.recent_peak import RecentPeak, measured_loop

    lag = RecentPeak()
    with asyncio.Runner(loop_factory=functools.partial(measured_loop, lag)) as runner:
        runner.run(_serve(effective, load, lag))


def tune() -> None:
    """Set Python for short pauses, at the cost of memory and turns. Call it once, before the event
    loop runs."""
    # A full collection walks every rank of every job: 0.2 s and more in which no message is read.
    # Long-lived objects have no cycles here, so full collections can be rare.
    gc.set_threshold(10_000, 20, 1_000)
    # Threads write the journal and render scrapes. With Python's 5 ms a turn, each of the thousand
    # messages a second would wait that long for them.
    sys.setswitchinterval(_TURN_S)


async def _serve(config: Config, load: Callable[[], Config], lag: RecentPeak) -> None:
    from frd.service.app import App

    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    notify = logs.notifier(os.environ)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    app = App(config, lag)
    # A terminal sends SIGHUP when it closes; that is no request to reload.
    hangs_up = stopped.set if sys.stderr.isatty() else functools.partial(_reload, app, load)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
        loop.add_signal_handler(signal.SIGHUP, hangs_up)
    try:
        await app.start()
        if config.web:
            log.info("page: %s/", public_url(config, app.http))
        click.echo(json.dumps({"grpc": app.grpc, "http": app.http}))
        notify(logs.READY)
        await stopped.wait()
        notify(logs.STOPPING)
    finally:
        await app.stop()


def _reload(app: App, load: Callable[[], Config]) -> None:
    """An invalid file changes nothing."""
    try:
        config = load()
    except ConfigError as error:
        log.error("%s: nothing is changed", error)
        return
    logs.configure(config.log.level, config.log.format)
    app.adopt(config)
