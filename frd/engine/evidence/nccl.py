"""What NCCL counts, against the ranks that frd knows: a report of RAS in sentences. Pure.

RAS knows no group of PyTorch. A communicator is that of a group if it has as many ranks and their
processes are those of the group: rank i is then the group's i-th member. Process ids repeat on
other hosts, and which host of RAS is which node of the job is not known. So nothing is said of a
group in which two ranks have the same process id, as in containers with one rank each: a
communicator of another group looks the same. If several with different processes fit, it is not
known which is the group's, and ranks keep the numbers that they have in NCCL.

While a job moves, counts differ for a moment. In a hang they are final, but an op that was launched
may still wait for its turn on the device, so nothing here is a verdict. RAS counts some collectives
only, and no sends, receives and all_to_all: counts that are all 0 show nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from frd.engine.findings import text
from frd.wire.waits import Communicator, Member, MemberState, RasReport

MAX_LINES: Final = 8
_BEGIN: Final = "NCCL RAS: "
_MOST_COUNTS: Final = 3
"""Other counts of one op that are listed one by one."""
_MOST_HASHES: Final = 3
_IN_PROGRESS: Final = 7
_CODES: Final = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote error",
}
"""Result codes of NCCL."""
_UNHEARD: Final = {
    MemberState.DEAD: ("is", "are", "considered dead"),
    MemberState.UNRESPONSIVE: ("does", "do", "not respond"),
    MemberState.MISSING: ("has", "have", "given no data"),
}
"""Why there is no answer of a rank: the first state that it has says it."""
_STATES: Final = (
    (MemberState.ABORTED, "called abort"),
    (MemberState.DESTROYING, "called destroy"),
    (MemberState.FINALIZING, "called finalize"),
)


def opinion(report: RasReport, members: Sequence[int], pids: Mapping[int, int]) -> tuple[str, ...]:
    """Sentences on the communicators of the group with these global ranks, ascending; none if the
    report has no such communicator. `pids` of ranks are as the ranks see their own, 0 unknown."""
    known = [_known(one, members, pids) for one in report.communicators]
    found = [one for one in known if one is not None]
    who = {(one.rank, one.host, one.pid) for each in found for one in each.of.members}
    if len(who) > len({rank for rank, _, _ in who}):
        found = [_Known(one.of, {}) for one in found]
    lines = [line for one in found for line in one.lines()] or list(_agreement(found))
    if (more := len(lines) - MAX_LINES) > 0:
        lines[MAX_LINES - 1 :] = [f"{more + 1} more differences"]
    return tuple(_BEGIN + line for line in lines)


@dataclass(frozen=True, slots=True)
class _Known:
    """A communicator, and the global ranks of its ranks, as far as they are known."""

    of: Communicator
    global_ranks: Mapping[int, int]

    @property
    def heard(self) -> list[Member]:
        """The ranks of which RAS has an answer."""
        return [one for one in self.of.members if not one.state & MemberState.MISSING]

    @property
    def is_alike(self) -> bool:
        """All ranks have launched the same, and something."""
        heard = self.heard
        counts = {one.counts for one in heard}
        return len(heard) == self.of.size and len(counts) == 1 and any(*counts)

    def lines(self) -> Iterator[str]:
        yield from self._counts()
        yield from self._silent()
        yield from self._states()
        yield from self._errors()

    def _name(self, ranks: Sequence[Member]) -> str:
        numbers = [self.global_ranks.get(one.rank, one.rank) for one in ranks]
        return text.ranks(numbers)

    def _clause(self, ranks: Sequence[Member], one: str, several: str, rest: str) -> str:
        """A sentence without its end: subject, verb for one or several ranks, the rest of it."""
        where = f"communicator {self.of.hash} ({self.of.size} ranks)"
        verb = one if len(ranks) == 1 else several
        if all(rank.rank in self.global_ranks for rank in ranks):
            return f"{self._name(ranks)} {verb} {rest} in {where}"
        return f"{self._name(ranks)} of {where} {verb} {rest}"

    def _counts(self) -> Iterator[str]:
        """Ops of which ranks have launched different numbers: most ranks are *the others*."""
        heard = [one for one in self.heard if one.counts]
        for at, op in enumerate(self.of.ops):
            by_count: dict[int, list[Member]] = {}
            for one in heard:
                by_count.setdefault(one.counts[at], []).append(one)
            if len(by_count) < 2:
                continue
            usual = max(by_count, key=lambda count: (len(by_count[count]), count))
            (first, ranks), *more = sorted(
                (count, ranks) for count, ranks in by_count.items() if count != usual
            )
            words = [self._clause(ranks, "has", "have", f"launched {first} {op}")]
            words += [f"{self._name(ranks)} {count}" for count, ranks in more[: _MOST_COUNTS - 1]]
            if left := sum(len(ranks) for _, ranks in more[_MOST_COUNTS - 1 :]):
                words.append(f"{left} more rank{'s' * (left > 1)} other numbers")
            others = by_count[usual]
            words.append(f"{'the others' if len(others) > 1 else self._name(others)} {usual}")
            yield ", ".join(words)

    def _silent(self) -> Iterator[str]:
        left = [*self.of.members]
        for state, words in _UNHEARD.items():
            if ranks := [one for one in left if one.state & state]:
                yield self._clause(ranks, *words)
            left = [one for one in left if not one.state & state]
        if (unlisted := self.of.size - len(self.of.members)) > 0:
            where = f"{self.of.size} ranks of communicator {self.of.hash}"
            yield f"{unlisted} of {where} {'are' if unlisted > 1 else 'is'} not listed"

    def _states(self) -> Iterator[str]:
        for state, did in _STATES:
            if ranks := [one for one in self.of.members if one.state & state]:
                yield self._clause(ranks, "has", "have", did)

    def _errors(self) -> Iterator[str]:
        starting = [one for one in self.of.members if one.init_code == _IN_PROGRESS]
        if starting:
            yield self._clause(starting, "is", "are", "still initializing")
        errors: dict[str, list[Member]] = {}
        for one in self.of.members:
            for code, when in ((one.init_code, " in initialization"), (one.error_code, "")):
                if code not in (0, _IN_PROGRESS):
                    name = f" ({_CODES[code]})" if code in _CODES else ""
                    errors.setdefault(f"error {code}{name}{when}", []).append(one)
        for error, ranks in errors.items():
            yield self._clause(ranks, "reports", "report", error)


def _known(one: Communicator, members: Sequence[int], pids: Mapping[int, int]) -> _Known | None:
    """None: it is not the group's."""
    known = [pid for rank in members if (pid := pids.get(rank))]
    if one.size != len(members) or len(known) > len(set(known)):
        return None
    compared = [
        (member.pid, pid) for member in one.members if (pid := pids.get(members[member.rank]))
    ]
    if len(compared) >= min(2, one.size) and all(pid == other for pid, other in compared):
        return _Known(one, dict(enumerate(members)))
    return None


def _agreement(found: Sequence[_Known]) -> Iterator[str]:
    """That no count differs, as far as all ranks have answered."""
    alike = [one.of for one in found if one.is_alike]
    if not alike:
        return
    hashes = [one.hash for one in alike]
    which = f"communicator {hashes[0]}"
    if len(hashes) > _MOST_HASHES:
        which = f"each of {len(hashes)} communicators"
    elif len(hashes) > 1:
        which = f"each of the communicators {', '.join(hashes[:-1])} and {hashes[-1]}"
    same = "the same number of each collective that NCCL counts"
    yield f"all {alike[0].size} ranks of {which} have launched {same}"
