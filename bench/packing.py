"""Size and speed of packed records: what the log of a cell costs the owner and a reader.

Eight ranks of a node in ten groups each, whose messages of entries and of watermarks are recorded
with a tick four times a second. Times have jitter, as real ones do: a collective begins about every
100 µs, takes 30 to 80 µs, and the jitter is normal with 5 µs. One core; MB are 10^6 bytes of
messages as agents sent them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

import numpy as np

from bench.ingest import RANKS, ROWS, Node
from bench.report import show
from frd.cluster.log import Bundle
from frd.cluster.packing import Joiner, frames, pack
from frd.model import AlignedNs, EntryColumns
from frd.store.records import Record, RecordKind
from frd.wire.encode import encode_agent

_ROUNDS: Final = 10
"""Messages of entries of each rank."""
_TICKS: Final = 40
_AGENTS: Final = 64


def entries() -> list[Record]:
    host, dice = Node(0, 8), np.random.default_rng(1)
    found = []
    for number in range(_ROUNDS):
        for rank in range(RANKS):
            batch = jittered(host.entries(rank, number), dice)
            at = AlignedNs(int(batch.created_ns[-1]))
            found.append(Record(RecordKind.MESSAGE, at, 1, encode_agent(batch)))
    return found


def jittered(batch: EntryColumns, dice: np.random.Generator) -> EntryColumns:
    """The same entries with times as real ones have them."""
    created = batch.created_ns + dice.normal(0, 5_000, len(batch)).astype(np.int64)
    took = 30_000 + dice.integers(0, 50_000, len(batch))
    return replace(batch, created_ns=created, completed_ns=created + took)


def watermarks() -> list[Record]:
    hosts = [Node(number, _AGENTS) for number in range(_AGENTS)]
    found = []
    for tick in range(_TICKS):
        for host in hosts:
            data = host.watermarks(tick * 50 + host.number % 3)
            found.append(Record(RecordKind.MESSAGE, AlignedNs(tick), host.number, data))
        found.append(Record(RecordKind.TICK, AlignedNs(tick), 0, b""))
    return found


def measure(name: str, records: Sequence[Record]) -> dict[str, object]:
    size = sum(len(record.payload) for record in records)
    began = time.process_time()
    packed = [data for some in frames(records) for data in pack(some)]
    pack_s = time.process_time() - began
    joiner = Joiner()
    began = time.process_time()
    read = [joiner.add(Bundle(number, 1, data)) for number, data in enumerate(packed)]
    back = [record for frame in read if frame for record in frame.records()]
    unpack_s = time.process_time() - began
    if back != records:
        raise SystemExit(f"{name}: records have changed")
    return {
        f"{name}_mb": round(size / 1e6, 1),
        f"{name}_ratio": round(size / sum(map(len, packed)), 2),
        f"{name}_pack_mb_per_s": round(size / 1e6 / pack_s),
        f"{name}_unpack_mb_per_s": round(size / 1e6 / unpack_s),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    for records in (entries(), watermarks()):
        for some in frames(records[:100]):
            pack(some)  # warm
    result = measure("entries", entries()) | measure("watermarks", watermarks())
    rows = _ROUNDS * RANKS * ROWS
    packed = sum(len(data) for some in frames(entries()) for data in pack(some))
    result["entries_bytes_per_row"] = round(packed / rows, 2)
    show(result, as_json=args.json)


if __name__ == "__main__":
    main()
