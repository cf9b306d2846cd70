"""What one evaluation of a large, stalled job costs the engine: processor time of `Engine.advance`.

A job of `--ranks` in tensor groups of 8, data groups of 128 and one group of all. One rank never
joins its data group; its 127 peers wait there, and all others in the group of all. Three variants:
only that (`missing`), no agent of half the ranks reports any more (`half_silent`), and all joined
and none completes (`no_rank`). `idle` is the same job while it waits for less than the threshold.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

from bench.report import show
from frd.engine.attempt import Attempt
from frd.engine.engine import Engine
from frd.engine.policy import Policy
from frd.model import AlignedNs, AttemptKey, GroupInfo
from tests.world import observe

_SECOND = 1_000_000_000
_BEGAN_NS = 1_700_000_000 * _SECOND
_TENSOR, _DATA = 8, 128
_WAITED_S = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=16_384)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = {
        name: _measure(name, options.ranks, options.rounds)
        for name in ("idle", "missing", "half_silent", "no_rank")
    }
    show({"ranks": options.ranks, **result}, as_json=options.json)


def _measure(name: str, world: int, rounds: int) -> dict[str, float]:
    engine = Engine(Policy())
    now = AlignedNs(_BEGAN_NS)
    attempt = engine.attempt(AttemptKey("job", 0), world, now)
    ranks = range(world)
    for rank in ranks:
        engine.rank(attempt, observe.rank_info(rank, world, per_node=8), now)
    attempt.connection(ranks, True)
    tensor = [tuple(range(at, at + _TENSOR)) for at in range(0, world, _TENSOR)]
    data = [tuple(range(at, world, world // _DATA)) for at in range(world // _DATA)]
    groups = [
        attempt.group(GroupInfo(f"{label}{number}", label, members))
        for label, all_of in (("all", [tuple(ranks)]), ("tp", tensor), ("dp", data))
        for number, members in enumerate(all_of)
    ]
    missing = data[1][5] if name != "no_rank" else -1
    for group in groups:
        _report(attempt, group, groups, missing, data[1])
    spent = []
    for number in range(rounds):
        at = AlignedNs(now + (1 if name == "idle" else _WAITED_S + 3 * number) * _SECOND)
        seen = [*ranks] if name != "half_silent" else [*range(world // 2)]
        observe.watermarks(attempt, [], seen, at)
        began = time.process_time()
        engine.advance(at)
        spent.append(1e3 * (time.process_time() - began))
    findings = [f.summary for f in engine.status_view(at).findings]
    assert bool(findings) is (name != "idle"), findings
    return {"median_ms": round(statistics.median(spent), 2), "max_ms": round(max(spent), 2)}


def _report(
    attempt: Attempt, group: int, groups: Sequence[int], missing: int, stuck: tuple[int, ...]
) -> None:
    """Everything up to seq 9 is over; then the members of `stuck` are in their data group, and all
    others in the group of all."""
    label, now = attempt.tables.groups.infos[group].label, AlignedNs(_BEGAN_NS)
    members = attempt.tables.groups.infos[group].ranks
    rows = []
    for rank in members:
        joins = rank != missing and (
            label == "dp"
            if rank in stuck and missing >= 0 and members == stuck
            else label == "all" and (rank not in stuck or missing < 0)
        )
        rows.append(
            (attempt.pair(rank, group), 10 if joins else 9, -1, 9, _BEGAN_NS if joins else 0)
        )
    observe.watermarks(attempt, rows, [*members], now)


if __name__ == "__main__":
    main()
