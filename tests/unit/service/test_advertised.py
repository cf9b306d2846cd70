"""Addresses that a replica advertises and that other machines cannot reach."""

from __future__ import annotations

from frd.service.app import advertised_in_vain

HERE = {"grpc": "127.0.0.1:9373", "http": "frd-0:9374"}


def test_loopback_among_other_machines() -> None:
    """The NATS servers are on other machines, so other replicas may be, too: one warning names the
    address that only this machine can reach."""
    servers = ["nats://localhost:4222", "tls://nats-1.example:4222"]
    assert list(advertised_in_vain(servers, **HERE)) == [
        "cluster.advertise_grpc: 127.0.0.1:9373: other machines cannot reach this replica there: "
        "name its address, or listen on 0.0.0.0 (grpc)"
    ]


def test_a_cluster_on_one_machine() -> None:
    """All NATS servers are on this machine: loopback is what the replicas need."""
    assert not list(advertised_in_vain(["nats://127.0.0.1:4222", "nats://[::1]:4223"], **HERE))
