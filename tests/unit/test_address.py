"""HOST:PORT in, host and port out, and back."""

from __future__ import annotations

import pytest

from frd.address import join_address, split_address, without_scheme
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9374", ("127.0.0.1:9374", "")),
        ("http://host:9374", ("host:9374", "http")),
        (" http://host:9374/ ", ("host:9374", "http")),
        ("HTTPS://host", ("host:9373", "https")),
        ("http://[::1]", ("[::1]:9373", "http")),
        ("http://[::1]:80/", ("[::1]:80", "http")),
    ],
)
def test_a_url_is_an_address_with_a_scheme(text: str, expected: tuple[str, str]) -> None:
    """What a browser shows is taken for what it means."""
    assert without_scheme(text, 9373) == expected


@pytest.mark.parametrize(
    "text", ["ftp://host:1", "http://", "http:///", "http://host:1/metrics", "http://u@host:1"]
)
def test_a_url_that_is_more_than_an_address_is_refused(text: str) -> None:
    """The message says what to write instead."""
    with pytest.raises(ConfigError, match=r"^address: .*: write HOST:PORT$"):
        without_scheme(text, 9373)
