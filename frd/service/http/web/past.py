"""What was: jobs and findings that ended in the last day, and earlier findings like one.

From the store, which outlives jobs; while it cannot be read, what was is left out. `Past` reads the
disk: use it in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from frd.errors import StoreError
from frd.forms import utc_text
from frd.model import Finding, FindingState, Reason
from frd.service.state import ServiceState
from frd.service.view import ServiceView

Json: TypeAlias = dict[str, Any]
MOST_ENDED: Final = 20
_DAY_NS: Final = 24 * 3600 * 1_000_000_000
_AGAIN_S: Final = 10.0
"""How old the list may be if no finding of this replica has opened or closed: other replicas store
findings, too."""
_MOST_BEFORE: Final = 200
"""Earlier findings that are looked at."""


class Past:
    def __init__(self, view: ServiceView) -> None:
        self._view = view
        self._closed: Sequence[Json] = ()
        self._as_of: tuple[float, frozenset[str]] | None = None
        """When `_closed` was read, and which findings lasted then."""

    def ended(self, state: ServiceState) -> list[Json]:
        """The newest jobs that failed and findings that closed within a day, newest first.
        A finding that explains a failure is in that entry."""
        closed = {one["finding"]: one for one in self._recent(state)}
        failed = [
            {
                "job": view.key.job,
                "at": utc_text(view.failure.at),
                "text": closed.pop(view.failure.finding, {}).get("text") or view.failure.text,
                "finding": view.failure.finding or None,
                "kind": "failed",
            }
            for view in state.latest_attempts().values()
            if view.failure is not None
        ]
        found = [*failed, *closed.values()]
        return sorted(found, key=lambda one: str(one["at"]), reverse=True)[:MOST_ENDED]

    def _recent(self, state: ServiceState) -> Sequence[Json]:
        """The store is asked when something has changed, not for each viewer and second."""
        now, lasting = time.monotonic(), frozenset(one.id for one in state.lasting_findings())
        known = self._as_of
        if known is None or known[1] != lasting or now - known[0] > _AGAIN_S:
            since = state.utc(state.status_view.at) - _DAY_NS
            try:
                newest = self._view.findings(state=FindingState.CLOSED, job=None, limit=MOST_ENDED)
            except StoreError:
                return self._closed
            self._closed = [
                {
                    "job": one.job,
                    "at": utc_text(one.closed_at),
                    "text": one.headline,
                    "finding": one.id,
                    "kind": one.kind.value,
                }
                for one in newest
                if one.closed_at is not None and one.closed_at >= since and not one.goes_on
            ]
            self._as_of = now, lasting
        return self._closed

    def before(self, finding: Finding) -> Json | None:
        """How often the job had a finding of this kind and reason before; None for never."""
        try:
            earlier = self._view.store.query(
                job=finding.job, kind=finding.kind, until=finding.opened_at, limit=_MOST_BEFORE
            )
        except StoreError:
            return None
        alike = [one for one in earlier if _reason(one) is _reason(finding)]
        if not alike:
            return None
        found: Json = {"times": len(alike), "last_at": utc_text(alike[0].opened_at)}
        if finding.suspects and (node := finding.suspects[0].node):
            there = sum(any(s.node == node for s in one.suspects) for one in alike)
            found |= {"node": node, "node_times": there}
        return found


def _reason(finding: Finding) -> Reason | None:
    return finding.suspects[0].reason if finding.suspects else finding.reason
