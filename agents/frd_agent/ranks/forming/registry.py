"""Which processes of this node are going to be ranks, and which rank each is.

The environment that a launcher makes for a rank is inherited by everything that the rank starts:
workers of a data loader, helpers, another launcher. A process that is wrongly taken for a
rank would be blamed for the wait of others, so a claim counts only if nothing speaks against it:

- the process runs on this node, and started when its tap says so;
- no rank, living or dead, is known to be that rank of that attempt;
- none of its ancestors is a rank, or claims to be one;
- no other process claims the same rank: of two, none counts until one has its groups. A process
  below another claimant counts in this only if it is in `init_process_group` itself.

A claim that does not count costs nothing else: the process is watched once it has its groups.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import asdict

from frd.model import NodeRawNs
from frd_agent import tap
from frd_agent.inspection.reading.threads import waits_for_thread
from frd_agent.proc import Vital, number_here, read_stat
from frd_agent.ranks.forming.forming_rank import FormingRank, Looks, StageFile, StageReport, is_news
from frd_agent.ranks.process import Process
from frd_agent.ranks.rank import MAX_RANKS, Rank, RankContext
from frd_agent.ranks.token_files import STILL_S, Refused

_REMEMBERED_S: Final = 60.0
"""How long the end of a forming rank stays in memory, and on disk a file without a process."""
_REFRESH_S: Final = 2.0
_MISSING: Final = 2
_MAX_ANCESTORS: Final = 64

log = logging.getLogger(__name__)


class _Claimant:
    """A living process of this node with a claim. `process` is None in another pid namespace: it
    lives as long as its tap goes on to write."""

    def __init__(self, report: StageReport, process: Process | None, owner: int | None) -> None:
        self.report = report
        self.owner = owner
        """Uid of the file."""
        self.process = process
        self.ancestors = frozenset() if process is None else _ancestors(process.pid)
        """When it was first seen; later they may be gone."""
        self.rank: FormingRank | None = None
        self.missing = 0
        """Updates without its process or its file: its identity may have taken the file's place,
        and its exit record may be newer than the last update."""

    def is_alive(self, now_ns: NodeRawNs, age_s: float) -> bool:
        """`age_s`: of its report."""
        if self.process is None and (self.report.exit is not None or age_s > STILL_S):
            return False
        if self.rank is not None:
            return self.rank.poll(now_ns)
        return self.process is None or self.process.look() is not Vital.GONE

    def close(self) -> None:
        if self.process is not None:
            self.process.close()

    @property
    def key(self) -> object:
        claim = self.report.claim
        return None if claim is None else claim.seat[:2]


class Forming:
    """The forming ranks of one run directory."""

    def __init__(self, run_dir: Path, shared: RankContext, node: str = "") -> None:
        self._run_dir = run_dir
        self._node = node
        self._shared = shared
        self._boot_id = tap.boot_id()
        self._pid_namespace = tap.pid_namespace()
        self.files: list[StageFile] = []
        self._files: list[StageFile] = []
        """What counts of the files that were read."""
        self._refreshed_at_ns = -math.inf
        self._claimants: dict[str, _Claimant] = {}
        """By token."""
        self._looks: dict[str, Looks] = {}
        """At each rank with groups whose counters rest, by token."""
        self._newest: dict[object, tuple[int, str]] = {}
        """Of each process: when its newest claim began, and its token, or "" if it is a rank."""
        self._shares: Counter[int | None] = Counter()
        """How many claimants each user has."""
        self.excess = 0
        """Files beyond a user's `MAX_RANKS`."""
        self._unseen: set[str] = set()
        """Tokens of files whose process was looked for in vain, or has a newer claim."""
        self._ended: list[tuple[NodeRawNs, FormingRank]] = []
        self._refused = Refused("stage", shared.stats)

    def __iter__(self) -> Iterator[FormingRank]:
        return iter([one.rank for one in self._claimants.values() if one.rank is not None])

    def update(self, ranks: Iterable[Rank], now_ns: NodeRawNs) -> None:
        """Read the stage files; `ranks` are the ranks with groups, dead ones included."""
        self._look(now_ns)
        by_token = {rank.identity.token: rank for rank in ranks}
        self._newest = {
            rank.process.key: (rank.identity.started_at_ns, "")
            for rank in by_token.values()
            if not rank.is_gone
        }
        for token, one in list(self._claimants.items()):
            if one.process is not None and token not in by_token:
                self._is_newest(one.process, one.report, now_ns)
        self._shares = Counter(one.owner for one in self._claimants.values())
        self._unseen &= {file.path.stem for file in self._files}
        self.excess = 0
        looks: dict[str, Looks] = {}
        reports: dict[str, StageReport] = {}
        for file in self._files:
            if file.content is None:
                continue
            if file.content.token in by_token:
                token = file.content.token
                if file.content.claim is None:  # else from before it had groups
                    looks[token] = self._looks.get(token) or Looks(self._shared.time.until)
                    shows = partial(_waits_for_thread, by_token[token])
                    looks[token].take(file.content, shows)
            elif file.content.claim is not None:
                reports[file.content.token] = file.content
                self._learn(file, file.content, now_ns)
        for token, rank in by_token.items():
            stage = looks[token].stage if token in looks and not rank.is_gone else None
            if self._refreshed_at_ns == now_ns or is_news(rank.stage, stage):
                rank.stage = stage
            if (claimant := self._claimants.pop(token, None)) is not None:
                former = claimant.rank
                if former is not None and not former.give_way(rank, now_ns):
                    self._ended.append((now_ns, former))
                claimant.close()
        self._looks = looks
        self._drop_gone(reports, now_ns)
        self._decide(list(by_token.values()), now_ns)

    def _look(self, now_ns: NodeRawNs) -> None:
        """Read the files. That a stage goes on is news for all processes together, every
        `_REFRESH_S`: one message for a node, not one for each of its processes."""
        self.files = StageFile.scan(self._run_dir, self.files, self._node)
        before = {file.path: file for file in self._files}
        if (now_ns - self._refreshed_at_ns) / 1e9 >= _REFRESH_S:
            self._refreshed_at_ns, self._files = now_ns, self.files
        else:
            self._files = [
                before[file.path] if _goes_on(before.get(file.path), file) else file
                for file in self.files
            ]
        self._refused.update(self.files)

    def clear(self, now_ns: NodeRawNs) -> None:
        """Forget ends that have been sent for long."""
        for at_ns, rank in list(self._ended):
            if (now_ns - at_ns) / 1e9 > _REMEMBERED_S:
                rank.forget()
                self._ended.remove((at_ns, rank))

    def close(self) -> None:
        for claimant in self._claimants.values():
            claimant.close()

    # -- claimants -----------------------------------------------------------------------------

    def _learn(self, file: StageFile, report: StageReport, now_ns: NodeRawNs) -> None:
        known = self._claimants.get(report.token)
        if known is None:
            if self._shares[file.owner] >= MAX_RANKS:
                self.excess += 1
                return
            is_ours = report.claim is not None and report.claim.boot_id == self._boot_id
            process = self._find(report) if is_ours else None
            if process is not None and not (
                (file.owner is None or process.is_of(file.owner))
                and self._is_newest(process, report, now_ns)
            ):
                process.close()
                return
            is_old = self._age_s(report, now_ns) > _REMEMBERED_S
            sees_all = self._pid_namespace in (tap.FIRST_PID_NAMESPACE, report.pid_namespace)
            is_hidden = is_ours and report.pid_namespace != 0 and not sees_all
            if process is None and (is_old or report.exit is not None or not is_hidden):
                if is_old:
                    _remove(file.path)
                return
            self._shares[file.owner] += 1
            known = self._claimants[report.token] = _Claimant(report, process, file.owner)
        elif known.report is report or known.owner != file.owner:
            return
        known.report = report
        if known.rank is not None:
            was, claim = known.rank.identity, report.claim
            if claim and (was.seat, was.info) == (claim.seat, claim.info):
                known.rank.learn(report)
            else:  # the program has changed its environment
                self._withdraw(known, now_ns, "claims another rank")

    def _is_newest(self, process: Process, report: StageReport, now_ns: NodeRawNs) -> bool:
        """Of the claims of one process. An older one, made before an exec, is withdrawn; its file
        stays for as long as it is written: the clock may have been set back."""
        began_ns = report.claim.started_at_ns if report.claim is not None else 0
        newest_ns, former = self._newest.get(process.key, (-1, ""))
        if is_newest := began_ns > newest_ns:
            self._newest[process.key] = began_ns, report.token
        if older := former if is_newest else report.token:
            self._shared.stats.refused_files["claim"] += 1
            self._unseen.add(older)
            if (claimant := self._claimants.pop(older, None)) is not None:
                self._withdraw(claimant, now_ns, "its process claims another rank")
                claimant.close()
        return is_newest

    def _find(self, report: StageReport) -> Process | None:
        """The process, verified by its start; None if it is not here, or is hidden."""
        if not report.start_ticks or report.token in self._unseen:
            return None
        pid = number_here(report.pid, report.start_ticks, report.pid_namespace)
        process = Process.pin(pid, start_ticks=report.start_ticks) if pid else None
        if process is None:
            self._unseen.add(report.token)
        return process

    def _age_s(self, report: StageReport, now_ns: NodeRawNs) -> float:
        return (now_ns - self._shared.time.until(report.as_of_ns)) / 1e9

    def _drop_gone(self, reports: Collection[str], now_ns: NodeRawNs) -> None:
        for token, claimant in list(self._claimants.items()):
            rank, report = claimant.rank, claimant.report
            is_alive = claimant.is_alive(now_ns, self._age_s(report, now_ns))
            is_there = is_alive and token in reports
            claimant.missing = 0 if is_there else claimant.missing + 1
            if claimant.missing < _MISSING:
                continue
            del self._claimants[token]
            if rank is not None and not is_alive:
                rank.exited(report.exit, now_ns)
                log.info("%s: %s", rank, rank.detail)
                self._ended.append((now_ns, rank))
            else:
                self._withdraw(claimant, now_ns, "no longer takes part in an initialization")
            claimant.close()
            if not is_alive:
                _remove(self._run_dir / f"{token}.stage")

    def _withdraw(self, claimant: _Claimant, now_ns: NodeRawNs, why: str) -> None:
        if claimant.rank is not None:
            log.info("%s: %s", claimant.rank, why)
            claimant.rank.end(now_ns, why)
            self._ended.append((now_ns, claimant.rank))
            claimant.rank = None

    # -- decisions -----------------------------------------------------------------------------

    def _decide(self, ranks: list[Rank], now_ns: NodeRawNs) -> None:
        begun = {one.process.key for one in self._claimants.values() if one.process}
        # A rank that began again, by an exec, forms again.
        held = {rank.identity.seat[:2] for rank in ranks if rank.process.key not in begun}
        claiming = {key[0] for key in begun | {rank.process.key for rank in ranks} if key}
        for key in held:
            self._forget_ended(key)
        rivals: dict[object, list[_Claimant]] = defaultdict(list)
        for claimant in self._claimants.values():
            if claimant.report.op or claiming.isdisjoint(claimant.ancestors):
                rivals[claimant.key].append(claimant)
        for claimant in self._claimants.values():
            counts = (
                claimant.key not in held
                and rivals[claimant.key] == [claimant]
                and claiming.isdisjoint(claimant.ancestors)
            )
            if not counts:
                self._withdraw(claimant, now_ns, "shares its rank with another process")
            elif claimant.rank is None and (claim := claimant.report.claim) is not None:
                self._forget_ended(claimant.key)
                rank = FormingRank(claim, claimant.process, self._shared, claimant.owner)
                claimant.rank = rank
                rank.learn(claimant.report)
                rank.poll(now_ns)
                pid = rank.process.pid or claim.pid
                log.info("%s: forming, pid %d on %s", rank, pid, claim.info.node)

    def _forget_ended(self, key: object) -> None:
        """The end of a former process would be taken for that of its successor."""
        for at_ns, rank in list(self._ended):
            if rank.identity.seat[:2] == key:
                rank.forget()
                self._ended.remove((at_ns, rank))


def _waits_for_thread(rank: Rank) -> bool:
    pid = rank.process.readable
    return pid is not None and waits_for_thread(pid)


def _remove(path: Path) -> None:
    """In a directory of another user it may stay."""
    with contextlib.suppress(OSError):
        path.unlink()


def _goes_on(before: StageFile | None, now: StageFile) -> bool:
    """Nothing has changed except that time has passed, of a process without groups."""
    if before is None or before.content is None or now.content is None or not now.content.claim:
        return False
    was, is_now = (asdict(report) for report in (before.content, now.content))
    return all(was[name] == is_now[name] for name in was.keys() - {"as_of_ns", "frames"})


def _ancestors(pid: int) -> frozenset[int]:
    found: list[int] = []
    while len(found) < _MAX_ANCESTORS:
        stat = read_stat(pid)
        if stat is None or stat.parent <= 0 or stat.parent in found:
            break
        pid = stat.parent
        found.append(pid)
    return frozenset(found)
