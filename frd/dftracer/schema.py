"""The keys of a trace line that columns need, as structs that msgspec decodes.

The strict schema is that of v1 and later, the lax one that of v0 as well: numbers as strings, and
names in place of hashes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from frd.dftracer.line import MAX_INT

NO_DURATION: Final = MAX_INT


class Args(msgspec.Struct, gc=False):
    fhash: str | int = ""
    ret: int | float | str | None = None
    size: int | float | str | None = None
    epoch: int | float | str | None = None
    step: int | float | str | None = None


class LaxArgs(Args, gc=False):
    fname: str = ""


class Line(msgspec.Struct, gc=False):
    ph: int | str
    name: str
    cat: str
    pid: int = 0
    tid: int = 0
    ts: int = 0
    dur: int = NO_DURATION
    args: Args = msgspec.field(default_factory=Args)


class LaxLine(Line, gc=False):
    args: LaxArgs = msgspec.field(default_factory=LaxArgs)


STRICT: Final[msgspec.json.Decoder[Line]] = msgspec.json.Decoder(Line)
LAX: Final[msgspec.json.Decoder[LaxLine]] = msgspec.json.Decoder(LaxLine, strict=False)
