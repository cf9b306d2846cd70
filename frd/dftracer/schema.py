"""The keys of a trace line that columns need, as structs that msgspec decodes.

Numbers may be strings, and names take the place of hashes, as in v0.
"""

from __future__ import annotations

from typing import Final

import msgspec

from frd.dftracer.line import MAX_INT

NO_DURATION: Final = MAX_INT


class Args(msgspec.Struct, gc=False):
    fhash: str | int = ""
    fname: str = ""
    ret: int | float | str | None = None
    size: int | float | str | None = None
    epoch: int | float | str | None = None
    step: int | float | str | None = None


class Line(msgspec.Struct, gc=False):
    ph: int | str
    name: str
    cat: str
    pid: int = 0
    tid: int = 0
    ts: int = 0
    dur: int = NO_DURATION
    args: Args = msgspec.field(default_factory=Args)


LINES: Final[msgspec.json.Decoder[Line]] = msgspec.json.Decoder(Line, strict=False)
