"""All ranks of this node: new ranks, ended ranks, and when their files may be removed.

A rank's files stay until its end has been sent and some time has passed, so that a restarted agent
still finds them. The state of a dead rank stays in memory as long as other ranks of its attempt
live on this node, because a restarted service needs it again. A rank that was dead before this
agent first saw it is reported if it ended within the last minute, or if other ranks of its attempt
are alive and may wait for it; otherwise only its files are removed.

A process claims one rank at a time, the one that its newest identity names: the process as the
kernel shows it, not as the identity does. Of processes that are not seen nothing is known but their
identities, so each user has `MAX_RANKS` living ranks in a run directory at most.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from frd.model import AttemptKey, NodeRawNs
from frd.wire.messages import MAX_UNREADABLE, Unreadable
from frd_agent.ranks.forming.registry import Forming
from frd_agent.ranks.rank import MAX_RANKS, Rank, RankContext
from frd_agent.ranks.rank_process import RankProcess
from frd_agent.ranks.tap_files import SocketDir, TapFile, TapIdentity
from frd_agent.ranks.token_files import Refused, unreadable

_FILES_STAY_S: Final = 60.0
"""Beyond the keepalive of the stream: data sent into a dead connection was not received."""
_FILES_STAY_UNSENT_S: Final = 3600.0
_NEWS_S: Final = 60.0
_REMEMBERED_S: Final = 900.0
_MAX_DEAD: Final = 1024

log = logging.getLogger(__name__)


class Roster:
    def __init__(self, run_dir: Path, shared: RankContext, node: str = "") -> None:
        self._run_dir = run_dir
        self._node = node
        self._shared, self._stats = shared, shared.stats
        self._sockets = SocketDir(run_dir)
        self.forming = Forming(run_dir, shared, node)
        """Processes without a process group yet, which are no part of this roster."""
        self._forming_fails = False
        self._files: list[TapFile] = []
        self._refused = Refused("identity", shared.stats)
        self._left: set[tuple[Path, tuple[int, int, int]]] = set()
        """Of ranks that are not watched, and may not be removed, as in a sticky directory; and
        earlier identities of living processes."""
        self._claims: dict[object, Rank] = {}
        """The living ranks by the key of their process or, if it is not seen, by token."""
        self._shares: Counter[int | None] = Counter()
        """How many of them each user has."""
        self._excess = 0
        """Files beyond a user's `MAX_RANKS`."""
        self._ranks: dict[str, Rank] = {}
        """By token, dead ones included until they are forgotten."""
        self._namesakes: set[tuple[str, str]] = set()
        """Job and run that the log has warned of."""
        self._is_short = False
        """The log has reported that the agent is short of descriptors or memory."""

    def __iter__(self) -> Iterator[Rank]:
        return iter(list(self._ranks.values()))

    def update(self, now_ns: NodeRawNs) -> list[Rank]:
        """Read the run directory; returns the new ranks."""
        self._files = TapFile.scan(self._run_dir, self._files, self._node)
        if self._left:
            self._left &= {(file.path, file.stamp) for file in self._files}
        self._refused.update(self._files)
        living = [rank for rank in self if not rank.is_gone]
        self._claims = {rank.process.key or rank.identity.token: rank for rank in living}
        self._shares = Counter(rank.file.owner for rank in living)
        unknown: list[tuple[TapFile, TapIdentity]] = []
        for file in self._files:
            if file.content is None or (file.path, file.stamp) in self._left:
                continue
            known = self._ranks.get(file.content.token)
            if known is None:
                unknown.append((file, file.content))
            elif not (known.file is file or known.files_removed or known.file.owner != file.owner):
                known.renew(file, file.content, now_ns)
        # The newest first: of those of one process, only this one is opened.
        unknown.sort(key=lambda one: one[1].started_at_ns, reverse=True)
        excess, self._excess = self._excess, 0
        new = [rank for one in unknown if (rank := self._open(*one)) is not None]
        # Live ranks first: whether a dead rank is news depends on them.
        new.sort(key=lambda rank: (not rank.process.was_alive, rank.identity.started_at_ns))
        admitted = [rank for rank in new if self._admit(rank)]
        self._update_forming(now_ns)
        self._excess += self.forming.excess
        self._stats.refused_files["claim"] += max(self._excess - excess, 0)
        return admitted

    def _update_forming(self, now_ns: NodeRawNs) -> None:
        """An error must not stop the watching of ranks."""
        try:
            self.forming.update(self, now_ns)
            for rank in self.forming:
                if (former := self._claims.get(rank.process.key)) and not former.is_gone:
                    former.hand_over(rank, now_ns)
                    if former.identity.seat == rank.identity.seat:
                        self._forget(former)  # as in `_admit`
        except Exception:
            if not self._forming_fails:
                log.exception("%s: stages could not be read", self._run_dir)
            self._forming_fails = True

    @property
    def unreadable(self) -> Unreadable:
        """What ranks publish that this agent may not read, or does not watch."""
        found = unreadable(self._run_dir, [*self._files, *self.forming.files])
        text = f"{self._run_dir}: {self._excess} ranks beyond {MAX_RANKS} are not watched"
        return Unreadable(((text,) * bool(self._excess) + found.texts)[:MAX_UNREADABLE])

    def end(self, rank: Rank, now_ns: NodeRawNs) -> None:
        """The process of `rank` is gone: report it, unless another process replaced it."""
        if self._has_successor(rank):
            rank.close()
            self._forget(rank)
        else:
            rank.end(now_ns)

    def _has_successor(self, rank: Rank) -> bool:
        """The rank has a later process in the same run. The service could not distinguish the end
        of one from the end of the other."""
        return any(other.identity.run == rank.identity.run for other in self._later(rank))

    def _later(self, rank: Rank) -> Iterator[Rank]:
        identity = rank.identity
        for other in self:
            is_same = other.identity.seat[:2] == identity.seat[:2]
            if is_same and other.identity.started_at_ns > identity.started_at_ns:
                yield other

    def clear(self, now_ns: NodeRawNs) -> None:
        """Remove the files of ranks whose end has been sent, and forget old ones."""
        living = {rank.identity.attempt for rank in self if not rank.is_gone}
        dead = [rank for rank in self if rank.is_gone]
        for rank in dead:
            age_s = (now_ns - (rank.gone_at_ns or now_ns)) / 1e9
            sent = rank.reports.is_connected() and rank.reports.current.is_sent(rank.number)
            if age_s > (_FILES_STAY_S if sent else _FILES_STAY_UNSENT_S):
                self._remove_files(rank)
                if any(self._later(rank)):
                    self._forget(rank)  # another run of the job has taken its place
            if age_s > _REMEMBERED_S and rank.identity.attempt not in living:
                self._forget(rank)
        for rank in dead[: max(len(dead) - _MAX_DEAD, 0)]:
            self._forget(rank)
        self.forming.clear(now_ns)

    def close(self) -> None:
        for rank in self:
            rank.close()
            rank.process.close()
        self.forming.close()
        self._sockets.close()

    # -- new ranks -----------------------------------------------------------------------------

    def _open(self, file: TapFile, identity: TapIdentity) -> Rank | None:
        """None if this process is short of descriptors or memory: the next update tries again. A
        process that cannot be read must not be reported as dead. Also None if there are too many
        ranks, or a newer one of this process."""
        if self._shares[file.owner] >= MAX_RANKS:
            self._excess += 1
            return None
        try:
            process = RankProcess(identity, self._sockets.of(file), owner=file.owner)
        except OSError as error:
            if not self._is_short:
                log.warning("%s: cannot be read: %s: trying again", file.path, error.strerror)
            self._is_short = True
            return None
        self._is_short = False
        former = self._claims.get(process.key)
        if former is not None and former.identity.started_at_ns >= identity.started_at_ns:
            if not self._stats.refused_files["claim"]:
                pid = former.process.pid
                log.warning("%s: ignored: pid %s claims %s already", file.path, pid, former)
            self._stats.refused_files["claim"] += 1
            process.close()
            self._left.add((file.path, file.stamp))
            former.older[file.path] = file
            return None
        rank = Rank(file, identity, self._shared, process)
        if former is not None:
            former.hand_over(rank, self._shared.time.now())
        if process.was_alive:
            self._claims[process.key or identity.token] = rank
            self._shares[file.owner] += former is None
        return rank

    def _admit(self, rank: Rank) -> bool:
        if not rank.process.was_alive and not self._is_news(rank):
            rank.close()
            self._forget(rank)
            return False
        self._ranks[rank.identity.token] = rank
        for former in self:
            if former.is_gone and self._has_successor(former):
                self._forget(former)  # its end would be taken for that of its successor
        if rank.process.was_alive:
            pid, node = rank.process.pid, rank.identity.info.node
            where = "" if pid else ", in another pid namespace"
            log.info("%s: found, pid %d on %s%s", rank, pid or rank.identity.pid, node, where)
            self._warn_of_namesake(rank)
        return True

    def _warn_of_namesake(self, rank: Rank) -> None:
        """Once for each run: the service watches only one of two running jobs with one name."""
        job, run = rank.identity.attempt.job, rank.identity.run
        if not run or (job, run) in self._namesakes:
            return
        for other in self:
            identity = other.identity
            same = (identity.attempt.job, identity.rank) == (job, rank.identity.rank)
            if same and identity.run not in ("", run) and not other.is_gone:
                self._namesakes.add((job, run))
                log.warning(
                    "two running jobs are called %s (pids %d, %d): "
                    "only one of them is watched: give each its own --job",
                    *(job, other.identity.pid, rank.identity.pid),
                )
                return

    def _is_news(self, rank: Rank) -> bool:
        wall_ns = self._shared.time.look().real_ns  # the file may be older than the raw clock
        changed_s = max(wall_ns - rank.file.stamp[1], 0) / 1e9
        rank.counters.read()
        return min(changed_s, rank.counters.age_s) < _NEWS_S or self._lives(rank.identity.attempt)

    def _lives(self, key: AttemptKey) -> bool:
        return any(rank.identity.attempt == key and not rank.is_gone for rank in self)

    # -- old ranks -----------------------------------------------------------------------------

    def _remove_files(self, rank: Rank) -> None:
        if not rank.files_removed:
            rank.files_removed = True
            for file in (rank.file, *rank.older.values()):
                self._remove(file)

    def _remove(self, file: TapFile) -> None:
        """All files with its token that are of the same user."""
        token = file.path.stem
        names = [
            f"{token}.{suffix}" for suffix in ("json", "shm", "sock", "stage", "phases", "dumps")
        ]
        for name in (*names, f".{token}.tmp"):
            path = self._run_dir / name
            with contextlib.suppress(OSError):
                if path.lstat().st_uid == file.owner:
                    path.unlink()
        if file.path.exists():
            self._left.add((file.path, file.stamp))

    def _forget(self, rank: Rank) -> None:
        self._remove_files(rank)
        self._ranks.pop(rank.identity.token, None)
        rank.reports.forget(rank.number)
        rank.forget_former()
