"""The cells of this process, as one: what HTTP and metrics see, and where a request goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import is_not

from frd.cluster.cells import cell_of
from frd.engine.state.lazy import MadeOnce
from frd.engine.views import StatusView
from frd.errors import ServiceUnavailable
from frd.model import AttemptKey, Finding
from frd.service.cells.cell import Cell
from frd.service.cells.merged import add, evaluated_at, merge, nodes_of
from frd.service.findings.people import Mark
from frd.service.journal.payloads import Dismissal
from frd.service.periodic import Faults
from frd.service.state import Counters, DumpResult, NodeView, ServiceState

WHOLE = 0
"""The number of the only cell of a service without a cluster."""


class Cells(dict[int, Cell]):
    """By number. `complete` adds what concerns the process as a whole to the cells' state;
    `dropped` gets the open findings of a cell that is dropped."""

    def __init__(
        self,
        *,
        is_cluster: bool,
        complete: Callable[[ServiceState], ServiceState],
        dropped: Callable[[Sequence[Finding]], None] = lambda findings: None,
    ) -> None:
        super().__init__()
        self.is_cluster = is_cluster
        self._complete = complete
        self._dropped = dropped
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
        self._dropped(cell.state.open_findings())
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
