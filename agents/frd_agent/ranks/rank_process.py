"""The operating system process of a rank: found once, watched, and asked how it ended."""

from __future__ import annotations

from dataclasses import replace

from frd.model import ExitInfo, ExitKind, NodeRawNs
from frd_agent.memory import OomKills
from frd_agent.proc import Vital
from frd_agent.ranks.exits import ended_at, exit_info, may_be_oom
from frd_agent.ranks.process import Listener, Process, listener
from frd_agent.ranks.tap_files import ExitRecord, TapIdentity


class RankProcess:
    """The process of one rank. If it is in another pid namespace, /proc does not show it, and only
    its socket is known."""

    def __init__(
        self, identity: TapIdentity, socket: str | None, known: Process | None = None
    ) -> None:
        """`known`: the process, if it has been found already.

        Raises:
            OSError: as `read_stat`.
        """
        self._socket = socket
        owner = Listener.NONE if socket is None else listener(socket)
        self._is_elsewhere = owner is Listener.ELSEWHERE
        self.pinned = known
        """None if it is in another pid namespace, or ended before the agent saw it."""
        if known is not None:
            pass
        elif isinstance(owner, int):
            self.pinned = Process.pin(owner)
        elif not self._is_elsewhere:
            self.pinned = Process.pin(identity.pid, identity.started_at_ns)
        self._oom_kills = OomKills(self.pinned.pid) if self.pinned else None

    @property
    def was_alive(self) -> bool:
        """When the agent found it."""
        return self.pinned is not None or self._is_elsewhere

    def look(self, *, suspicious: bool) -> Vital:
        """The socket of an invisible process is tried only if there is a reason (`suspicious`)."""
        if self.pinned is not None:
            return self.pinned.look()
        is_gone = suspicious and self._socket and listener(self._socket) is Listener.NONE
        return Vital.GONE if is_gone or not self._is_elsewhere else Vital.RUNNING

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
            if self._is_elsewhere:
                unknown = "its process is in another pid namespace"
            elif self.pinned is None:
                unknown = "it ended before this agent saw it"
        kills = self._oom_kills.text() if may_be_oom(how) and self._oom_kills else ""
        return "; ".join(filter(None, (unknown, kills)))

    def close(self) -> None:
        """Close the pidfd."""
        if self.pinned is not None:
            self.pinned.close()
