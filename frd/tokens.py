"""What of a file is the token: its first word. Who reads the file says what is wrong with it."""

from __future__ import annotations


def token_in(data: bytes) -> str:
    """The first word, behind which a service's own file keeps what the token may do.

    Empty when there is none, or none that a header can carry.
    """
    words = data.split(maxsplit=1)
    word = words[0].decode("ascii", "replace") if words else ""
    return word if word.isascii() and word.isprintable() else ""
