"""From a rank's own names to the dictionary's indexes: its groups, and what it passed to an op.

Peers meet in a group only when all of them give it the same name and the same members. PyTorch's
name is the base. Where a name has a recorder for each of several backends, every one of them counts
its own seqs, so the backend is added; a name that was given up and taken again gets a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frd.model import GroupInfo, Signature
from frd_agent.uplink.dictionary import MAX_WORLD_SIZE, Dictionary


@dataclass(frozen=True, slots=True)
class KnownGroup:
    """A group as the tap, or the recorder itself, describes it."""

    desc: str
    ranks: tuple[int, ...]
    backends: tuple[str, ...] = ()


class Naming:
    """The names of one rank in one attempt (`transitions.Names`)."""

    def __init__(self, dictionary: Dictionary, attempt: int) -> None:
        self._dictionary = dictionary
        self._attempt = attempt
        self._groups: dict[str, KnownGroup] = {}
        self._members: dict[int, tuple[int, ...]] = {}

    def learn(self, groups: Mapping[str, KnownGroup]) -> None:
        """A known group is kept: a rank's groups do not change under their name."""
        for name, group in groups.items():
            if self._is_possible(group):
                self._groups.setdefault(name, group)

    def replace(self, groups: Mapping[str, KnownGroup]) -> None:
        """The whole truth of a tap; names that it gave up may come back as something else."""
        self._groups = {name: group for name, group in groups.items() if self._is_possible(group)}

    def _is_possible(self, group: KnownGroup) -> bool:
        """Membership comes from recorders and files too, and the service refuses nonsense."""
        world_size = self._dictionary.attempts[self._attempt].world_size or MAX_WORLD_SIZE
        return bool(group.ranks) and group.ranks[0] >= 0 and group.ranks[-1] < world_size

    def knows(self, name: str) -> bool:
        return name in self._groups

    def known(self) -> dict[str, KnownGroup]:
        return dict(self._groups)

    def all_groups(self) -> list[int]:
        """Numbers of all groups with one backend, those too in which nothing has happened yet."""
        return [
            self.group(name, group.desc, "", 0)
            for name, group in self._groups.items()
            if len(group.backends) <= 1
        ]

    def group(self, name: str, desc: str, backend: str, generation: int) -> int:
        known = self._groups.get(name, KnownGroup(desc, ()))
        wire_name = name if len(known.backends) <= 1 else f"{name}/{backend}"
        wire_name = f"{wire_name}~{generation}" if generation else wire_name
        info = GroupInfo(wire_name, known.desc or desc, known.ranks)
        index = self._dictionary.group(self._attempt, info)
        self._members[index] = known.ranks
        return index

    def members(self, group: int) -> Sequence[int]:
        return self._members.get(group, ())

    def signature(self, signature: Signature) -> int:
        return self._dictionary.signature(signature)
