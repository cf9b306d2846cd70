"""The frozen data on disk, and the comparison of a case with it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.frozen.verdicts import Json, as_json

FOLDER: Final = Path(__file__).parent
_SHOWN: Final = 60
ADVICE: Final = (
    "A verdict has changed. If that is intended, run `python -m tests.frozen --write` and explain\n"
    "in the commit message which verdicts change and why the new ones are right."
)


def read(source: str) -> dict[str, Json]:
    """The frozen values of a source by case."""
    lines = (FOLDER / f"{source}.jsonl").read_text("utf-8").splitlines()
    cases = [json.loads(line) for line in lines]
    return {case.pop("case"): case for case in cases}


def write(source: str, cases: Mapping[str, Json]) -> None:
    lines = [as_json({"case": name, **value}) + "\n" for name, value in cases.items()]
    (FOLDER / f"{source}.jsonl").write_text("".join(lines), "utf-8")


def difference(source: str, case: str, frozen: Json | None, now: Json) -> str:
    """What differs, for people; empty if nothing does."""
    now = json.loads(as_json(now))
    if frozen == now:
        return ""
    lines = difflib.unified_diff(
        _lines(frozen or {}), _lines(now), f"{source} {case}, frozen", f"{source} {case}, now",
        lineterm="",
    )  # fmt: skip
    shown = list(lines)
    if len(shown) > _SHOWN:
        shown[_SHOWN:] = [f"... {len(shown) - _SHOWN} more lines"]
    return "\n".join(shown)


def _lines(value: Json) -> list[str]:
    """A line for each field; findings and events one field a line, too."""
    lines: list[str] = []
    for name, field in sorted(value.items()):
        if not isinstance(field, list) or not all(isinstance(one, dict) for one in field):
            lines.append(f"{name}: {json.dumps(field)}")
            continue
        for number, one in enumerate(field):
            lines.append(f"{name}[{number}]")
            lines += (f"  {key}: {json.dumps(one[key])}" for key in sorted(one))
    return lines
