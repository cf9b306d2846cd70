"""The cells of this process, as one: what HTTP and metrics see, and where a request goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from operator import is_not
from typing import Any

from frd.cluster.cells import cell_of
from frd.engine.state.lazy import MadeOnce
from frd.engine.views import StatusView
from frd.errors import ServiceUnavailable
from frd.model import AlignedNs, AttemptKey, Finding
from frd.service.cells.cell import Cell
from frd.service.findings.people import Mark
from frd.service.journal.payloads import Dismissal
from frd.service.periodic import Faults
from frd.service.state import Counters, DumpResult, NodeView, ServiceState

WHOLE = 0
"""The number of the only cell of a service without a cluster."""


class Cells(dict[int, Cell]):
    """By number. `complete` adds what concerns the process as a whole to the cells' state;
    `dropped` gets the number of a cell that is dropped, and the cell."""

    def __init__(
        self,
        *,
        is_cluster: bool,
        complete: Callable[[ServiceState], ServiceState],
        dropped: Callable[[int, Cell], None] = lambda number, cell: None,
        is_sure: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_sure` is that of `Common`."""
        super().__init__()
        self.is_cluster = is_cluster
        self._complete = complete
        self._dropped = dropped
        self.is_sure = is_sure
        self._left = Counters()
        """Of cells that are no longer here. Totals of a process must not fall: Prometheus takes a
        fall for a restart, and the rest for new events."""
        self._merged = merge([])
        self._views: list[StatusView] = []
        """Of which `_merged` consists."""
        self.idle: Callable[[], Sequence[NodeView]] = tuple
        """Connected agents without a job, whose streams belong to no cell."""
        self.state = self._merged
        """What is published; replaced by `refresh`."""
        self._faults = Faults()

    def number_of(self, job: str) -> int:
        """The cell of a job, owned by this process or not."""
        return cell_of(job) if self.is_cluster else WHOLE

    def drop(self, number: int) -> Cell:
        """Remove a cell. What it has counted still counts, except by job."""
        cell = self.pop(number)
        counted = replace(cell.state.counters, findings={})
        of_engine = Counters(evicted=cell.state.status_view.evicted)
        self._left = add([self._left, counted, of_engine])
        self._dropped(number, cell)
        return cell

    def each(self, what: str, work: Callable[[Cell], None]) -> None:
        """Do `work` for each cell. A fault in one cell is logged, and concerns no other."""
        for number, cell in list(self.items()):
            with self._faults.logged(f"cell {number}: {what}"):
                work(cell)

    def refresh(self) -> None:
        """Publish what the cells have published since the last call."""
        states = [cell.state for cell in self.values()]
        views = [state.status_view for state in states]
        if len(views) != len(self._views) or any(map(is_not, views, self._views)):
            self._merged, self._views = merge(states), views
        merged = replace(self._merged, evaluated_at=evaluated_at(states))
        if idle := self.idle():
            with_jobs = merged.nodes
            merged = replace(merged, nodes=MadeOnce(lambda: nodes_of([*with_jobs, *idle])))
        counters = add([merged.counters, self._left])
        self.state = self._complete(replace(merged, counters=counters))

    def kept_back(self) -> list[Finding]:
        """Findings that are published but not stored. Any thread may call this."""
        return [finding for cell in list(self.values()) for finding in cell.evaluator.kept_back()]

    def is_asking(self, finding: Finding) -> bool:
        """A rank that was asked about this open finding has not answered; see `Outcome.asking`."""
        cell = self.get(self.number_of(finding.job))
        return cell is not None and finding.id in cell.evaluator.asking

    def is_unstored(self, finding: Finding) -> bool:
        """In a cluster: the last change of this finding is not stored yet. Alone, a message does
        not wait for the disk."""
        cell = self.get(self.number_of(finding.job)) if self.is_cluster else None
        return cell is not None and finding.id in cell.evaluator.unsaved

    async def dismiss(self, dismissal: Dismissal) -> Finding | None:
        """See `Evaluator.dismiss`."""
        for cell in list(self.values()):
            if any(f.id == dismissal.finding for f in cell.state.open_findings()):
                return await cell.evaluator.dismiss(dismissal)
        return None

    async def mark(self, finding: Finding, mark: Mark) -> Finding:
        """See `Evaluator.mark`."""
        return await self._cell_of(finding.job).evaluator.mark(finding, mark)

    async def take(
        self, key: AttemptKey, ranks: Sequence[int] | None, *, stacks: bool, timeout_s: float
    ) -> DumpResult:
        """See `Dumper.take`."""
        dumper = self._cell_of(key.job).dumper
        return await dumper.take(key, ranks, stacks=stacks, timeout_s=timeout_s)

    def _cell_of(self, job: str) -> Cell:
        if (cell := self.get(self.number_of(job))) is None:
            raise ServiceUnavailable(f"job: {job!r}: another replica has it now: try again")
        return cell


# -- the states of several cells as one ----------------------------------------------------------
# Jobs are in one cell each; agents that run several jobs may be in several.


def merge(states: Sequence[ServiceState]) -> ServiceState:
    """One state; without cells, an empty one."""
    if len(states) == 1:
        return states[0]
    views = [state.status_view for state in states]
    return ServiceState(
        status_view=StatusView(
            at=max((view.at for view in views), default=AlignedNs(0)),
            attempts=[attempt for view in views for attempt in view.attempts],
            findings=[finding for view in views for finding in view.findings],
            evicted=_sum(view.evicted for view in views),
            utc_ahead_ns=max(views, key=lambda view: view.at).utc_ahead_ns if views else 0,
            going_on=[finding for view in views for finding in view.going_on],
        ),
        nodes=nodes_of(node for state in states for node in state.nodes),
        counters=add([state.counters for state in states]),
        ingest_lag_s=max((state.ingest_lag_s for state in states), default=0.0),
        evaluated_at=evaluated_at(states),
        warnings=[warning for state in states for warning in state.warnings],
        refused_ranks=[one for state in states for one in state.refused_ranks],
        name_conflicts=_sum(state.name_conflicts for state in states),
    )


def evaluated_at(states: Sequence[ServiceState]) -> AlignedNs | None:
    """Since when all cells have been evaluated; None: one never was, or there is none."""
    return min((state.evaluated_at or AlignedNs(0) for state in states), default=None) or None


def add(counters: Sequence[Counters]) -> Counters:
    """Totals of several cells."""
    totals: dict[str, Any] = {}
    for one in fields(Counters):
        values = [getattr(counted, one.name) for counted in counters]
        is_number = one.type == "int"
        totals[one.name] = sum(values) if is_number else _sum(values)
    return Counters(**totals)


def _sum(counts: Iterable[Mapping[Any, int]]) -> dict[Any, int]:
    total = Counter[Any]()
    for one in counts:
        total.update(one)
    return dict(total)


def nodes_of(nodes: Iterable[NodeView]) -> tuple[NodeView, ...]:
    """An agent with several streams is one node."""
    merged: dict[tuple[str, str, str], NodeView] = {}
    for node in nodes:
        key = (node.node, node.boot_id, node.session)
        known = merged.get(key)
        if known is not None:
            node = replace(  # noqa: PLW2901  # the same node
                node,
                connected=node.connected or known.connected,
                reporting=node.reporting or known.reporting,
                last_message_at=max(node.last_message_at, known.last_message_at),
                ranks={**known.ranks, **node.ranks},
            )
        merged[key] = node
    return tuple(merged.values())
