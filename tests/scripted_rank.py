"""Scripted ranks that keep moving, to measure an agent:

python -m tests.scripted_rank --run-dir DIR --ranks 8 --rate 200
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tests.world.apart import ApartRank
from tests.world.played_rank import PlayedRank


def main() -> None:
    parser = argparse.ArgumentParser(description="scripted ranks that keep moving")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rate", type=float, default=200.0, help="collectives a second, each")
    args = parser.parse_args()
    kind = PlayedRank if args.ranks == 1 else ApartRank
    ranks = [kind(args.run_dir, i, args.ranks) for i in range(args.ranks)]
    began = time.monotonic()
    published = 0
    while True:
        time.sleep(0.05)
        due = int((time.monotonic() - began) * args.rate)
        for rank in ranks:
            while rank.seq < due:
                rank.enter()
                rank.leave()
        if time.monotonic() - began > published:
            published += 1
            for rank in ranks:
                rank.publish()


if __name__ == "__main__":
    main()
