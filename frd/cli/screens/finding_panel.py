"""One finding on a screen: headline, effect and what to do now, then suspects, then victims.

Draws the JSON object of the service, `frd replay` and the demo, so it needs no service and computes
nothing. Names, evidence and stack lines come from users' programs: they are never interpreted as
markup, and control characters are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from math import inf
from shutil import get_terminal_size
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from frd.engine.findings.text import collective as collective_text
from frd.forms import REASONS, counted, duration_text, folded, moment, ranks_text
from frd.model import Reason
from frd.usage import plain

MAX_STACK_LINES = 8
MAX_GROUPS = 6
MAX_WORKERS = 3
_ADDRESS = {"pid": "pid", "user": "user", "slurm_job": "Slurm job", "slurm_step": "step"}
_ADDRESS |= {key: key for key in ("namespace", "pod", "container", "log", "command")}


def finding_panel(
    finding: Mapping[str, Any], *, whole: bool = False, is_live: bool = False
) -> RenderableType:
    """One finding; open findings are bold and coloured. `whole`: nothing is cut. `is_live`: it is
    redrawn, which breaks lines at the edge of the window."""
    is_open = finding["state"] == "open" or finding.get("goes_on")
    style = ("yellow" if finding.get("severity") == "warning" else "red") if is_open else "dim"
    title = [finding["kind"], finding["state"], finding.get("severity"), plain(finding["job"])]
    top = [
        Text(" · ".join(filter(None, title)), style=style),
        Text(plain(finding["headline"]), style=f"bold {style}" if is_open else "bold"),
        *([Text(plain(effect))] if (effect := finding.get("effect")) else ()),
        *([Text(people, style="italic")] if (people := _people(finding, whole)) else ()),
        *_do_now(finding, is_live),
    ]
    return Group(*top, Text(), facts_table(_facts(finding, whole)), Text())


def facts_table(facts: Iterable[tuple[str, RenderableType]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in facts:
        table.add_row(label, value)
    return table


def more_text(count: int, noun: str) -> Text:
    return Text(f"… {counted(count, f'more {noun}')}: --json has all of them", style="dim")


def listed(label: str, lines: Sequence[Text], most: int, noun: str) -> Iterator[tuple[str, Text]]:
    """Facts: the first lines, the first one with the label, and how many more there are."""
    for number, line in enumerate(lines[:most]):
        yield label if number == 0 else "", line
    if (more := len(lines) - most) > 0:
        yield "", more_text(more, noun)


def _do_now(finding: Mapping[str, Any], is_live: bool) -> Iterator[Text]:
    """Advice, and each command alone on a line that nothing breaks or cuts, so that it can be
    copied. A picture that is redrawn can have no line that is longer than the window."""
    longest = get_terminal_size().columns if is_live else inf
    for number, step in enumerate(finding.get("do_now", ())):
        yield Text(f"{'' if number else 'do now':8}{plain(step['text'])}")
        if command := step.get("command", ""):
            line = f"{'':10}{plain(command)}"
            fits = cell_len(line) <= longest
            shown = line if fits else f"{'':10}(a long command: see `frd findings ID`)"
            yield Text(shown, style="cyan", no_wrap=True, overflow="ignore")


def close_text(finding: Mapping[str, Any]) -> str:
    """``closed by hand: known pause, goes on``."""
    return plain(finding["close_reason"]) + (", goes on" if finding.get("goes_on") else "")


def _facts(finding: Mapping[str, Any], whole: bool) -> Iterator[tuple[str, RenderableType]]:
    suspects = finding["suspects"]
    known = " ".join((finding["headline"], finding.get("effect", "")))
    for number, (who, alike) in enumerate(folded(suspects)):
        label = "suspects" if len(suspects) > 1 else "suspect"
        first, *_ = alike.values()
        shown = Text(plain(who), style="bold")
        why = _meaning(first["reason"]) if whole else first["reason"]
        shown.append(f": {why}, {first['confidence']} confidence", "not bold")
        for of, suspect in alike.items():
            _append_suspect(shown, of, suspect, whole, known)
        yield label if number == 0 else "", shown
    if any(suspect.get("tied") for suspect in suspects):
        yield "order", Text("not known: the clocks are not exact enough")
    if not suspects:
        why = (
            "too little is known" if finding.get("unknown_ranks") else "no single rank is the cause"
        )
        reason = finding.get("reason", why)
        yield "suspect", Text(f"none: {why if reason == Reason.MEMORY else _meaning(reason)}")
    yield from _held_up(finding, whole)
    if finding.get("dump"):
        yield "dump", Text(f"frd dump --finding {finding['id']} -o DIR")
    if finding.get("ended_by"):
        yield "ended", Text(plain(finding["ended_by"]))
    if finding.get("close_reason"):
        yield "closed", Text(close_text(finding))
    yield "id", Text(f"{finding['id']}, {_when(finding)}")


def _held_up(finding: Mapping[str, Any], whole: bool) -> Iterator[tuple[str, RenderableType]]:
    if finding["victims"]:
        yield "victims", Text(ranks_text(finding["victims"]))
    for label, text in collective_facts(finding):
        if whole or label != "collective" or "effect" not in finding:  # that says the same
            yield label, Text(plain(text))
    if (witness := finding.get("witness")) is not None:
        yield "witness", _witness(witness, whole)
    if opinions := finding.get("second_opinion"):
        yield "2nd opinion", Text("\n".join(map(plain, opinions)))
    held_up = finding.get("groups_held_up", ())
    if len(held_up) > 1:
        yield "holds up", Text(_groups(held_up, len(held_up) if whole else MAX_GROUPS))
    if finding.get("unknown_ranks"):
        yield "unknown", Text(f"{ranks_text(finding['unknown_ranks'])}, whose telemetry is missing")


def _append_suspect(
    text: Text, of: str, suspect: Mapping[str, Any], whole: bool, known: str
) -> None:
    """What is `known` already is left out."""
    words = set(known.replace(",", " ").split())
    evidence = [
        part for part in suspect["evidence"].split("; ") if not words.issuperset(part.split())
    ]
    lines = [of + "; ".join(evidence), _address(suspect.get("address", {}))]
    lines += [one for one in (suspect.get("doing"),) if one and one not in known]
    if whole:
        lines.append(suspect.get("waits_for", {}).get("text"))
    for line in filter(None, lines):
        text.append(f"\n{plain(line)}", style="not bold")
    _append_stack(text, suspect["stack"], whole, suspect.get("inside"))
    workers = suspect.get("workers", ())
    for worker in workers if whole else workers[:MAX_WORKERS]:
        _append_worker(text, worker, whole)
    if not whole and (more := len(workers) - MAX_WORKERS) > 0:
        text.append(f"\n… {more} more child processes: frd findings ID", style="not bold dim")


def _address(address: Mapping[str, Any]) -> str:
    """``pid 13908, user alice, Slurm job 4711, step 0, command python train.py``."""
    return ", ".join(f"{word} {address[key]}" for key, word in _ADDRESS.items() if address.get(key))


def _people(finding: Mapping[str, Any], whole: bool) -> str:
    """``acknowledged by ann, assigned to bob, silenced until .. UTC by ann; cy: a note``."""
    parts = []
    if by := finding.get("acknowledged_by"):
        parts.append(f"acknowledged by {by}")
    if to := finding.get("assigned_to"):
        parts.append(f"assigned to {to}")
    if until := finding.get("silenced_until"):
        by = finding.get("silenced_by", "")
        parts.append(f"silenced until {moment(until)} by {by}")
    notes = finding.get("notes", ())
    shown = [f"{note['by']}: {note['text']}" for note in (notes if whole else notes[-1:])]
    return plain("; ".join([*parts, *shown]))


def _meaning(reason: str) -> str:
    """The phrase for people, then the name that alerts and JSON have."""
    return f"{REASONS[Reason(reason)]} ({reason})" if reason in REASONS else reason


def _append_worker(text: Text, worker: Mapping[str, Any], whole: bool) -> None:
    """An idle worker is one line, unless `whole`."""
    state = ", ".join(filter(None, (worker.get("doing"), worker.get("usage"))))
    head = f"process {worker['pid']}, {worker['name']}" + (f": {state}" if state else "")
    text.append(f"\n{plain(head)}", style="not bold")
    if whole or worker.get("doing") != "waits for work":
        _append_stack(text, worker["stack"], whole, worker.get("inside"))


def _append_stack(text: Text, stack: Sequence[str], whole: bool, inside: str | None = None) -> None:
    """`inside`: the library frame that the first line is in."""
    if inside:
        text.append(f"\n  {plain(inside)}", style="not bold dim cyan")
    most = len(stack) if whole else MAX_STACK_LINES
    for line in stack[:most]:
        text.append(f"\n  {plain(line)}", style="not bold cyan")
    if len(stack) > most:
        text.append(f"\n  … {len(stack) - most} more frames", style="not bold dim")


def _witness(witness: Mapping[str, Any], whole: bool) -> Text:
    """One of the victims, and the line from which it entered the collective."""
    text = Text(f"rank {witness['rank']} waits at ")
    text.append(plain(witness["stack"][0]), style="cyan")
    _append_stack(text, witness["stack"][1:] if whole else (), whole)
    return text


def collective_facts(finding: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The finding's collective, and its ranks as far as suspects and victims do not show them."""
    if (collective := finding.get("collective")) is None:
        return
    suspects = sorted(suspect["rank"] for suspect in finding["suspects"])
    size = f", {collective['group_size']} ranks" if collective["group_size"] else ""
    waiting_s = collective["waiting_s"]
    waited = f", {duration_text(waiting_s)}" if waiting_s >= 0.05 else ""  # dumps have no "now"
    name = collective_text(collective["op"], collective["seq"], collective["group"])
    yield "collective", f"{name}{size}{waited}"
    waiting = [rank for rank in collective["waiting_ranks"] if rank not in suspects]
    if waiting and waiting != finding["victims"]:
        yield "waiting", ranks_text(waiting)
    missing = collective["missing_ranks"]
    if missing and missing not in (suspects, finding.get("unknown_ranks")):
        yield "missing", ranks_text(missing)


def _groups(labels: Sequence[str], most: int) -> str:
    shown = ", ".join(plain(label) for label in labels[:most])
    more = len(labels) - most
    return f"{shown} and {counted(more, 'more group')}" if more > 0 else shown


def _when(finding: Mapping[str, Any]) -> str:
    """``opened 2026-11-20 10:00:00 UTC, critical after 1 min, closed after 2 h 5 min``."""
    opened = datetime.fromisoformat(finding["opened_at"])
    text = f"opened {moment(finding['opened_at'])}"
    for key, word in (("critical_at", "critical"), ("closed_at", "closed")):
        if finding.get(key):
            after_s = (datetime.fromisoformat(finding[key]) - opened).total_seconds()
            text += f", {word} after {duration_text(after_s)}"
    return text
