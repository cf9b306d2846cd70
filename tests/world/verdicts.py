"""Every version of the findings of a real job, from the journal of its service.

A finding may be right in the end and have accused an innocent rank for seconds before. The API
shows the last version; the journal replays to all of them, so that a test misses none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from frd.cli.client import Client
from frd.cli.commands.demo.stage import Stage
from frd.model import Confidence, Finding
from frd.service.journal.replay import Player
from frd.store.journal import read
from frd.store.records import RecordKind
from tests.world.daemons import findings, until


def versions(stage: Stage) -> list[Finding]:
    """Oldest first."""
    warnings: list[str] = []
    player = Player(warnings.append)
    found: dict[Finding, None] = {}
    for record in read(stage.folder / "data" / "journal", warnings.append):
        player.play(record)
        if record.kind is RecordKind.TICK:
            found |= dict.fromkeys(player.findings.values())
    assert not warnings, warnings
    return list(found)


def high_at_most(stage: Stage, client: Client, *culprits: int) -> list[Finding]:
    """In no version of a finding that the service shows, or has shown, any other rank is a suspect
    of high confidence. Returns all versions."""
    shown = {(one["id"], named["rank"]) for one in findings(client) for named in one["suspects"]}

    def caught_up() -> list[Finding] | None:
        """The journal is written in batches."""
        known = versions(stage)
        named = {(one.id, suspect.rank) for one in known for suspect in one.suspects}
        return known if shown <= named else None

    known = until(caught_up, lambda: f"{shown}: {versions(stage)}") if shown else versions(stage)
    assert not (wrong := accused(known, culprits)), wrong
    return known


def accused(known: Sequence[Finding], culprits: Collection[int]) -> list[tuple[int, str]]:
    """Other ranks that are suspects of high confidence, each with the summary."""
    return [
        (suspect.rank, one.summary)
        for one in known
        for suspect in one.suspects
        if suspect.rank not in culprits and suspect.confidence is Confidence.HIGH
    ]
