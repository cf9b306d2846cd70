"""One answer of the answers of several replicas: pure functions over their JSON.

Keys that this release does not know stay. An answer without the known ones is refused, so that a
replica that answers nonsense counts as one that did not answer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from frd.cluster.cells import CELLS, cell_of
from frd.cluster.lease import ClusterView
from frd.decodable import decodable
from frd.do_now import shown_json
from frd.model import Finding, FindingState
from frd.service.http.job_json import MOST_NODES
from frd.service.http.watching_json import NO_AGENT
from frd.service.http.web.past import MOST_ENDED

Json: TypeAlias = dict[str, Any]
_MAX_CELLS: Final = 8


class _Watching(msgspec.Struct):
    jobs: int
    ranks: int
    agents: int
    last_heard_s: float | None
    blind: list[str]


class _Warning(msgspec.Struct):
    job: str
    text: str


class _Line(msgspec.Struct):
    job: str
    attempt: int


class _Ended(msgspec.Struct):
    job: str
    at: str
    kind: str


class _Finding(msgspec.Struct):
    id: str
    job: str
    state: str
    opened_at: str


@decodable
class Jobs(msgspec.Struct):
    """What `merge_jobs` needs of an answer."""

    at: str
    jobs: list[_Line]
    watching: _Watching
    warnings: list[_Warning]
    ended: list[_Ended]


@decodable
class Findings(msgspec.Struct):
    """What `merge_findings` needs of an answer."""

    at: str
    findings: list[_Finding]
    watching: _Watching
    warnings: list[_Warning]


@decodable
class OneFinding(msgspec.Struct):
    job: str


class _Node(msgspec.Struct):
    node: str
    connected: bool
    reporting: bool
    clock_state: str


@decodable
class Health(msgspec.Struct):
    """What `merge_health` needs of an answer."""

    services: list[Json]
    node_counts: dict[str, int]
    nodes: list[_Node]
    more_nodes: int


@decodable
class Member(msgspec.Struct):
    """What `merge_cluster` needs of an answer."""

    replica: str
    replicas: list[Json]


@dataclass(frozen=True, slots=True)
class Heard:
    """The answer of one replica."""

    json: Json
    cells: frozenset[int] = frozenset()
    """The cells that it had when it answered."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What is asked for, and what the replica that merges knows itself."""

    own: Heard
    view: ClusterView
    incomplete: Sequence[str] = ()
    """Replicas that did not answer."""
    job: str | None = None
    """Only this job."""


def decode(body: bytes, form: type[msgspec.Struct]) -> Json:
    """The JSON of another replica, with all its keys. `form` is decodable.

    Raises:
        ValueError: it is not what `form` describes.
    """
    value = plain(body)
    msgspec.convert(value, form)
    return value


def plain(body: bytes) -> Json:
    """The JSON object of a replica.

    Raises:
        ValueError: `body` is something else.
    """
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError:
        value = json.loads(body)  # takes names that are not UTF-8, too
    return msgspec.convert(value, Json)


def merge_jobs(listing: Listing, others: Sequence[Heard]) -> Json:
    """The jobs of all replicas, by name."""
    by_name: dict[str, Json] = {}
    for heard in (listing.own, *others):
        for line in heard.json["jobs"]:
            known = by_name.get(line["job"])
            if known is None or known["attempt"] < line["attempt"]:
                by_name[line["job"]] = line
    said = [one for heard in (listing.own, *others) for one in heard.json.get("ended", ())]
    ended = {(one["job"], one["at"], one["kind"]): one for one in said}
    return {
        **_common(listing, others),
        "jobs": [by_name[name] for name in sorted(by_name)],
        "ended": sorted(ended.values(), key=lambda one: str(one["at"]), reverse=True)[:MOST_ENDED],
    }


def merge_findings(
    listing: Listing,
    others: Sequence[Heard],
    copies: Iterable[Finding],
    *,
    state: str | None,
    limit: int,
) -> Json:
    """Findings of all replicas, newest first. An open finding is shown as the owner of its cell
    has it. If that did not answer, the local copy of the last known version is shown; `copies` has
    those of open findings."""
    cells = listing.own.cells.union(*(heard.cells for heard in others))
    by_id: dict[str, Json] = {}
    if state != FindingState.CLOSED:
        stored = (shown_json(copy) for copy in copies)
        by_id = {one["id"]: one for one in stored if cell_of(one["job"]) not in cells}
        for heard in others:
            by_id |= {one["id"]: one for one in heard.json["findings"]}
    for one in listing.own.json["findings"]:
        cell = cell_of(one["job"])
        # The own list has copies of the findings of other replicas; only closed ones are final.
        if one["state"] == FindingState.CLOSED or cell in listing.own.cells:
            by_id[one["id"]] = one
        elif cell not in cells:
            by_id.setdefault(one["id"], one)
    found = sorted(by_id.values(), key=lambda one: str(one["id"]))
    found.sort(key=lambda one: str(one["opened_at"]), reverse=True)
    return {**_common(listing, others), "findings": found[:limit]}


