"""From a rank's own names to the dictionary's indexes: its groups, and what it passed to an op.

Peers meet in a group only when all of them give it the same name and the same members. PyTorch's
name is the base. Where a name has a recorder for each of several backends, every one of them counts
its own seqs, so the backend is added; a name that was given up and taken again gets a number.
"""

from __future__ import annotations

from collections.abc import Iterable

from frd.model import MAX_WORLD_SIZE, GroupInfo, Signature
from frd_agent.ranks.tap_files import TapGroup
from frd_agent.uplink.dictionary import Dictionary


class Naming:
    """The names of one rank in one attempt."""

    def __init__(self, dictionary: Dictionary, attempt: int) -> None:
        self._dictionary = dictionary
        self._attempt = attempt
        self.groups: dict[str, GroupInfo] = {}
        """The known groups, by PyTorch's name."""
        self._shared: set[str] = set()
        """Names of groups with several backends."""

    def replace(self, groups: Iterable[TapGroup]) -> None:
        """All groups of the rank, from its tap; other names may come back as something else."""
        self.groups, self._shared = {}, set()
        for group in groups:
            self.learn([GroupInfo(group.name, group.desc, group.ranks)])
            self.groups.setdefault(group.name, GroupInfo(group.name, group.desc))
            if "," in group.backend:
                self._shared.add(group.name)

    def learn(self, groups: Iterable[GroupInfo]) -> None:
        """Groups as the recorder describes them. A known group is kept: a rank's groups do not
        change under their name. Impossible members are of another job: then those are known that
        list the group."""
        world_size = self._dictionary.attempts[self._attempt].world_size or MAX_WORLD_SIZE
        for group in groups:
            if group.ranks and group.ranks[0] >= 0 and group.ranks[-1] < world_size:
                self.groups.setdefault(group.name, group)

    def all_groups(self) -> list[int]:
        """Numbers of all groups with one backend, even if nothing has happened in them yet."""
        return [
            self.group(name, group.desc, "", 0)
            for name, group in self.groups.items()
            if name not in self._shared
        ]

    def group(self, name: str, desc: str, backend: str, generation: int) -> int:
        known = self.groups.get(name, GroupInfo(name, desc, ()))
        wire_name = f"{name}/{backend}" if name in self._shared else name
        wire_name = f"{wire_name}~{generation}" if generation else wire_name
        info = GroupInfo(wire_name, known.desc or desc, known.ranks)
        return self._dictionary.group(self._attempt, info)

    def members(self, group: int) -> tuple[int, ...]:
        return self._dictionary.groups[group].info.ranks

    def signature(self, signature: Signature) -> int:
        return self._dictionary.signature(signature)
