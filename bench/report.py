"""Output of a bench: one JSON object for programs, or a line per figure for people."""

from __future__ import annotations

import json
from collections.abc import Mapping


def show(result: Mapping[str, object], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:24} {value}")
