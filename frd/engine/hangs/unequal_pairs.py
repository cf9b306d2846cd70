"""Sends and receives in flight whose two ends do not agree on sizes or dtypes.

The n-th send in flight on a channel pairs with the n-th receive. A send may complete before its
receive, so that the first ones in flight need not be a pair: nothing is said of a channel if the
numbers in flight at its ends differ, or if the ops just before them do not agree either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from frd.engine.findings import disagreements
from frd.engine.hangs.ops_in_flight import Instance, Waits
from frd.engine.matching.signature_rules import differing, moved
from frd.engine.state.snapshot import ChannelSnapshot


class UnequalPair(NamedTuple):
    """A send and its receive that do not agree."""

    ends: tuple[tuple[int, Instance], ...]
    """The sender and the receiver, each with its channel: the same, or that of any source."""
    words: str


def unequal_pairs(waits: Waits) -> dict[Instance, UnequalPair]:
    """The first of each channel, by the channels of both of its ends."""
    channels, known = waits.snapshot.channels, waits.snapshot.signatures
    found: dict[Instance, UnequalPair] = {}
    for channel, receiving in _in_use(waits):
        receives, sends = waits.ends[receiving][0], waits.ends[channel][1]
        pairs = [
            moved(known[sent], known[received])
            for sent, received in _aligned(channels, sends, receives)
            if sent >= 0 and received >= 0
        ]
        unequal = [at for at, pair in enumerate(pairs) if differing(pair)]
        if unequal and (unequal[0] > 0 or channels.in_flight[sends[0]] > 0):  # not the ops before
            words = disagreements.of_pair(channel.src, channel.dst, *pairs[unequal[0]])
            pair = UnequalPair(((channel.src, channel), (channel.dst, receiving)), words)
            found[channel] = found[receiving] = pair
    return found


def _in_use(waits: Waits) -> Iterator[tuple[Instance, Instance]]:
    """The channels that are in use at both ends, each with that of its receives. A receive from any
    source has a known sender if only one rank sends to it what no other receive takes."""
    in_flight = waits.snapshot.channels.in_flight
    others: defaultdict[Instance, list[Instance]] = defaultdict(list)
    for channel, (receives, sends) in waits.ends.items():
        if receives and sends:
            yield channel, channel
        if sends and in_flight[receives].sum() != in_flight[sends].sum():
            others[channel._replace(src=-1)].append(channel)
    for receiving, (channel, *more) in others.items():
        if receiving in waits.ends and not more and not waits.ends[channel][0]:
            yield channel, receiving


def _aligned(
    channels: ChannelSnapshot, sends: list[int], receives: list[int]
) -> list[tuple[int, int]]:
    """The signatures of the n-th send and the n-th receive, once for each pair of runs, the ops
    before them first; none if it is unknown which they are."""
    n, m = channels.in_flight[sends], channels.in_flight[receives]
    if n.sum() != m.sum() or (n[0] == 0) != (m[0] == 0):
        return []
    ends = n.cumsum(), m.cumsum()
    at = np.union1d(*ends)
    mine, theirs = (
        channels.signature[np.array(rows)[np.searchsorted(end, at)]]
        for rows, end in zip((sends, receives), ends, strict=True)
    )
    return list(zip(mine.tolist(), theirs.tolist(), strict=True))
