"""`frd doctor`: checks whether a job on this machine would be watched, and says what to do.

`frd_agent.launch.checks` has the checks of the node; those of the service are here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from prometheus_client.parser import text_string_to_metric_families

from frd import __version__
from frd.cli.client import Client, job_path
from frd.cli.options import PATH, json_option, print_json, service_options
from frd.errors import FrdError
from frd.usage import examples, plain
from frd_agent import exec as starter
from frd_agent import tap
from frd_agent.launch import agent_checks, checks
from frd_agent.launch.checks import Check

_HEARS: Final = "service hears the agent"
_ADVICE: Final = "check the agent's --service and its log"
_MAX_JOBS: Final = 50
"""Running jobs of a cluster that are searched for this node."""


@click.command(
    "doctor",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog=examples(
        "frd doctor",
        "frd doctor -- torchrun --nproc-per-node 2 train.py    # in the Python of this command",
        "frd doctor --run-dir /run/frd-alice --json",
    ),
)
@click.option("--run-dir", type=PATH, metavar="DIR", help="Where the taps publish.")
@json_option
@service_options
@click.argument("job_command", nargs=-1, type=click.UNPROCESSED, metavar="[-- CMD ...]")
def command(
    client: Client, run_dir: Path | None, as_json: bool, job_command: tuple[str, ...]
) -> int:
    """Check whether a job on this machine would be watched, and say what to do if not.

    Where an agent runs without torch, as in the sidecar of a pod, and no CMD is given, the agent is
    checked instead: users, pid namespace, capabilities, a stack and the cgroup of a rank, and its
    service.

    Starts Python as CMD would, without running CMD, and checks that the tap loads there, the
    version of torch, and the variables. Then checks the run directory, its agent, the service, and
    that the agent is connected to it. Exit code 1 if a check has failed; warnings do not count.
    """
    done: list[Check] = []
    agent = None if job_command else agent_checks.running_agent(run_dir)
    checked = agent_checks.of_agent(*agent) if agent else _checks(client, run_dir, job_command)
    for check in checked:
        done.append(check)
        if not as_json:
            click.echo(plain(checks.line(check)))
    said = checks.as_json(done)
    if as_json:
        print_json(said)
    return 0 if said["ok"] else 1


def _checks(client: Client, run_dir: Path | None, cmd: tuple[str, ...]) -> Iterator[Check]:
    yield from checks.of_node(cmd, run_dir)
    directory = os.path.abspath(run_dir) if run_dir is not None else tap.run_dir(os.environ)
    agent = starter.watcher(directory)
    yield from _service(client, agent.node if agent is not None else "")


def _service(client: Client, node: str) -> Iterator[Check]:
    """`node`: name of the node of the agent that watches here; empty without an agent."""
    try:
        listed = client.get("/api/v1/jobs")
        watching, is_cluster = listed["watching"], "incomplete" in listed
        metrics = _samples(client.text("/metrics"))
        known: Mapping[str, Any] | None = None
        if node and is_cluster:
            known = _node_of(client, listed["jobs"], node)
        elif watching["agents"] and ("frd_clock_steps_total", node) in metrics:
            known = {"clock_uncertainty_s": metrics.get(("frd_clock_uncertainty_seconds", node))}
    except (FrdError, KeyError, TypeError, ValueError) as error:
        yield Check.failed("service, HTTP", str(error).removeprefix("service: "))
        return
    versions = [label for name, label in metrics if name == "frd_build_info"]
    yield _version(client, versions[0] if versions else "unknown")
    if node and known is not None:
        yield Check.ok(_HEARS, f"{node} is connected")
        yield _clock(node, known["clock_uncertainty_s"])
    elif node and is_cluster:  # the agent may be connected to any replica; its jobs say to which
        why = f"no running job of the cluster of {client.address} has ranks there: start the job"
        yield Check.warning(_HEARS, f"{node}: {why}, or {_ADVICE}")
    elif node:
        why = f"no agent of this node is connected to {client.address}"
        yield Check.failed(_HEARS, f"{node}: {why}: {_ADVICE}")
    for text in watching["blind"]:
        yield Check.warning("blind", text)


def _node_of(
    client: Client, lines: Sequence[Mapping[str, Any]], node: str
) -> Mapping[str, Any] | None:
    """What a running job of a cluster knows of the node."""
    for line in [one for one in lines if not one["ended"]][:_MAX_JOBS]:
        for known in client.get(job_path(line["job"]))["nodes"]:
            if known["node"] == node and known["connected"]:
                return dict(known)
    return None


def _samples(metrics: str) -> Mapping[tuple[str, str], float]:
    """Metrics with exactly one label, by name and the value of the label."""
    return {
        (sample.name, next(iter(sample.labels.values()))): sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if len(sample.labels) == 1
    }


def _version(client: Client, theirs: str) -> Check:
    if theirs == __version__:
        return Check.ok("service, HTTP", f"{client.address}, version {theirs}")
    return Check.warning(
        "service, HTTP",
        f"{client.address}: has version {theirs}, this is {__version__}: see docs/upgrade.md",
    )


def _clock(node: str, uncertainty_s: float | None) -> Check:
    if uncertainty_s is None:
        return Check.warning(
            "clock",
            f"{node}: not known to the service yet: look again in a few seconds; if it stays so, "
            "the network between them delays every message",
        )
    return Check.ok("clock", f"{node}: known within ±{uncertainty_s * 1e3:.3g} ms")
