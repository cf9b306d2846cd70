"""The operating system process of a rank: found once, watched, and asked how it ended."""

from __future__ import annotations

from dataclasses import replace

from frd.model import ExitInfo, ExitKind, NodeRawNs
from frd_agent import tap
from frd_agent.memory import OomKills
from frd_agent.proc import Vital, has_tap, number_here, read_stat
from frd_agent.ranks.exits import ended_at, exit_info, may_be_oom
from frd_agent.ranks.process import Listener, Process, listener
from frd_agent.ranks.tap_files import ExitRecord, TapIdentity


class RankProcess:
    """The process of one rank. If it is in another pid namespace, /proc does not show it, and only
    its socket and what its tap publishes are known."""

    def __init__(
        self, identity: TapIdentity, socket: str | None, known: Process | None = None
    ) -> None:
        """`known`: the process, if it has been found already.

        Raises:
            OSError: as `read_stat`.
        """
        self._socket = socket
        self.pinned = known
        """None if it is in another pid namespace, or ended before the agent saw it."""
        self.is_hidden = False
        """It is in another pid namespace."""
        if known is None:
            owner = Listener.NONE if socket is None else listener(socket)
            if isinstance(owner, int):
                self.pinned = Process.pin(owner, start_ticks=identity.start_ticks)
                self.is_hidden = self.pinned is None and read_stat(owner) is not None
            else:
                self.pinned = _by_number(identity)
                is_over = socket is not None or identity.exit is not None
                is_apart = identity.pid_namespace not in (0, tap.pid_namespace()) and not is_over
                is_apart |= owner is Listener.ELSEWHERE
                self.is_hidden = self.pinned is None and is_apart
        self._oom_kills = OomKills(self.pinned.pid if self.pinned else None)

    @property
    def was_alive(self) -> bool:
        """When the agent found it."""
        return self.pinned is not None or self.is_hidden

    def look(self, *, suspicious: bool) -> Vital:
        """The socket of an invisible process is tried only if there is a reason (`suspicious`)."""
        self._oom_kills.look()
        if self.pinned is not None:
            return self.pinned.look()
        is_gone = suspicious and self._socket and listener(self._socket) is Listener.NONE
        return Vital.GONE if is_gone or not self.is_hidden else Vital.RUNNING

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
        return replace(how, note=self._note_of(how)), at_ns

    def _note_of(self, how: ExitInfo) -> str:
        """Text: why its exit status is unknown, and whether memory may have been the reason."""
        unknown = ""
        if how.kind is ExitKind.UNKNOWN:
            unknown = "its parent collected the status first"
            if self.is_hidden:
                unknown = "its process is in another pid namespace"
            elif self.pinned is None:
                unknown = "it ended before this agent saw it"
        kills = self._oom_kills.text() if self.was_alive and may_be_oom(how) else ""
        return "; ".join(filter(None, (unknown, kills)))

    def close(self) -> None:
        """Close the pidfd."""
        if self.pinned is not None:
            self.pinned.close()


def _by_number(identity: TapIdentity) -> Process | None:
    """The process by its own number. A tap of an earlier release did not publish its start."""
    if identity.start_ticks:
        pid = number_here(identity.pid, identity.start_ticks, identity.pid_namespace)
        return Process.pin(pid, start_ticks=identity.start_ticks) if pid else None
    return Process.pin(identity.pid, identity.started_at_ns) if has_tap(identity.pid) else None
