"""HOST:PORT in, host and port out, and back."""

from __future__ import annotations

import pytest

from frd.address import join_address, split_address
from frd.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("127.0.0.1:9374", ("127.0.0.1", 9374)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
    ],
)
def test_an_address_is_split_and_joined(text: str, where: tuple[str, int]) -> None:
    """Splitting and joining are inverse."""
    assert split_address(text) == where
    assert join_address(*where) == text


@pytest.mark.parametrize(
    "text",
    ["", "9374", ":9374", "host", "host:", "host:-1", "host:65536", "::1:9374", "h:٣", "[]:1"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """The message repeats what was written."""
    with pytest.raises(ConfigError, match=r"^address: "):
        split_address(text)
