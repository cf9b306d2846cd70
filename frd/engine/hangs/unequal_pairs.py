"""Sends and receives in flight whose two ends do not agree on sizes or dtypes.

The n-th send that was ever posted on a channel pairs with the n-th receive. A send may complete
before its receive, so that the first ones in flight need not be a pair: nothing is said of ops of
which it is unknown how many came before them. A receive from any source has a known sender only if
both are the first on their channels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from frd.engine.findings import disagreements
from frd.engine.hangs.ops_in_flight import Instance, Waits
from frd.engine.matching.signature_rules import differing, moved

Run: TypeAlias = tuple[int, int, int]
"""The number of the first op, how many there are, their signature."""


class UnequalPair(NamedTuple):
    """A send and its receive that do not agree."""

    ends: tuple[tuple[int, Instance], ...]
    """The sender and the receiver, each with its channel: the same, or that of any source."""
    words: str


def unequal_pairs(waits: Waits) -> dict[Instance, UnequalPair]:
    """The first of each channel, by the channels of both of its ends."""
    channels, known = waits.snapshot.channels, waits.snapshot.signatures
    columns = (channels.posted, channels.in_flight, channels.signature)
    runs: list[Run] = list(zip(*(column.tolist() for column in columns), strict=True))
    found: dict[Instance, UnequalPair] = {}
    for channel, receiving in _in_use(waits):
        receives, sends = waits.ends[receiving][0], waits.ends[channel][1]
        aligned = [
            moved(known[sent], known[received])
            for sent, received in dict.fromkeys(_aligned(runs, sends, receives))
            if sent >= 0 and received >= 0
        ]
        if (one := next((pair for pair in aligned if differing(pair)), None)) is not None:
            words = disagreements.of_pair(channel.src, channel.dst, *one)
            pair = UnequalPair(((channel.src, channel), (channel.dst, receiving)), words)
            found[channel] = found[receiving] = pair
    return found


def _in_use(waits: Waits) -> Iterator[tuple[Instance, Instance]]:
    """The channels that are in use at both ends, each with that of its receives. A receive from any
    source has a known sender if only one rank sends to it what no other receive takes."""
    channels = waits.snapshot.channels
    in_flight = channels.in_flight
    others: defaultdict[Instance, list[Instance]] = defaultdict(list)
    for channel, (receives, sends) in waits.ends.items():
        if receives and sends:
            yield channel, channel
        if sends and in_flight[receives].sum() != in_flight[sends].sum():
            others[channel._replace(src=-1)].append(channel)
    for receiving, (channel, *more) in others.items():
        if receiving in waits.ends and not more and not waits.ends[channel][0]:
            rows = [*waits.ends[receiving][0], *waits.ends[channel][1]]
            if not channels.posted[rows].any() and (in_flight[rows] == 1).all():
                yield channel, receiving


def _aligned(runs: list[Run], sends: list[int], receives: list[int]) -> Iterator[tuple[int, int]]:
    """The signatures of each send and receive that have the same number on their channel, once for
    each pair of runs, in order of posting."""
    i = j = 0
    while i < len(sends) and j < len(receives):
        (first, n, sent), (begin, m, received) = runs[sends[i]], runs[receives[j]]
        if min(first, begin) >= 0 and max(first, begin) < min(first + n, begin + m):
            yield sent, received
        is_last = first + n <= begin + m
        i, j = i + is_last, j + (not is_last)
