"""Sends and receives in flight whose two ends do not agree on sizes or dtypes.

The n-th send in flight on a channel pairs with the n-th receive. A send may complete before its
receive, so that the first ones in flight need not be a pair: nothing is said of a channel if the
numbers in flight at its ends differ, or if the ops just before them do not agree either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from frd.engine.findings import disagreements
from frd.engine.hangs.ops_in_flight import Flow, Instance, Waits, any_source, opposite
from frd.engine.matching.signature_rules import differing, moved

_Runs: TypeAlias = list[tuple[int, int]]
"""Signature and number of ops of one end of a channel, in order of posting."""


class UnequalPair(NamedTuple):
    """A send and its receive that do not agree."""

    ends: tuple[tuple[int, Instance], ...]
    """The sender and the receiver, each with its channel: the same, or that of any source."""
    words: str


def unequal_pairs(waits: Waits) -> dict[Instance, UnequalPair]:
    """The first of each channel, by the channels of both of its ends."""
    channels, known = waits.snapshot.channels, waits.snapshot.signatures
    runs: defaultdict[Flow, _Runs] = defaultdict(list)
    columns = channels.signature.tolist(), channels.in_flight.tolist()
    for flow, signature, count in zip(waits.flows, *columns, strict=True):
        runs[flow].append((signature, count))
    found: dict[Instance, UnequalPair] = {}
    for send, recv in _ends(runs):
        pairs = [
            moved(known[sent], known[received])
            for sent, received in _aligned(runs[send], runs[recv])
            if sent >= 0 and received >= 0
        ]
        unequal = [at for at, pair in enumerate(pairs) if differing(pair)]
        if unequal and (unequal[0] > 0 or runs[send][0][1] > 0):  # not the ops before
            src, dst = send[0][2:]
            words = disagreements.of_pair(src, dst, *pairs[unequal[0]])
            pair = UnequalPair(((src, send[0]), (dst, recv[0])), words)
            found[send[0]] = found[recv[0]] = pair
    return found


def _ends(runs: Mapping[Flow, _Runs]) -> Iterator[tuple[Flow, Flow]]:
    """Both ends of all channels that are in use at both. A receive from any source has a known
    sender if only one rank sends to it what no other receive takes."""
    others: defaultdict[Flow, list[Flow]] = defaultdict(list)
    for flow in runs:
        if flow[1] and opposite(flow) in runs:
            yield flow, opposite(flow)
        if flow[1] and _total(runs[flow]) != _total(runs.get(opposite(flow), [])):
            others[any_source(flow)].append(flow)
    for recv, sends in others.items():
        if recv in runs and len(sends) == 1 and opposite(sends[0]) not in runs:
            yield sends[0], recv


def _aligned(sends: _Runs, receives: _Runs) -> list[tuple[int, int]]:
    """The signatures of the n-th send and the n-th receive, once for each pair of runs, the ops
    before them first; none if it is unknown which they are."""
    (sent, n), (received, m) = (np.array(runs).T for runs in (sends, receives))
    ends = n.cumsum(), m.cumsum()
    if ends[0][-1] != ends[1][-1] or (n[0] == 0) != (m[0] == 0):
        return []
    at = np.union1d(*ends)
    mine, theirs = (np.searchsorted(end, at) for end in ends)
    return list(zip(sent[mine].tolist(), received[theirs].tolist(), strict=True))


def _total(runs: _Runs) -> int:
    return sum(count for _, count in runs)
