"""The token in a file, as agents and commands read it."""

from __future__ import annotations

import pytest

from frd.credentials import token_in


@pytest.mark.parametrize(
    ("data", "token"),
    [
        (b"secret-of-32-characters\n", "secret-of-32-characters"),
        (b"  secret role=agent job=train\nother\n", "secret"),
        ("secret  # für uns".encode(), "secret"),
        (b"", ""),
        (b" \n\t\n", ""),
        ("geheimnüs".encode(), ""),
        (b"bell\x07", ""),
        (b"\xff\xfe", ""),
    ],
)
def test_the_first_word_that_a_header_can_carry(data: bytes, token: str) -> None:
    """The text after the token is for the service; a word that no header can carry is no token."""
    assert token_in(data) == token