def merge_health(own: Json, others: Sequence[Heard], incomplete: Sequence[str]) -> Json:
    """All replicas, and the worst of the nodes of all.

    An agent that several replicas list, because it has streams to all of them or has moved from one
    to another, is shown and counted once, as the replica with the best connection has it. Of more
    than `MOST_NODES` nodes, a replica lists only the worst. The others are known by number only:
    `more_nodes` and the counts may include such an agent once per replica.
    """
    parts = [own, *(heard.json for heard in others)]
    listed = sorted((node for part in parts for node in part["nodes"]), key=_wellness)
    best = _best(listed, [Counter(map(_agent, part["nodes"])) for part in parts])
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part["node_counts"])
    known = [*counts]
    counts.subtract(Counter(state for node in listed for state in _counted_as(node)))
    counts.update(Counter(state for node in best for state in _counted_as(node)))
    shown = best[:MOST_NODES]
    return {
        **own,
        "services": [service for part in parts for service in part["services"]],
        "node_counts": {state: max(counts[state], 0) for state in known},
        "nodes": shown,
        "more_nodes": sum(part["more_nodes"] for part in parts) + len(best) - len(shown),
        "incomplete": list(incomplete),
    }


def _best(listed: Sequence[Json], of_parts: Sequence[Counter[tuple[str, str]]]) -> list[Json]:
    """Of `listed`, the worst first, the last ones of each agent. A node may have several agents:
    as many as one replica lists."""
    most: Counter[tuple[str, str]] = Counter()
    for of_part in of_parts:
        most |= of_part
    found = []
    for node in reversed(listed):
        if most[_agent(node)] > 0:
            most[_agent(node)] -= 1
            found.append(node)
    return found[::-1]


def _agent(node: Json) -> tuple[str, str]:
    return node["node"], node.get("boot_id", "")


def _wellness(node: Json) -> tuple[bool, bool, bool]:
    """Smaller is worse."""
    return node["connected"], node["reporting"], node["clock_state"] == "synchronized"


def _counted_as(node: Json) -> Iterator[str]:
    """The keys of `node_counts` that count a node."""
    if not node["connected"]:
        yield "gone"
        return
    yield "connected" if node["reporting"] else "silent"
    if node["clock_state"] != "synchronized":
        yield "unsynchronized"


def merge_cluster(own: Json, others: Sequence[Heard], incomplete: Sequence[str]) -> Json:
    """Each replica knows best what it has not stored yet."""
    said = {}
    for heard in others:
        name = heard.json["replica"]
        said.update(
            {
                line["replica"]: line
                for line in heard.json["replicas"]
                if line.get("replica") == name
            }
        )
    keys = ("append_s", "unacked_bytes", "connected")
    replicas = [
        {**line, **{key: said[line["replica"]].get(key) for key in keys}}
        if line["replica"] in said
        else line
        for line in own["replicas"]
    ]
    return {**own, "replicas": replicas, "incomplete": list(incomplete)}


def _common(listing: Listing, others: Sequence[Heard]) -> Json:
    """What lists have in common."""
    answers = [listing.own.json, *(heard.json for heard in others)]
    warnings = {(one["job"], one["text"]): one for said in answers for one in said["warnings"]}
    served = listing.own.cells.union(*(heard.cells for heard in others))
    return {
        **listing.own.json,
        "at": max(said["at"] for said in answers),
        "watching": _watching(listing, [said["watching"] for said in answers], served),
        "warnings": list(warnings.values()),
        "incomplete": list(listing.incomplete),
    }


def _watching(listing: Listing, said: Sequence[Mapping[str, Any]], served: Collection[int]) -> Json:
    heard = [one["last_heard_s"] for one in said if one["last_heard_s"] is not None]
    merged = {key: sum(one[key] for one in said) for key in ("jobs", "ranks", "agents")}
    blind = [text for one in said for text in one["blind"]]
    blind += _unowned(listing, served)
    is_idle = not (merged["jobs"] or merged["agents"] or blind or listing.incomplete)
    if is_idle and listing.job is None:
        blind.append(NO_AGENT)
    return {
        **said[0],
        **merged,
        "last_heard_s": min(heard, default=None),
        "blind": list(dict.fromkeys(blind)),
    }


def _unowned(listing: Listing, served: Collection[int]) -> list[str]:
    """Cells that no replica has."""
    free = [cell for cell in range(CELLS) if cell not in listing.view.owners and cell not in served]
    if listing.job is not None:
        cell = cell_of(listing.job)
        return [f"{listing.job}: no replica has its cell {cell}: see frd status"] * (cell in free)
    if not free:
        return []
    some = ", ".join(map(str, free[:_MAX_CELLS])) + (", ..." if len(free) > _MAX_CELLS else "")
    noun = "cell has" if len(free) == 1 else "cells have"
    return [f"{len(free)} {noun} no owner ({some}), no replica watches their jobs: see frd status"]
