"""What the agent says about a service that it cannot reach."""

from __future__ import annotations

import pytest

from frd_agent.uplink.endpoint import advice

FAILED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9373: "


@pytest.mark.parametrize(
    ("details", "said"),
    [
        (FAILED + "Failed to connect to remote host: Connection refused", "is `frd serve` running"),
        (FAILED + "Failed to connect to remote host: Timeout", "may this node reach it?"),
        (
            FAILED + "Trying to connect an http1.x server (HTTP status 404)",
            "name the address of `frd serve --grpc`",
        ),
        ("Received http2 header with status: 404", "name the address of `frd serve --grpc`"),
        (FAILED + "Tls handshake failed: SSL_ERROR_SSL: WRONG_VERSION_NUMBER", "tls_ca_file"),
        ("errors resolving nosuch:1: [lookup error]", "check --service"),
        ("Cancelling all calls", "the service ends"),
        ("Socket closed", "Socket closed: is `frd serve` running there"),
    ],
)
def test_what_to_do(details: str, said: str) -> None:
    """gRPC's own words become what a person can do, without the list of addresses."""
    assert said in advice(details)
    assert "failed to connect to all addresses" not in advice(details)
