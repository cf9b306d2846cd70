"""One answer of the answers of several replicas: pure functions over their JSON.

Keys that this release does not know stay. An answer without the known ones is refused, so that a
replica that answers nonsense counts as one that did not answer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from frd.cluster.cells import CELLS, cell_of
from frd.cluster.lease import ClusterView
from frd.decodable import decodable
from frd.do_now import shown_json
from frd.model import Finding, FindingState
from frd.service.http.job_json import MOST_NODES, badness, counted_as
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


class _List(msgspec.Struct, kw_only=True):
    at: str
    watching: _Watching
    warnings: list[_Warning]


@decodable
class Jobs(_List, kw_only=True):
    """What `merge_jobs` needs of an answer."""

    jobs: list[_Line]
    ended: list[_Ended]


@decodable
class Findings(_List, kw_only=True):
    """What `merge_findings` needs of an answer."""

    findings: list[_Finding]


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
    """The cells that it had when it answered, and that no other replica can have had."""
    is_sure: bool = True


@dataclass(frozen=True, slots=True)
class Gathered:
    """The answers of all replicas, that of the one that merges first."""

    own: Heard
    others: Sequence[Heard] = ()
    incomplete: Sequence[str] = ()
    """Replicas that did not answer, or are not sure of what they have."""
    view: ClusterView = field(default_factory=ClusterView)
    job: str | None = None
    """Only this job."""

    @property
    def parts(self) -> list[Json]:
        return [self.own.json, *(heard.json for heard in self.others)]

    @property
    def cells(self) -> frozenset[int]:
        """Of all that have answered."""
        return self.own.cells.union(*(heard.cells for heard in self.others))


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


def merge_jobs(of: Gathered) -> Json:
    """The jobs of all replicas, by name."""
    by_name: dict[str, Json] = {}
    for line in (line for part in of.parts for line in part["jobs"]):
        known = by_name.get(line["job"])
        if known is None or known["attempt"] < line["attempt"]:
            by_name[line["job"]] = line
    said = [one for part in of.parts for one in part.get("ended", ())]
    ended = {(one["job"], one["at"], one["kind"]): one for one in said}
    return {
        **_common(of),
        "jobs": [by_name[name] for name in sorted(by_name)],
        "ended": sorted(ended.values(), key=lambda one: str(one["at"]), reverse=True)[:MOST_ENDED],
    }


def merge_findings(
    of: Gathered, *, copies: Callable[[], Iterable[Finding]], state: str | None, limit: int
) -> Json:
    """Findings of all replicas, newest first. An open finding is shown as the owner of its cell
    has it. If that did not answer, the local copy of the last known version is shown; `copies` has
    those of open findings."""
    cells = of.cells
    by_id: dict[str, Json] = {}
    if state != FindingState.CLOSED:
        stored = (shown_json(copy) for copy in copies())
        by_id = {one["id"]: one for one in stored if cell_of(one["job"]) not in cells}
        for heard in of.others:
            by_id |= {one["id"]: one for one in heard.json["findings"]}
    for one in of.own.json["findings"]:
        cell = cell_of(one["job"])
        # The own list has copies of the findings of other replicas; only closed ones are final.
        if one["state"] == FindingState.CLOSED or cell in of.own.cells:
            by_id[one["id"]] = one
        elif cell not in cells:
            by_id.setdefault(one["id"], one)
    found = sorted(by_id.values(), key=lambda one: str(one["id"]))
    found.sort(key=lambda one: str(one["opened_at"]), reverse=True)
    return {**_common(of), "findings": found[:limit]}


def merge_health(of: Gathered) -> Json:
    """All replicas, and the worst of the nodes of all.

    An agent that several replicas list, because it has streams to all of them or has moved from one
    to another, is shown and counted once, as the replica with the best connection has it. Of more
    than `MOST_NODES` nodes, a replica lists only the worst. The others are known by number only:
    `more_nodes` and the counts may include such an agent once per replica.
    """
    parts = of.parts
    listed = sorted((node for part in parts for node in part["nodes"]), key=badness)
    best = sorted({_agent(node): node for node in listed}.values(), key=badness)
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part["node_counts"])
    known = [*counts]
    counts.subtract(Counter(state for node in listed for state in counted_as(node)))
    counts.update(Counter(state for node in best for state in counted_as(node)))
    shown = best[:MOST_NODES]
    return {
        **of.own.json,
        "services": [service for part in parts for service in part["services"]],
        "node_counts": {state: max(counts[state], 0) for state in known},
        "nodes": shown,
        "more_nodes": sum(part["more_nodes"] for part in parts) + len(best) - len(shown),
        "incomplete": list(of.incomplete),
    }


def _agent(node: Json) -> tuple[str, ...]:
    """See `frd.service.cells.cells.nodes_of`; a replica of an older release has no session."""
    return node["node"], node.get("boot_id", ""), node.get("session", "")


def merge_cluster(of: Gathered) -> Json:
    """Each replica knows best whether NATS answers it, and whether it is sure."""
    said = {
        line["replica"]: {key: line.get(key) for key in ("connected", "sure")}
        for heard in of.others
        for line in heard.json["replicas"]
        if line.get("replica") == heard.json["replica"]
    }
    replicas = [{**line, **said.get(line["replica"], {})} for line in of.own.json["replicas"]]
    return {**of.own.json, "replicas": replicas, "incomplete": list(of.incomplete)}


def _common(of: Gathered) -> Json:
    """What lists have in common."""
    parts = of.parts
    warnings = {(one["job"], one["text"]): one for part in parts for one in part["warnings"]}
    return {
        **of.own.json,
        "at": max(part["at"] for part in parts),
        "watching": _watching(of, [part["watching"] for part in parts]),
        "warnings": list(warnings.values()),
        "incomplete": list(of.incomplete),
    }


def _watching(of: Gathered, said: Sequence[Mapping[str, Any]]) -> Json:
    heard = [one["last_heard_s"] for one in said if one["last_heard_s"] is not None]
    merged = {key: sum(one[key] for one in said) for key in ("jobs", "ranks", "agents")}
    blind = [text for one in said for text in one["blind"]]
    blind += _unowned(of)
    is_idle = not (merged["jobs"] or merged["agents"] or blind or of.incomplete)
    if is_idle and of.job is None:
        blind.append(NO_AGENT)
    return {
        **said[0],
        **merged,
        "last_heard_s": min(heard, default=None),
        "blind": list(dict.fromkeys(blind)),
    }


def _unowned(of: Gathered) -> list[str]:
    """Cells that no replica has."""
    has = {*of.view.owners, *of.cells}
    free = [cell for cell in range(CELLS) if cell not in has]
    if of.job is not None:
        cell = cell_of(of.job)
        return [f"{of.job}: no replica has its cell {cell}: see frd status"] * (cell in free)
    if not free:
        return []
    some = ", ".join(map(str, free[:_MAX_CELLS])) + (", ..." if len(free) > _MAX_CELLS else "")
    noun = "cell has" if len(free) == 1 else "cells have"
    return [f"{len(free)} {noun} no owner ({some}), no replica watches their jobs: see frd status"]
