"""`frd-agent`: `run` watches this node, `exec` runs a command with the tap switched on."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from frd import usage
from frd.errors import ConfigError
from frd.usage import examples
from frd.version import __version__

if TYPE_CHECKING:
    from frd_agent.agent import Agent

_PATH = click.Path(path_type=Path)
_FILE = click.Path(path_type=Path, dir_okay=False)
_OUTLIVE_S = 25.0
"""Slurm and Kubernetes kill 30 s after SIGTERM, by default."""


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "frd-agent run --service frd.example:9373",
        "frd-agent exec -- torchrun --nproc-per-node 2 train.py",
    ),
)
@click.version_option(__version__, prog_name="frd-agent", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> int:
    """Watch the ranks of one node for frd."""
    if context.invoked_subcommand is not None:
        return 0
    click.echo(context.get_help(), err=True)
    return usage.USAGE


@cli.command(
    epilog=examples(
        "frd-agent run --service frd.example:9373",
        "frd-agent run --service frd-0:9373,frd-1:9373,frd-2:9373",
        "frd-agent run --service 127.0.0.1:9373 --run-dir /tmp/frd --metrics off",
        "frd-agent run --config agent.toml",
    )
)
@click.option(
    "--service",
    metavar="HOST:PORT,...",
    help="gRPC address of the service, or its URL; several are replicas of one service.",
)
@click.option("--run-dir", type=_PATH, metavar="DIR", help="Where the taps of this node publish.")
@click.option("--dump-dir", type=_PATH, metavar="DIR", help="Where torch writes its dump files.")
@click.option(
    "--tls-ca-file", type=_FILE, help="Use TLS, and verify the service with this CA bundle (PEM)."
)
@click.option("--tls-cert-file", type=_FILE, help="Client certificate (PEM).")
@click.option("--tls-key-file", type=_FILE, help="Client private key (PEM).")
@click.option("--token-file", type=_FILE, help="File with the bearer token.")
@click.option(
    "--config",
    "configs",
    type=_FILE,
    multiple=True,
    help="TOML configuration file; of several, the first one that exists.",
)
@click.option("--metrics", metavar="HOST:PORT|off", help="Where /metrics listens.")
@click.option("--node", metavar="NAME", help="Name of this node.  [default: the host's name]")
@click.option(
    "--outlive-ranks",
    "outlive_ranks_s",
    type=float,
    is_flag=False,
    flag_value=_OUTLIVE_S,
    metavar="[SECONDS]",
    help="When asked to stop, stay while ranks of this node live, and report how they end; for "
    f"{_OUTLIVE_S:g} s at most if no SECONDS are given. A second signal ends the agent.",
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), help="Format of the log on stderr."
)
@click.option(
    "--check", is_flag=True, help="Do not watch; check whether the configuration is valid."
)
def run(configs: tuple[Path, ...], check: bool, **flags: object) -> None:
    """Watch this node until SIGTERM or SIGINT; on SIGHUP, read the file again."""
    # gRPC's fork handlers are for programs that fork and go on using it; py-spy is only exec'ed.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    usage.calm_grpc()
    from frd import logs
    from frd_agent.config import load

    loaded = load(first_of(configs), flags)
    if check:
        return
    logs.configure(loaded.log_level, loaded.log_format)
    # Dumps make tens of thousands of objects without cycles; Python's own threshold is 700.
    gc.set_threshold(50_000, 20, 100)
    from frd_agent.agent import Agent

    async def main() -> None:
        agent = Agent(loaded, logs.notifier(os.environ))
        loop = asyncio.get_running_loop()
        # A terminal that closes sends SIGHUP: stop properly, or the service reports blind ranks.
        hangs_up = agent.stop if sys.stderr.isatty() else partial(_reload, agent, configs, flags)
        handlers = {
            signal.SIGTERM: agent.terminate,
            signal.SIGINT: agent.stop,
            signal.SIGHUP: hangs_up,
        }
        for number, handler in handlers.items():
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves it
                loop.add_signal_handler(number, handler)
        await agent.run()

    try:
        asyncio.run(main())
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


def first_of(configs: Sequence[Path]) -> Path | None:
    """The first that exists; the last one if none does, so that the error names it."""
    return next(
        (path for path in configs if os.path.exists(path)), configs[-1] if configs else None
    )


def _reload(agent: Agent, configs: Sequence[Path], flags: Mapping[str, object]) -> None:
    """Apply the file again; an invalid file changes nothing."""
    from frd import logs
    from frd_agent.config import load

    try:
        config = load(first_of(configs), flags)
    except ConfigError as error:
        logging.getLogger(__name__).error("%s: nothing is changed", error)
        return
    logs.configure(config.log_level, config.log_format)
    agent.adopt(config)


@cli.command(
    "exec",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog=examples(
        "frd-agent exec -- torchrun --nproc-per-node 2 train.py",
        "frd-agent exec --job pretrain-7b -- python train.py",
        "srun frd-agent exec -- python train.py",
        "frd-agent exec --allow-ptrace -- python train.py",
        "frd-agent exec --check -- torchrun --nproc-per-node 2 train.py",
    ),
)
@click.option("--run-dir", type=_PATH, metavar="DIR", help="Where the taps publish.")
@click.option(
    "--job",
    metavar="NAME",
    help="Name of the job.  [default: from torchrun, Slurm, or script and user]",
)
@click.option("--timing", is_flag=True, help="Turn the recorder's timing on.")
@click.option(
    "--wait-agent",
    "wait_agent_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Wait so long for an agent to watch the run directory.",
)
@click.option(
    "--allow-ptrace",
    is_flag=True,
    help="Let any process of this user read the ranks, where Yama forbids it (ptrace_scope 1).",
)
@click.option(
    "--check", is_flag=True, help="Do not run COMMAND; check whether its ranks would be watched."
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def exec_(
    run_dir: Path | None,
    job: str | None,
    timing: bool,
    wait_agent_s: float | None,
    allow_ptrace: bool,
    check: bool,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND (torchrun, python, an srun step) with the tap switched on."""
    if check:
        from frd_agent.launch import checks

        done = []
        for check_ in checks.of_node(command, run_dir, allow_ptrace=allow_ptrace):
            done.append(check_)
            click.echo(checks.line(check_))
        return 0 if checks.as_json(done)["ok"] else 1
    if not command:
        raise click.UsageError("COMMAND...: missing")
    from frd_agent.exec import exec_command

    exec_command(command, run_dir, timing, job, wait_agent_s, allow_ptrace=allow_ptrace)


def main() -> None:
    """The console script: one line on stderr, exit code 1 for failures and 2 for usage."""
    sys.exit(run_cli(sys.argv[1:]))


def run_cli(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code."""
    return usage.run(cli, "frd-agent", arguments)
