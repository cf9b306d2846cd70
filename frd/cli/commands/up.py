"""`frd up`: service and agent of one machine, started and stopped together.

For a workstation. Service and agent are separate processes of this process group, so that Ctrl-C
reaches all three. When one of them ends, this command ends the other.
"""

from __future__ import annotations

import functools
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from frd.cli.client import Client
from frd.cli.options import DEFAULT_HTTP, PATH, console, serve_flags, serve_options
from frd.cli.screens.records import watching_text
from frd.cli.signals import ended_by_signals, first_line
from frd.config import Config, own_url, public_url
from frd.config import load as load_config
from frd.errors import FrdError, ServiceUnavailable
from frd.usage import FAILED, USAGE, examples

_ASK_S = 2.0
_LOOK_EVERY_S = 0.2
_READY_WITHIN_S = 30.0
_STOP_WITHIN_S = 10.0


@click.command("up", epilog=examples("frd up", "frd up --data-dir data --stall-after 20"))
@serve_options
@click.option("--run-dir", type=PATH, metavar="DIR", help="Where the taps publish.")
@click.option(
    "--agent-metrics",
    metavar="HOST:PORT|off",
    help="The agent's own /metrics.  [default: 127.0.0.1:9375]",
)
@click.option("--json", "as_json", is_flag=True, help="Print addresses as one JSON line.")
def command(
    config: Path | None,
    run_dir: Path | None,
    agent_metrics: str | None,
    as_json: bool,
    **serve: Any,
) -> int:
    """Run service and agent on this machine, until Ctrl-C, SIGTERM or the terminal closes.

    The first line is the address of the page that shows jobs and findings in a browser.
    """
    watch = {"run_dir": run_dir, "metrics": agent_metrics}
    effective = load_config(config, serve_flags(**serve))  # a mistake in it is wrong usage
    _refuse_a_second(effective)
    show = functools.partial(_print_addresses, effective, run_dir, as_json)
    return _up(_words({"config": config, **serve}), _words(watch), show)


def _words(options: Mapping[str, object]) -> list[str]:
    """The command line that gives these options; None: not given, True: a flag."""
    words: list[str] = []
    for name, value in options.items():
        if value is not None:
            words.append(f"--{name.replace('_', '-')}")
            words += [] if value is True else [str(value)]
    return words


@ended_by_signals()
def _up(serve: Sequence[str], watch: Sequence[str], show: Callable[[dict[str, str]], None]) -> int:
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        service = running["service"] = _start("frd", "serve", *serve)
        if not (line := first_line(service, _READY_WITHIN_S)):
            raise ServiceUnavailable("up: the service did not start: see its lines above")
        where = json.loads(line)
        running["agent"] = _start("frd_agent", "run", "--service", where["grpc"], *watch)
        show(where)
        return _until_one_ends(running)
    except KeyboardInterrupt:
        return 0
    finally:
        _stop(running)


def _start(module: str, *words: str) -> subprocess.Popen[bytes]:
    stdout = subprocess.PIPE if module == "frd" else subprocess.DEVNULL
    command = [sys.executable, "-m", module, *words]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout)


def _refuse_a_second(config: Config) -> None:
    """
    Raises:
        FrdError: a service answers at the address already.
    """
    try:
        answer = Client(config.http, _ASK_S).get("/api/v1/jobs")
        what = f", {watching_text(answer['watching'])}"
    except ServiceUnavailable:
        return
    except (FrdError, LookupError):  # it wants a token, or is another server
        what = ""
    raise FrdError(
        f"up: {config.http}: a service runs there already{what}: use it, stop it, or name other "
        "addresses with --grpc and --http, and another --data-dir"
    )


def _print_addresses(
    config: Config, run_dir: Path | None, as_json: bool, where: dict[str, str]
) -> None:
    page = f"{public_url(config, where['http'])}/" if config.web else None
    if as_json:
        place = None if run_dir is None else str(run_dir)
        click.echo(json.dumps({**where, "run_dir": place, "page": page}))
        return
    if page is not None:
        console().print(Text(f"page: {page}", style="bold"), soft_wrap=True)
    http = "" if where["http"] == DEFAULT_HTTP else f" --http {where['http']}"
    place = "" if run_dir is None else f" --run-dir {shlex.quote(str(run_dir))}"
    click.echo(
        f"frd is up, Ctrl-C ends it; its metrics: {own_url(config, where['http'])}/metrics\n"
        f"  start a job:   frd-agent exec{place} -- torchrun --nproc-per-node 2 train.py\n"
        f"  its state:     frd status{http}\n"
        f"  findings:      frd findings --watch{http}"
    )


def _until_one_ends(running: Mapping[str, subprocess.Popen[bytes]]) -> int:
    while not (ended := [name for name, one in running.items() if one.poll() is not None]):
        time.sleep(_LOOK_EVERY_S)
    time.sleep(_LOOK_EVERY_S)  # Ctrl-C reaches all three processes, in any order
    code = running[ended[0]].returncode
    click.echo(f"frd: error: up: the {ended[0]} ended with {code}: see its lines above", err=True)
    return USAGE if code == USAGE else FAILED


def _stop(running: dict[str, subprocess.Popen[bytes]]) -> None:
    """The agent first, so that the service still gets its last messages."""
    for process in reversed(running.values()):
        process.terminate()
        try:
            process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
