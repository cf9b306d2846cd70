"""One finding as Markdown, for a ticket or a chat: what `frd report` prints and the page copies.

Names, evidence and stacks come from users' programs: they are in code spans and fences that are
longer than any in them, or their marks are escaped, so that they cannot become markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from frd.engine.findings.text import clean
from frd.forms import REASONS, moment, ranks_text
from frd.model import Reason

_MARKS: Final = re.compile(r"([\\`*_\[\]<>#|~&])")
"""Marks of lists count at the begin of a line only, where no text of a job is."""


def report(finding: Mapping[str, Any], page: str) -> str:
    """`finding` is that of `shown_json`; `page`: address of its page, or empty. Times are UTC."""
    return "\n".join(_lines(finding, page)) + "\n"


def _lines(finding: Mapping[str, Any], page: str) -> Iterator[str]:
    yield f"# {_text(finding['headline'])}"
    yield ""
    if effect := finding.get("effect"):
        yield f"- effect: {_text(effect)}"
    facts = (finding["kind"], finding.get("severity"), finding["state"])
    yield f"- {' · '.join(filter(None, facts))}, job {_code(finding['job'])}"
    yield f"- finding {_code(finding['id'])}" + (f": <{page}>" if page else "")
    if victims := finding["victims"]:
        yield f"- victims: {ranks_text(victims)}"
    yield from ("", "## Do now", "")
    for number, step in enumerate(finding.get("do_now", ()), 1):
        yield f"{number}. {_text(step['text'])}"
        if "command" in step:
            yield from ("", *_fenced([step["command"]], "   ", "sh"), "")
    for suspect in finding["suspects"]:
        yield from _suspect(suspect)
    yield from ("", "## History", "")
    yield from sorted(_history(finding))


def _suspect(suspect: Mapping[str, Any]) -> Iterator[str]:
    node = f" on {_text(suspect['node'])}" if suspect["node"] else ""
    yield from ("", f"## Rank {suspect['rank']}{node}", "")
    reason = Reason(suspect["reason"])
    yield f"- {REASONS[reason]} ({reason}), {suspect['confidence']} confidence"
    yield f"- evidence: {_text(suspect['evidence'])}"
    if waits := suspect.get("waits_for", {}).get("text"):
        yield f"- wait: {_text(waits)}"
    for name, value in suspect.get("address", {}).items():
        yield f"- {name.replace('_', ' ')}: {_code(str(value))}"
    if suspect["stack"]:
        yield from ("", *_fenced(suspect["stack"], ""))


def _history(finding: Mapping[str, Any]) -> Iterator[str]:
    """Lines that begin with their time."""
    for key, words in (
        ("opened_at", "opened"),
        ("critical_at", "became critical"),
        ("acknowledged_at", f"acknowledged by {_text(finding.get('acknowledged_by', ''))}"),
        ("closed_at", f"closed: {_text(finding.get('close_reason', ''))}"),
    ):
        if at := finding.get(key):
            yield f"- {moment(at)}: {words}"
    for note in finding.get("notes", ()):
        yield f"- {moment(note['written_at'])}: {_text(note['by'])}: {_text(note['text'])}"
    for key, words in (("assigned_to", "assigned to"), ("ended_by", "the job:")):
        if value := finding.get(key):
            yield f"- {words} {_text(value)}"


def _line(text: str) -> str:
    return clean(text, len(text))


def _text(text: str) -> str:
    return _MARKS.sub(r"\\\1", _line(text))


def _code(text: str) -> str:
    tick = "`" * (_longest_ticks(text) + 1)
    return f"{tick} {_line(text)} {tick}" if "`" in text else f"`{_line(text)}`"


def _fenced(lines: list[str], indent: str, language: str = "") -> Iterator[str]:
    fence = "`" * max(3, _longest_ticks("\n".join(lines)) + 1)
    yield f"{indent}{fence}{language}"
    yield from (f"{indent}{_line(line)}" for line in lines)
    yield f"{indent}{fence}"


def _longest_ticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
