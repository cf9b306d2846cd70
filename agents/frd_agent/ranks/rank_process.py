"""The operating system process of a rank: found once, watched, and asked how it ended."""

from __future__ import annotations

from dataclasses import replace

from frd.model import ExitInfo, ExitKind, NodeRawNs
from frd_agent import tap
from frd_agent.memory.host.cgroup import OomKills
from frd_agent.proc import Vital, has_tap, is_of, number_here, status_line
from frd_agent.ranks.exits import ended_at, exit_info, may_be_oom
from frd_agent.ranks.process import Listener, Process, listener
from frd_agent.ranks.tap_files import ExitRecord, TapIdentity


class RankProcess:
    """The process of one rank. If it is in another pid namespace, /proc does not show it, and only
    its socket and what its tap publishes are known."""

    def __init__(
        self,
        identity: TapIdentity,
        socket: str | None,
        known: Process | None = None,
        owner: int | None = None,
    ) -> None:
        """`known`: the process, if it has been found already; `owner`: the user of the identity's
        file, which must be that of the process.

        Raises:
            OSError: as `read_stat`.
        """
        self.socket = socket
        self._owner = owner
        self.pinned = known
        """None if it is in another pid namespace, or ended before the agent saw it."""
        self.is_hidden = False
        """It is in another pid namespace, or of another user than its file: it may be alive."""
        if known is None:
            peer = Listener.NONE if socket is None else listener(socket, owner)
            found = _find(identity, peer)
            uids = status_line(found.pid, "Uid") if found is not None and owner is not None else []
            if found is not None and uids not in ([], [str(owner)] * 4):
                found.close()
                self.is_hidden = True
            elif found is None:
                refused = socket is not None and peer is Listener.NONE
                apart = identity.pid_namespace != 0 or peer is Listener.ELSEWHERE
                sees_all = tap.pid_namespace() in (tap.FIRST_PID_NAMESPACE, identity.pid_namespace)
                self.is_hidden = apart and not (sees_all or refused or identity.exit is not None)
            self.pinned = None if self.is_hidden else found
        self._oom_kills: OomKills | None = OomKills(self.pinned.pid if self.pinned else None)

    @property
    def pid(self) -> int | None:
        """In our own pid namespace; None if it is not seen there. Before anything is read of it,
        ask `may_read`."""
        return self.pinned.pid if self.pinned else None

    @property
    def readable(self) -> int | None:
        """Its pid, if it may be read now: see `may_read`."""
        return self.pid if self.pid is not None and self.may_read(self.pid) else None

    @property
    def key(self) -> tuple[int, int] | None:
        """`Process.key`; None if the process is not seen."""
        return self.pinned.key if self.pinned else None

    def may_read(self, pid: int) -> bool:
        """Whether `pid` is this process or another one of the user who owns the rank's identity.
        Ask right before anything is read of a process, and again before what was read is used: its
        number may belong to another process meanwhile, and an exec may change its user."""
        if self._owner is None:
            return True
        if self.pinned is not None and self.pinned.pid == pid:
            return self.pinned.is_of(self._owner)
        return is_of(pid, self._owner)

    @property
    def was_alive(self) -> bool:
        """When the agent found it."""
        return self.pinned is not None or self.is_hidden

    def look(self, *, suspicious: bool, is_over: bool = False, is_moving: bool = False) -> Vital:
        """`is_moving`: as in `Process.look`. The socket of an invisible process is tried only if
        there is a reason (`suspicious`); of one without a socket, the caller says from what it has
        published whether it `is_over`."""
        if self._oom_kills is not None:
            self._oom_kills.look()
        if self.pinned is not None:
            return self.pinned.look(is_moving=is_moving)
        if self.socket is not None:
            is_over = suspicious and listener(self.socket) is Listener.NONE
        return Vital.GONE if is_over or not self.is_hidden else Vital.RUNNING

    def describe(self) -> str:
        """Text for users."""
        return self.pinned.describe() if self.pinned else "process in another pid namespace"

    def ended(
        self, record: ExitRecord | None, recorded_at_ns: NodeRawNs | None, now_ns: NodeRawNs
    ) -> tuple[ExitInfo, NodeRawNs]:
        """How and when it ended. Only if it is gone. `record` is the tap's."""
        end = self.pinned.ended(now_ns) if self.pinned else None
        how = exit_info(record, end.wait_status if end else None)
        at_ns = ended_at(how, recorded_at_ns, end.at_ns if end else now_ns)
        if self._oom_kills is not None:
            how = replace(how, note=self._note_of(how, self._oom_kills))
            self._oom_kills = None  # nothing stays open of a dead rank
        return how, at_ns

    def _note_of(self, how: ExitInfo, oom_kills: OomKills) -> str:
        """Text: why its exit status is unknown, and whether memory may have been the reason."""
        unknown = ""
        if how.kind is ExitKind.UNKNOWN:
            unknown = "its parent collected the status first"
            if self.is_hidden:
                unknown = "its process is in another pid namespace"
            elif self.pinned is None:
                unknown = "it ended before this agent saw it"
        kills = oom_kills.text() if self.was_alive and may_be_oom(how) else ""
        return "; ".join(filter(None, (unknown, kills)))

    def close(self) -> None:
        """Close the pidfd."""
        if self.pinned is not None:
            self.pinned.close()


def _find(identity: TapIdentity, peer: int | Listener) -> Process | None:
    """By the socket's peer, else by its own number."""
    start, found = identity.start_ticks, None
    if isinstance(peer, int):
        # A forked child may hold the socket of a dead rank, whose number may be used again. In a
        # time namespace the tap sees another start.
        found = Process.pin(peer, start_ticks=start)
        if found is None and has_tap(peer):
            found = Process.pin(peer)
    elif (
        start
        and (identity.exit is None or identity.pid_namespace == tap.pid_namespace())
        and (pid := number_here(identity.pid, start, identity.pid_namespace))
    ):
        found = Process.pin(pid, start_ticks=start)
    return found
