"""What people say of findings: `frd findings ack`, `assign`, `note`, `silence`, `close`.

The service records who said it: the name of the token, or, without tokens, user and host of this
command, which the service shows as unverified.
"""

from __future__ import annotations

import functools
import getpass
import socket
from typing import Any
from urllib.parse import quote

import click

from frd.cli.client import Client
from frd.cli.commands.findings.one import ID, find, finding_path
from frd.cli.options import finding_ids, job_names, json_option, print_json, service_options, when
from frd.usage import examples, plain

_MOST_CHARS = 100
_SILENCES = "/api/v1/silences"


@click.command(
    "ack",
    epilog=examples(
        "frd findings ack 5f0c6a2e           # you look after it",
        "frd findings ack 5f0c6a2e --undo",
    ),
)
@ID
@click.option("--undo", is_flag=True, help="Take it back, also if another person acknowledged.")
@json_option
@service_options
def ack(client: Client, finding: str, undo: bool, as_json: bool) -> None:
    """Acknowledge an open finding: others see who looks after it, and since when.

    If another person has acknowledged it, this is an error that says who.
    """
    done = _say(client, finding, "ack", {"undo": undo})
    what = "took back the acknowledgement of" if undo else "acknowledged"
    _print(done, f"{what} {_named(done)}", as_json)


@click.command("assign", epilog=examples("frd findings assign 5f0c6a2e alice"))
@ID
@click.argument("name", metavar="NAME")
@json_option
@service_options
def assign(client: Client, finding: str, name: str, as_json: bool) -> None:
    """Assign a finding to a person; an empty NAME takes that back."""
    done = _say(client, finding, "assign", {"to": name})
    to = done.get("assigned_to", "")
    what = f"assigned to {plain(to)}: " if to else "assigned to no one: "
    _print(done, what + _named(done), as_json)


@click.command("note", epilog=examples('frd findings note 5f0c6a2e "node7 has a bad disk"'))
@ID
@click.argument("text", metavar="TEXT")
@json_option
@service_options
def note(client: Client, finding: str, text: str, as_json: bool) -> None:
    """Add a note to a finding, open or closed."""
    done = _say(client, finding, "note", {"text": text})
    _print(done, f"noted: {_named(done)}", as_json)


@click.command(
    "silence",
    epilog=examples(
        "frd findings silence 5f0c6a2e --for 2h",
        'frd findings silence --node node7 --until 2026-11-21T08:00Z --because "new disk"',
        "frd findings silence --list",
        "frd findings silence --end 3f1c0a99d2e4",
    ),
)
@click.argument("finding", metavar="[ID]", required=False, shell_complete=finding_ids)
@click.option(
    *("--job", "job"),
    metavar="J",
    shell_complete=job_names,
    help="All findings of this job, also later ones.",
)
@click.option("--node", metavar="N", help="Findings whose suspects are all on silenced nodes.")
@click.option(
    *("--for", "--until", "until"),
    metavar="WHEN",
    callback=functools.partial(when, sign=1),
    help="For 30m, 2h, 7d; until a time (UTC).",
)
@click.option("--because", metavar="TEXT", default="", help="Why; shown in the list.")
@click.option("--list", "lists", is_flag=True, help="List what is silenced.")
@click.option("--end", metavar="ID", help="End a silence, by its id or that of its finding.")
@json_option
@service_options
def silence(
    client: Client,
    finding: str | None,
    job: str | None,
    node: str | None,
    until: str | None,
    because: str,
    lists: bool,
    end: str | None,
    as_json: bool,
) -> None:
    """Let messages and alerts of a finding, a job or a node rest for a time.

    What is silenced stays in sight and in the exit code. Of a job or node, before anything opens,
    too.
    """
    if sum(map(bool, (finding, job, node, lists, end))) != 1:
        raise click.UsageError("ID, --job, --node, --list, --end: write one of them")
    if lists:
        answer = client.get(_SILENCES)
        _print(answer, "\n".join(map(_line, answer["silences"])) or "no silences", as_json)
        return
    if end is not None:
        ended = client.delete(f"{_SILENCES}/{quote(end, safe='')}")
        _print(ended, f"ended: {_line(ended)}", as_json)
        return
    if until is None:
        raise click.UsageError("--for / --until: missing")
    body = {"until": until, "because": because}
    if finding is not None:
        done = _say(client, finding, "silence", body)
        _print(done, f"silenced until {done.get('silenced_until')}: {_named(done)}", as_json)
    else:
        whole = {"job": job} if job is not None else {"node": node}
        put = client.post(_SILENCES, {**body, **whole, "by": said_by()})
        _print(put, f"silenced: {_line(put)}", as_json)


@click.command(
    "close",
    epilog=examples('frd findings close 5f0c6a2e91d3b784 --because "checkpoint to a slow disk"'),
)
@ID
@click.option("--because", metavar="TEXT", required=True, help="Why; stored with the finding.")
@json_option
@service_options
def close(client: Client, finding: str, because: str, as_json: bool) -> None:
    """Close an open finding by hand: its alert ends.

    While the incident lasts, its job stays stalled, `frd findings` lists the finding as closed by
    hand, and no other finding opens. If the service has tokens, this needs an operator's token.
    """
    closed = _say(client, finding, "close", {"because": because})
    _print(closed, f"closed {closed['id']}: {plain(closed['summary'])}", as_json)


def said_by() -> str:
    """Who types this: user and host. A service with tokens records the token's name instead."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:_MOST_CHARS]


def _say(client: Client, name: str, what: str, body: dict[str, Any]) -> Any:
    found = find(client, name)
    return client.post(finding_path(found, what), {**body, "by": said_by()})


def _print(answer: Any, text: str, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        click.echo(text)


def _named(finding: Any) -> str:
    return f"{finding['id']}: {plain(finding['headline'])}"


def _line(silence: Any) -> str:
    kind = next(key for key in ("finding", "job", "node") if key in silence)
    why = f": {silence['because']}" if silence["because"] else ""
    who = f"until {silence['until']} by {silence['by']}{why}"
    return plain(f"{silence['id']}  {kind} {silence[kind]}  {who}")
