"""Records that are no JSON, because DFTracer writes strings without escaping them.

A quote or a backslash in a text, such as ``"note":"a"c"``, breaks the line, but not what frd needs
of it: all fields up to ``args`` have a fixed order and form. The fields of ``args`` are separated
at commas, as `frd.dftracer.scan` does it, and those whose value is JSON are kept. So the same line
means the same whether it is read by the fast way or by this one, and is not counted as broken.
A line that was cut or has lost bytes before ``args`` is not read here.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, Final

import msgspec

_HEAD: Final = re.compile(
    rb'\{(?:"id":[^,]*,)?"name":"([^"\\]*)","cat":"([^"\\]*)",(?:"type":[^,]*,)?'
    rb'"pid":"?(\d{1,20})"?,"tid":"?(\d{1,20})"?,'
    rb'(?:"ts":"?(\d{1,20})"?,)?(?:"dur":"?(\d{1,20})"?,)?"ph":(?:"([A-Z])"|(\d)),'
    rb'"args":\{(.*)\}\}',
    re.DOTALL,
)
_FIELD: Final = re.compile(rb'"(\w{1,64})":(.*)', re.DOTALL)
_PATH: Final = re.compile(rb'(?:.*,)?"(name|fname)":"(.*?)"(?:,"\w+":.*)?', re.DOTALL)
"""In a definition (`name`) or in a call of v0 (`fname`): up to the next field or the end."""
_LONGEST: Final = 1 << 14
"""The buffer of DFTracer for a line."""


def document_of(line: bytes) -> dict[str, Any] | None:
    """The record of a whole line that is no JSON; None if its head is not as usual."""
    if (found := _HEAD.fullmatch(line)) is None:
        return None
    name, cat, *numbers, letter, digit, args = found.groups()
    document: dict[str, Any] = {
        key: int(number)
        for key, number in zip(("pid", "tid", "ts", "dur"), numbers, strict=True)
        if number is not None
    }
    document |= {"name": name.decode("utf-8", "replace"), "cat": cat.decode("utf-8", "replace")}
    document["ph"] = letter.decode() if letter else int(digit)
    document["args"] = _arguments(args)
    return document


def _arguments(text: bytes) -> dict[str, Any]:
    """What can be read. Behind a brace, fields may be those of a nested object."""
    args: dict[str, Any] = {}
    flat, brace, _ = text.partition(b"{")
    fields = flat.split(b",")
    for field in fields[:-1] if brace else fields:
        if (found := _FIELD.fullmatch(field)) is None:
            continue
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            args[found[1].decode()] = msgspec.json.decode(found[2])
    if len(text) <= _LONGEST and (path := _PATH.fullmatch(text)) is not None:
        args.setdefault(path[1].decode(), path[2].decode("utf-8", "replace"))
    return args
