"""What must be said of a class before msgspec reads JSON or msgpack into it.

msgspec collects the fields of a class when it decodes one for the first time, without a lock: up
to 0.22 at least, two threads that do so at the same time end the process with a segmentation
fault. Here that happens while the module is imported, which one thread does.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

_Form = TypeVar("_Form")


def decodable(form: type[_Form]) -> type[_Form]:
    """A decorator. Use it for the outermost class of a document; a `Decoder` that a module has for
    itself serves as well."""
    msgspec.json.Decoder(form)
    return form
