"""Where verdicts come from: simulated lives, the corpus of hangs, recorded stacks, real incidents.

A source is a list of cases by name; a case gives JSON values and depends on nothing but its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import frd
from frd.flight.stacks.places import activity_of
from frd.model import Activity
from frd.offline.analysis.analyze import Analysis, analyze
from tests import corpus
from tests.frozen.verdicts import Json, history, verdict
from tests.sim.run import live
from tests.stacks import FOLDER as STACKS
from tests.world.clocks import EPOCH
from tests.world.traces import T0

TRACES: Final = Path(__file__).parents[3] / "shared" / "traces"
INCIDENTS: Final = ("gpu_error_2nd", "lock_gil_1st")
"""Real 16-rank NCCL jobs; their dumps lie next to the checkout on some machines only."""
LARGE: Final = {7: 1_024, 107: 1_024, 207: 512, 307: 512, 407: 256, 507: 256, 607: 128, 707: 128}
"""World size by seed of the corpus, where it is not drawn."""
ASKED: Final = [seed for seed in range(201) if seed not in (118,)]
"""Most of these have waits that no recorder shows. The others break a promise, see `MISSED`."""
_EPOCH_OF_INCIDENTS: Final = 1_700_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class Source:
    """`quick`: so many cases are compared by `make test`, all of them by `make sim`."""

    name: str
    cases: Mapping[str, Callable[[], Json]]
    quick: int


def lives() -> Source:
    """What the service publishes in a simulated life, from the first finding to the last."""
    return Source("lives", {str(seed): partial(_life, seed) for seed in range(300)}, 10)


def _life(seed: int) -> Json:
    return {"events": history(live(seed, ends=False).published, EPOCH)}


def asked() -> Source:
    """The same with agents that are asked for stacks, dumps, and what ranks are blocked in."""
    return Source("asked", {str(seed): partial(_asked_life, seed) for seed in ASKED}, 5)


def _asked_life(seed: int) -> Json:
    published = live(seed, ends=False, asks=True).published
    return {"events": history(published, EPOCH, answers=True)}


def hangs() -> Source:
    """What `analyze` says of the dumps of a generated hang."""
    return Source("corpus", {str(seed): partial(_hang, seed) for seed in range(1_000)}, 100)


def _hang(seed: int) -> Json:
    job = corpus.job(seed, LARGE.get(seed))
    corpus.run(job)
    return _analysis(analyze(corpus.trace(job)), T0)


def _analysis(said: Analysis, since_ns: int) -> Json:
    return {
        "fault": said.fault,
        "findings": [verdict(finding, since_ns) for finding in said.findings],
        "not_proven": len(said.not_proven),
        "matched": sum(group.matched for group in said.groups),
        "open": sum(group.open for group in said.groups),
        "mismatched": sum(group.mismatched for group in said.groups),
        "resets": sum(rank.resets for rank in said.ranks.values()),
    }


def incidents() -> Source:
    """What `frd.load` says of real dumps."""
    there = [name for name in INCIDENTS if (TRACES / name).is_dir()]
    return Source("incidents", {name: partial(_incident, name) for name in there}, len(there))


def _incident(name: str) -> Json:
    return _analysis(frd.load(TRACES / name), _EPOCH_OF_INCIDENTS)


def stacks() -> Source:
    """What a recorded stack text says of the place in which a rank stands."""
    files = sorted(STACKS.glob("*.txt"))
    return Source("stacks", {file.stem: partial(_place, file) for file in files}, len(files))


def _place(file: Path) -> Json:
    activity = activity_of(file.read_text("utf-8"))
    return {**_frames(activity), "workers": [[w.pid, w.name, *w.stack] for w in activity.workers]}


def _frames(activity: Activity) -> Json:
    known = bool(activity.doing)
    return {"stack": list(activity.stack), "inside": activity.inside, "known": known}


def sources() -> Iterable[Source]:
    return lives(), asked(), hangs(), incidents(), stacks()
