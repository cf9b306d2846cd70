"""`frd findings`: open findings of the service, once or redrawn live.

`frd findings ID` shows one finding, `close` closes one, `export` writes them all for other tools.
Every answer ends in a line of what is watched: "no findings" means nothing for a job that no agent
watches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from rich.text import Text

from frd.cli import BLIND, FINDINGS_PRESENT
from frd.cli.client import Client, unknown_job
from frd.cli.commands.findings.export import export
from frd.cli.commands.findings.one import show
from frd.cli.commands.findings.people import ack, assign, close, note, silence
from frd.cli.options import (
    console,
    finding_ids,
    job_names,
    output_option,
    print_json,
    service_options,
    since_option,
)
from frd.cli.screens import live, records
from frd.cli.screens.finding_panel import finding_panel
from frd.cli.screens.live import Picture
from frd.cli.screens.records import last_lines, service_time, silent_replicas
from frd.usage import examples

_Query = Mapping[str, str | None]


class _Findings(click.Group):
    """A word that is no subcommand is the id of a finding: ``frd findings ID`` shows it."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        ids = [] if incomplete.startswith("-") else finding_ids(ctx, None, incomplete)
        return [*super().shell_complete(ctx, incomplete), *map(CompletionItem, ids)]

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
        "frd findings -o name            # ids only",
        "frd findings --since 12h        # what was open in the last 12 hours",
        "frd findings 5f0c6a2e91d3b784   # one finding: evidence, stacks, history",
        'frd findings close 5f0c6a2e --because "the file server was restarted"',
    ),
)
@click.option("--job", metavar="J", shell_complete=job_names, help="Only findings of this job.")
@click.option("--all", "closed_too", is_flag=True, help="Closed findings as well.")
@since_option("Findings that were open")
@click.option("--watch", is_flag=True, help="Redraw every second; in a pipe, print what is new.")
@output_option
@service_options
@click.pass_context
def command(
    context: click.Context,
    client: Client,
    job: str | None,
    closed_too: bool,
    since: str | None,
    watch: bool,
    form: str,
) -> int:
    """List open findings, and what frd watches. With an ID, show that finding.

    The newest finding is last on a terminal. In a pipe it is first, each finding is one line of
    columns separated by tabs, and what frd watches goes to stderr. With --watch it prints a finding
    whenever people learn more of it: opened, another suspect, critical, acknowledged, closed.

    Findings that were closed by hand are listed until their trouble is over.

    Exit code 3 when there are findings, 4 when there are no findings but frd is blind: a job, rank
    or agent is not watched, as the output says.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return 0
    state = None if closed_too or since is not None else "open"
    query = {"job": job, "state": state, "since": since}
    answer = _ask(
        client, query
    )  # with --watch, a wrong address is an error, a later restart is not
    if job is not None and not answer["findings"] and not answer["watching"]["blind"]:
        _require_job(client, job)
    if watch and form == "drawn":
        live.watch(console(), lambda: _picture(_ask(client, query), is_live=True))
    elif watch:
        _follow(client, query, form)
    elif form == "json":
        print_json(answer)
    elif form == "drawn":
        console().print(_picture(answer))
    else:
        _print_records(form, answer["findings"], answer)
        records.print_notes(_last(answer))
    return 0 if watch else _exit_code(answer)


for _what in (show, ack, assign, note, silence, close, export):
    command.add_command(_what)


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
    return BLIND if answer["watching"]["blind"] else 0


def _require_job(client: Client, job: str) -> None:
    """Refuse an unknown job, for which an empty list would look like an all-clear.

    Raises:
        FrdError: the job neither runs nor has a finding.
    """
    answer = client.get("/api/v1/jobs")
    known = [line["job"] for line in answer["jobs"]]
    if job not in known and not _ask(client, {"job": job, "limit": "1"})["findings"]:
        raise unknown_job(job, known, silent=silent_replicas(answer))


def _picture(answer: Mapping[str, Any], *, is_live: bool = False) -> Picture:
    """The service gives the newest first."""
    body = [finding_panel(one, is_live=is_live) for one in reversed(answer["findings"])]
    return Picture(body, _last(answer), keep_end=True)


def _last(answer: Mapping[str, Any]) -> Sequence[Text]:
    last = list(last_lines(answer))
    if answer["findings"]:
        return last
    if answer["watching"]["blind"]:
        return [Text("no findings, but frd does not see everything", style="yellow"), *last]
    if silent_replicas(answer):
        return [Text("no findings of the replicas that answered", style="yellow"), *last]
    return [Text("no findings", style="green"), *last]


def _print_records(form: str, found: Sequence[Any], answer: Mapping[str, Any]) -> None:
    rows = [records.finding_record(one, service_time(answer)) for one in found]
    records.print_records(form, records.FINDING, records.FINDING_WIDE, rows)


def _follow(client: Client, query: _Query, form: str) -> None:
    """For a pipe: print each finding when people would learn something of it, and what is watched
    whenever frd becomes blind or sees everything again, or a replica is silent or answers again."""
    is_json = form == "json"
    shown: dict[str, object] = {"": ([], [])} if is_json else {}

    def show(answer: Mapping[str, Any]) -> None:
        for finding in reversed(answer["findings"]):
            lasts = finding["state"] == "open" or finding.get("goes_on")
            is_wanted = lasts or finding["id"] in shown or query["state"] is None
            if is_wanted and live.is_news(shown, finding["id"], _news(finding)):
                if is_json:
                    click.echo(msgspec.json.encode(finding).decode("utf-8"))
                else:
                    _print_records(form, [finding], answer)
        if live.is_news(shown, "", (answer["watching"]["blind"], silent_replicas(answer))):
            if is_json:
                keys = ("watching", "incomplete")
                value = {key: answer[key] for key in keys if key in answer}
                click.echo(msgspec.json.encode(value).decode("utf-8"))
            else:
                records.print_notes(last_lines(answer))

    live.follow(lambda: _ask(client, {**query, "state": None}), show)


def _news(finding: Mapping[str, Any]) -> object:
    """What of a finding people want to know when it changes: not how long it has lasted."""
    suspects = [(one["rank"], one["reason"], one["confidence"]) for one in finding["suspects"]]
    keys = ("state", "goes_on", "severity", "headline", "close_reason", "ended_by")
    said = ("acknowledged_by", "assigned_to", "notes", "silenced_until")
    return suspects, [finding.get(key) for key in (*keys, *said)]
