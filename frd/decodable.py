"""What must be said of a class before msgspec reads JSON or msgpack into it, and of JSON before
that: how much memory it may take.

msgspec collects the fields of a class when it decodes one for the first time, without a lock: up
to 0.22 at least, two threads that do so at the same time end the process with a segmentation
fault. Here that happens while the module is imported, which one thread does.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

MAX_OBJECT_BYTES: Final = 256 * 1024 * 1024
"""Of the objects of one JSON document, by `is_heavy`: a dump of 100,000 entries."""
_LIGHT_BYTES: Final = 4 * 1024 * 1024
_Form = TypeVar("_Form")


def decodable(form: type[_Form]) -> type[_Form]:
    """A decorator. Use it for the outermost class of a document; a `Decoder` that a module has for
    itself serves as well."""
    msgspec.json.Decoder(form)
    return form


def is_heavy(data: bytes) -> bool:
    """JSON whose objects may take more than `MAX_OBJECT_BYTES`: ``[],`` is three bytes, and seventy
    as a list. Short documents are not counted: they cannot."""
    if len(data) <= _LIGHT_BYTES:
        return False
    objects, lists, values = (data.count(one) for one in (b"{", b"[", b","))
    return 240 * objects + 64 * (lists + values) > MAX_OBJECT_BYTES
