"""`frd demo`: a job that hangs on this machine, and the findings of frd about it."""

from __future__ import annotations

import sys
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from frd.address import finding_page
from frd.cli.commands.demo.run import Outcome, Scene, play
from frd.cli.commands.demo.scenarios import DEFAULT_RANKS, SCENARIOS, Scenario
from frd.cli.commands.demo.stage import Stage
from frd.cli.options import console, json_option, print_json
from frd.cli.screens.finding_panel import finding_panel
from frd.cli.screens.job_tables import memory_table, ranks_table
from frd.cli.signals import ended_by_signals, wait_for_end
from frd.errors import FrdError
from frd.usage import examples

_NEXT = (
    "next: `frd up` here, and in another terminal "
    "`frd-agent exec -- torchrun --nproc-per-node 2 train.py`"
)


@click.command(
    "demo",
    epilog=examples(
        "frd demo",
        "frd demo --keep                            # and look at it in a browser",
        "frd demo --scenario gil",
        "frd demo --scenario straggler --ranks 8 --scripted",
    ),
)
@click.option(
    "--scenario",
    type=click.Choice(list(SCENARIOS)),
    default="missing_rank",
    show_default=True,
    help="What goes wrong.",
)
@click.option(
    "--ranks",
    type=click.IntRange(2, 32),
    default=DEFAULT_RANKS,
    show_default=True,
    help="Size of the job.",
)
@click.option(
    "--stall-after",
    type=click.FloatRange(min=1.0),
    default=3.0,
    show_default=True,
    metavar="SECONDS",
    help="Floor of the stall threshold.",
)
@click.option("--scripted", is_flag=True, help="Use scripted ranks even if torch is installed.")
@click.option(
    "--keep",
    is_flag=True,
    help="Leave service, agent and job running after the finding, until Ctrl-C.",
)
@json_option
def command(
    scenario: str, ranks: int, stall_after: float, scripted: bool, keep: bool, as_json: bool
) -> None:
    """Start a service, an agent and a small job that hangs; name the first cause; clean up.

    Ends by itself within a minute, unless --keep is given. Exit code 0 when the findings match what
    was injected.
    """
    chosen = SCENARIOS[scenario]
    if ranks < chosen.min_ranks:
        raise click.BadParameter(
            f"{scenario} takes at least {chosen.min_ranks}", param_hint="--ranks"
        )
    notes = Console(stderr=True)
    with ended_by_signals(), Stage(chosen, ranks, stall_after, scripted=scripted) as stage:
        if stage.scripted:
            why = "asked for" if scripted else "torch is not installed"
            notes.print(f"scripted ranks ({why}): they use the same protocol as torch ranks")
        if sys.stdout.isatty() and not as_json:
            outcome = _play_live(stage)
        else:
            outcome = _play_plain(stage, notes)
        keep = keep and not outcome.problems
        if as_json:
            print_json(_json(stage, outcome) | ({"page": f"{outcome.url}/"} if keep else {}))
        else:
            _print_outcome(console(), outcome, runs_on=keep)
        if keep:
            wait_for_end(lambda: _print_pages(notes if as_json else console(), outcome))
    if outcome.problems:
        raise FrdError(f"demo: {scenario}: {'; '.join(outcome.problems)}")
    if not (as_json or keep):
        click.echo(_NEXT)


def _json(stage: Stage, outcome: Outcome) -> dict[str, Any]:
    scenario = stage.scenario
    injected = scenario.suspects(stage.world) if scenario.expected is not None else None
    out = {
        "scenario": scenario.name,
        "ranks": stage.world,
        "matched": not outcome.problems,
        "injected": injected,
        "findings": list(outcome.findings),
    }
    if (takeover := outcome.takeover) is not None:
        seconds = round(takeover.seconds, 2)
        out["takeover"] = {"killed": takeover.killed, "by": takeover.by, "seconds": seconds}
    return out


def _print_pages(screen: Console, outcome: Outcome) -> None:
    """Where to look while the demo is kept, and how it ends."""
    screen.print(f"page: {outcome.url}/", style="bold", highlight=False, soft_wrap=True)
    for finding in outcome.findings:
        page = finding_page(outcome.url, finding["id"])
        screen.print(f"finding: {page}", style="bold", highlight=False, soft_wrap=True)
    address = outcome.url.partition("://")[2]
    screen.print(f"commands: export FRD_HTTP={address}", highlight=False, soft_wrap=True)
    screen.print("service, agent and job run until Ctrl-C", highlight=False)


def _play_live(stage: Stage) -> Outcome:
    with Live(Text("..."), refresh_per_second=8, transient=True) as live:
        return play(stage, lambda scene: live.update(_picture(stage.scenario, scene)))


def _play_plain(stage: Stage, notes: Console) -> Outcome:
    """A line whenever something else happens."""
    page = doing = ""

    def show(scene: Scene) -> None:
        nonlocal page, doing
        if scene.page != page:
            page = scene.page
            notes.print(f"page: {page}", highlight=False, soft_wrap=True)
        if scene.doing != doing:
            doing = scene.doing
            notes.print(f"{scene.passed_s:5.1f} s  {doing}", highlight=False)

    return play(stage, show)


def _picture(scenario: Scenario, scene: Scene) -> RenderableType:
    parts: list[RenderableType] = [Text.from_markup(f"[b]frd demo[/b]: {scenario.title}")]
    if scene.job is not None:
        parts.append(ranks_table(scene.job["ranks"], {}))
        if scenario.expected is not None and scenario.expected.reason == "memory":
            parts.append(memory_table(scene.job["memory"]))
    parts += [finding_panel(finding, is_live=True) for finding in scene.findings]
    if scene.page:
        parts.append(Text(f"page: {scene.page}"))
    parts.append(Text(f"{scene.passed_s:5.1f} s  {scene.doing}", style="dim"))
    return Group(*parts)


def _print_outcome(console: Console, outcome: Outcome, *, runs_on: bool) -> None:
    """Without commands for a service and ranks that are gone when a person could type them."""
    for finding in outcome.findings:
        steps = [{"text": step["text"]} for step in finding.get("do_now", ())]
        shown = finding if runs_on else {**finding, "do_now": steps, "dump": None}
        console.print(finding_panel(shown))
    if not outcome.findings:
        console.print("no findings")
    if (takeover := outcome.takeover) is not None:
        console.print(
            f"{takeover.killed} watched the job and was killed; {takeover.seconds:.1f} s later "
            f"{takeover.by} shows the same finding",
            style="bold",
            highlight=False,
        )
    if outcome.metrics:
        console.print("what Prometheus sees:", style="bold")
        for line in outcome.metrics:
            console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
