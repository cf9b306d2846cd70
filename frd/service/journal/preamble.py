"""What a reader must know to begin in the middle of a log.

The live streams, as they declared themselves, how their times are aligned, the learned pauses, and
the findings with which the next owner of a cell goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from frd.model import AlignedNs, Finding, FindingState
from frd.service.journal.payloads import decode_finding, encode_finding
from frd.store.records import Record, RecordKind


class Preamble:
    """Sees all records of a log in order."""

    def __init__(self) -> None:
        self._live: dict[int, list[Record]] = {}
        self._aligned: dict[int, Record] = {}
        """The last alignment of each stream."""
        self._learned: Record | None = None

    @property
    def streams(self) -> frozenset[int]:
        """Live streams."""
        return frozenset(self._live)

    def see(self, record: Record, *, declares: bool) -> None:
        """`declares`: later records of its stream depend on it."""
        if declares:
            self._live.setdefault(record.stream, []).append(record)
        elif record.kind is RecordKind.ALIGNED:
            self._aligned[record.stream] = record
        elif record.kind is RecordKind.LEARNED:
            self._learned = record
        elif record.kind is RecordKind.CLOSED:
            self._live.pop(record.stream, None)
            self._aligned.pop(record.stream, None)

    def forget_streams(self) -> None:
        """The log has lost them."""
        self._live.clear()
        self._aligned.clear()

    def records(self) -> Iterator[Record]:
        """Those of what is live, without START."""
        if self._learned is not None:
            yield self._learned
        for records in self._live.values():
            yield from records
        yield from self._aligned.values()


class KeptFindings:
    """Sees all versions of findings in order. `findings` are open or dismissed, and `unshared` are
    closed and not known to all replicas, both as the last owner left them at `now`."""

    def __init__(
        self,
        now: AlignedNs,
        findings: Sequence[Finding] = (),
        unshared: Sequence[Finding] = (),
    ) -> None:
        self._dismissed = frozenset(f.id for f in findings if f.state is FindingState.CLOSED)
        self._restored = {f.id: self._to_restore(f, now) for f in findings}
        """Those with which the next owner must go on, by id."""
        self._unshared = {f.id: _version(f, now) for f in unshared}
        """Closed ones that the next owner must share, by id."""

    def see(self, finding: Finding, at: AlignedNs) -> Record:
        """Returns the record of this version."""
        restored = self._to_restore(finding, at)
        if finding.state is FindingState.OPEN or finding.id in self._dismissed:
            self._restored[finding.id] = restored
        else:
            self._restored.pop(finding.id, None)
        if finding.state is FindingState.CLOSED:
            self._unshared[finding.id] = _version(finding, at)
        else:
            self._unshared.pop(finding.id, None)
        return Record(RecordKind.FINDING, at, 0, restored.payload)

    def shared(self, finding: Finding) -> None:
        """All replicas know that it is closed, and what has been said of it up to this version."""
        known = self._unshared.get(finding.id)
        if known is not None and known.payload == encode_finding(finding):
            del self._unshared[finding.id]

    def keep_dismissed(self, ids: Collection[str], at: AlignedNs) -> list[Record]:
        """See `Log`. Returns records of those that were dismissed and are over now."""
        over, self._dismissed = self._dismissed.difference(ids), frozenset(ids)
        known = [self._restored.pop(id_) for id_ in over if id_ in self._restored]
        ended = (replace(decode_finding(one.payload), goes_on=False) for one in known)
        return [_version(finding, at) for finding in ended]

    def records(self) -> list[Record]:
        """Of one that is in both, the last record counts."""
        return [*self._unshared.values(), *self._restored.values()]

    def _to_restore(self, finding: Finding, at: AlignedNs) -> Record:
        is_dismissed = finding.id in self._dismissed and finding.state is FindingState.CLOSED
        payload = encode_finding(finding, is_dismissed=is_dismissed)
        return Record(RecordKind.RESTORED, at, 0, payload)


def _version(finding: Finding, at: AlignedNs) -> Record:
    """For readers only: a replay finds its own."""
    return Record(RecordKind.FINDING, at, 0, encode_finding(finding))
