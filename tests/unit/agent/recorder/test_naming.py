"""From the groups of a tap and a recorder to the groups that the service gets."""

from __future__ import annotations

from frd.model import AttemptKey, GroupInfo
from frd_agent.ranks.tap_files import TapGroup
from frd_agent.recorder.naming import Naming
from frd_agent.uplink.dictionary import Dictionary


def declared(*listed: TapGroup) -> tuple[Naming, list[GroupInfo]]:
    """The names of a rank in a world of two, and what its agent declares of its groups."""
    dictionary = Dictionary()
    naming = Naming(dictionary, dictionary.attempt(AttemptKey("trainer", 0), 2))
    naming.replace(listed)
    return naming, [dictionary.groups[number].info for number in naming.all_groups()]


def test_a_group_with_members_of_other_jobs_costs_no_other_group() -> None:
    """A tap lists such a group without members, an older one with numbers beyond the world: the
    rank is in it, its members are unknown, and the other groups are as they are."""
    own = TapGroup("0", (0, 1), "default_pg", "gloo")
    for ranks in ((), (0, 1, 2, 3)):
        _, infos = declared(own, TapGroup("weights", ranks, "sync", "gloo"))
        assert infos == [GroupInfo("0", "default_pg", (0, 1)), GroupInfo("weights", "sync")]


def test_the_recorder_adds_no_members_to_a_group_that_the_tap_lists_without() -> None:
    """The recorder describes it with group ranks; a group that only the recorder shows is learned
    from there."""
    naming, _ = declared(TapGroup("weights", ()))
    naming.learn([GroupInfo("weights", "", (0, 1)), GroupInfo("7", "", (0, 1))])
    known = [naming.groups[name].ranks for name in ("weights", "7")]
    assert known == [(), (0, 1)]
