"""`frd findings`: open findings of the service, once or redrawn live.

`frd findings ID` shows one finding, `close` closes one, `export` writes them all for other tools.
Every answer ends in a line of what is watched: "no findings" means nothing for a job that no agent
watches.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec
from click.core import ParameterSource
from rich.console import RenderableType
from rich.text import Text

from frd.cli import BLIND, FINDINGS_PRESENT
from frd.cli.client import Client, unknown_job
from frd.cli.commands.findings.export import export
from frd.cli.commands.findings.one import close, show
from frd.cli.commands.findings.people import ack, assign, note, silence
from frd.cli.options import console, json_option, print_json, service_options, since_option
from frd.cli.screens.finding_panel import finding_panel
from frd.cli.screens.live import EVERY_S, Picture, watch
from frd.cli.screens.watching import last_lines, silent_replicas
from frd.errors import ServiceUnavailable
from frd.usage import examples

_Query = Mapping[str, str | None]


class _Findings(click.Group):
    """A word that is no subcommand is the id of a finding: ``frd findings ID`` shows it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        parser = self.make_parser(ctx)
        parser.allow_interspersed_args = parser.ignore_unknown_options = True
        try:
            _, words, _ = parser.parse_args(list(args))
        except click.UsageError:
            words = []  # parsed again below, which reports the error
        # `words` also has the options that are unknown here: those of a subcommand, after its name.
        if words and words[0] not in self.commands and not words[0].startswith("-"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(
    "findings",
    cls=_Findings,
    invoke_without_command=True,
    subcommand_metavar="[ID | COMMAND ...]",
    epilog=examples(
        "frd findings                    # open findings; exit code 3 if there are any",
        "frd findings --watch            # the same, redrawn every second",
        "frd findings --since 12h        # what was open in the last 12 hours",
        "frd findings 5f0c6a2e91d3b784   # one finding: evidence, stacks, history",
        'frd findings close 5f0c6a2e --because "the file server was restarted"',
    ),
)
@click.option("--job", metavar="J", help="Only findings of this job.")
@click.option("--all", "closed_too", is_flag=True, help="Closed findings as well.")
@since_option
@click.option("--watch", is_flag=True, help="Redraw every second until interrupted.")
@json_option
@service_options
@click.pass_context
def command(
    context: click.Context,
    client: Client,
    job: str | None,
    closed_too: bool,
    since: str | None,
    watch: bool,
    as_json: bool,
) -> int:
    """List open findings, and what frd watches.

    The newest finding is last on a terminal, first in a pipe. With an ID, show that finding.

    Findings that were closed by hand are listed until their trouble is over.

    Exit code 3 when there are findings, 4 when there are no findings but frd is blind: a job, rank
    or agent is not watched, as the output says. With --watch, --json prints each finding as one
    line whenever it changes.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return 0
    state = None if closed_too or since is not None else "open"
    query = {"job": job, "state": state, "since": since}
    answer = _ask(
        client, query
    )  # with --watch, a wrong address is an error, a later restart is not
    if job is not None and not answer["findings"] and not _blind(answer):
        _require_job(client, job)
    if watch:
        return _watch(client, query, as_json)
    if as_json:
        print_json(answer)
    else:
        screen = console()
        screen.print(_picture(answer, newest_last=screen.is_terminal))
    return _exit_code(answer)


command.add_command(show)
for _what in (ack, assign, note, silence, close):
    command.add_command(_what)
command.add_command(export)


def _refuse_options(context: click.Context) -> None:
    """An option before the subcommand would be parsed for the group and be lost."""
    for parameter in context.command.params:
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE:
            option, name = parameter.opts[-1], context.invoked_subcommand or ""
            takes_it = any(option in of.opts for of in command.commands[name].params)
            what = f"write it after {name}" if takes_it else f"{name} does not take it"
            raise click.UsageError(f"{option}: {what}", context)


def _ask(client: Client, query: _Query) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = client.get("/api/v1/findings", query)
    return answer


def _exit_code(answer: Mapping[str, Any]) -> int:
    """3 if there are findings; else 4 if frd is blind, else 0."""
    if answer["findings"]:
        return FINDINGS_PRESENT
    return BLIND if _blind(answer) else 0


def _blind(answer: Mapping[str, Any]) -> Sequence[str]:
    """Why frd is blind; an older service does not report it."""
    texts: Sequence[str] = answer.get("watching", {}).get("blind", ())
    return texts


def _require_job(client: Client, job: str) -> None:
    """Refuse an unknown job, for which an empty list would look like an all-clear.

    Raises:
        FrdError: the job neither runs nor has a finding.
    """
    answer = client.get("/api/v1/jobs")
    known = [line["job"] for line in answer["jobs"]]
    if job not in known and not _ask(client, {"job": job, "limit": "1"})["findings"]:
        raise unknown_job(job, known, silent=silent_replicas(answer))


def _picture(answer: Mapping[str, Any], *, newest_last: bool) -> Picture:
    """The service gives the newest first."""
    found = answer["findings"]
    body = [finding_panel(one) for one in (reversed(found) if newest_last else found)]
    last = list(last_lines(answer))
    if not found and _blind(answer):
        last.insert(0, Text("no findings, but frd does not see everything", style="yellow"))
    elif not found and silent_replicas(answer):
        last.insert(0, Text("no findings of the replicas that answered", style="yellow"))
    elif not found:
        last.insert(0, Text("no findings", style="green"))
    return Picture(body, last, keep_end=newest_last)


def _watch(client: Client, query: _Query, as_json: bool) -> int:
    screen = console()
    if screen.is_terminal and not as_json:
        watch(screen, lambda: _picture(_ask(client, query), newest_last=True))
        return 0
    with contextlib.suppress(KeyboardInterrupt):
        _follow(client, query, as_json)
    return 0


def _follow(client: Client, query: _Query, as_json: bool) -> None:
    """For a pipe: print each finding that is new or has changed, and what is watched whenever frd
    becomes blind or sees everything again, or a replica is silent or answers again."""

    def show(value: object, *drawn: RenderableType) -> None:
        if as_json:
            click.echo(msgspec.json.encode(value).decode("utf-8"))
        else:
            console().print(*drawn, sep="\n")

    shown: dict[str, Mapping[str, Any]] = {}
    seen: tuple[Sequence[str], Sequence[str]] | None = ([], []) if as_json else None
    silent = False
    while True:
        try:
            answer = _ask(client, {**query, "state": None})
            silent = False
        except ServiceUnavailable as error:
            if not silent:
                click.echo(f"frd: warning: {error}", err=True)
            silent = True
            time.sleep(EVERY_S)
            continue
        for finding in reversed(answer["findings"]):
            lasts = finding["state"] == "open" or finding.get("goes_on")
            is_news = lasts or finding["id"] in shown or query["state"] is None
            if is_news and shown.get(finding["id"]) != finding:
                shown[finding["id"]] = finding
                show(finding, finding_panel(finding))
        if (now := (list(_blind(answer)), silent_replicas(answer))) != seen:
            seen = now
            keys = ("watching", "incomplete")
            show({key: answer[key] for key in keys if key in answer}, *last_lines(answer))
        time.sleep(EVERY_S)
