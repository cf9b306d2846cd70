"""What one poll of a rank costs the agent: processor time to parse and apply a recorder's dump.

A scripted recorder of 2,000 Gloo entries, in the JSON form of torch. Each poll finds some new
entries (`new_entries`); the median over all polls but the first ones counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # `bench` is not installed

from bench.report import show
from frd.flight.decode import parse_answer
from frd.model import AttemptKey
from frd_agent.ranks.tap_files import TapGroup
from frd_agent.recorder.naming import Naming
from frd_agent.recorder.transitions import RecorderTracker
from frd_agent.uplink.dictionary import Dictionary

_BUFFER = 2_000
_RANKS = 8
_BEGAN_NS = 1_700_000_000_000_000_000
_STEP_NS = 1_000_000
_WARM_UP = 3
"""Polls that do not count: the first one finds all entries new."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--polls", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = {
        f"new_entries_{new}": _measure(new, _WARM_UP + options.polls) for new in (20, _BUFFER)
    }
    show(result, as_json=options.json)


def _measure(new: int, polls: int) -> dict[str, float]:
    dictionary = Dictionary()
    naming = Naming(dictionary, dictionary.attempt(AttemptKey("job", 0), _RANKS))
    naming.replace([TapGroup("0", tuple(range(_RANKS)), "default_pg")])
    tracker = RecorderTracker()
    parse_ms, apply_ms = [], []
    for poll in range(polls):
        data = _dump(poll * new)
        at_ns = _BEGAN_NS + (poll * new + _BUFFER) * _STEP_NS
        begin = time.process_time_ns()
        dump = parse_answer(data, source="bench", known=tracker.known)
        parsed = time.process_time_ns()
        rows = tracker.apply(dump, at_ns, naming).rows
        applied = time.process_time_ns()
        assert len(rows) == (new if poll else _BUFFER)
        if poll >= _WARM_UP:
            parse_ms.append((parsed - begin) / 1e6)
            apply_ms.append((applied - parsed) / 1e6)
    return {
        "parse_ms": round(statistics.median(parse_ms), 2),
        "apply_ms": round(statistics.median(apply_ms), 2),
    }


def _dump(first: int) -> bytes:
    """The buffer when entry `first` is its oldest; keys sorted by name, as torch writes them."""
    end = first + _BUFFER
    counters = dict.fromkeys(
        ("last_enqueued_collective", "last_started_collective", "last_completed_collective"), end
    )
    entries = [_entry(number) for number in range(first, end)]
    document = {"version": "2.10", "entries": entries, "pg_status": {"0": counters}}
    return json.dumps(document, sort_keys=True).encode()


def _entry(number: int) -> dict[str, object]:
    return {
        "frames": [],
        "record_id": number,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number + 1,
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": "gloo:all_reduce",
        "time_created_ns": _BEGAN_NS + number * _STEP_NS,
        "input_sizes": [[1024]],
        "input_dtypes": ["Float"],
        "output_sizes": [[1024]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": 0,
        "time_discovered_completed_ns": 0,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }


if __name__ == "__main__":
    main()
