"""The forms in which people and tools see the nouns of `frd.model`, the same everywhere.

JSON of a finding, sets of ranks, times: commands, HTTP, the store and reports all write them here,
so that there is one spelling of each.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from frd.model import (
    AlignedNs,
    CollectiveRef,
    Confidence,
    ExitInfo,
    ExitKind,
    Finding,
    FindingState,
    Kind,
    Reason,
    Severity,
    Suspect,
    Witness,
    WorkerStack,
)

REASONS: Final = {
    Reason.CPU_STUCK: "alive, but has not joined",
    Reason.EXITED: "its process exited",
    Reason.UNREACHABLE: "does not answer",
    Reason.IN_COLLECTIVE_ALONE: "still inside an op that the other ranks completed",
    Reason.DEVICE_STUCK: "joined, but its device has not started the op",
    Reason.MISMATCH: "joined with another op, size or dtype than the other ranks",
    Reason.ORDER: "entered its groups in another order",
    Reason.NETWORK_OR_DEVICE: "all ranks joined and none completes: network or devices",
    Reason.LATE: "comes late again and again",
    Reason.MEMORY: "its memory rose first",
}
"""What each reason means, for people."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST: Final = timedelta(days=100_000)


def utc_text(at: int) -> str:
    """ISO 8601 with microseconds and Z, from nanoseconds since the epoch."""
    seconds, rest = divmod(int(at), 1_000_000_000)
    stamp = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{stamp}.{rest // 1000:06d}Z"


def clock_text(at: int) -> str:
    """``10:02:11`` in UTC, for sentences, from nanoseconds since the epoch."""
    return datetime.fromtimestamp(int(at) // 1_000_000_000, UTC).strftime("%H:%M:%S")


def utc_ns(text: str) -> AlignedNs:
    """Nanoseconds since the epoch of any ISO 8601 date or time; without an offset it is UTC.

    Raises:
        ValueError: it is neither, or not of these centuries: 64 bits must hold it.
    """
    try:
        at = datetime.fromisoformat(text)
        whole = (at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH
        if abs(whole) > _MOST:
            raise ValueError("too far away")
    except (ValueError, OverflowError):
        raise ValueError(f"{text[:40]!r}: write a time such as 2026-11-20T10:00:00Z") from None
    return AlignedNs(whole // timedelta(microseconds=1) * 1000)


def bytes_text(count: float) -> str:
    """A size for people: ``87 B``, ``1.5 GiB``, ``240 MiB``."""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 999.5 or unit == "TiB":
            break
        size /= 1024
    digits = 1 if unit != "B" and size < 99.95 else 0
    return f"{size:.{digits}f} {unit}"


def signal_name(number: int) -> str:
    """``SIGKILL``; a number without a name is ``signal 40``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_text(how: ExitInfo) -> str:
    """How a process ended, for people: ``RuntimeError: bad batch (train.py:88 load_batch)``.
    Empty for a clean exit of which there is no more to say."""
    raised = f"{how.exception} ({how.where})" if how.where else how.exception
    killed = f"killed by {signal_name(how.signal)}" if how.signal and how.status is None else ""
    status = f"exited with status {how.status}" if how.status else ""
    if status and how.signal:
        status += f" (128 + {signal_name(how.signal)})"
    match how.kind:
        case ExitKind.CLEAN:
            words = f"exited with status 0 after it had printed {raised}" if raised else ""
        case ExitKind.EXCEPTION if killed:
            words = f"{raised}, then {killed}"
        case ExitKind.UNKNOWN:
            words = "no exit record, and its exit status is not known"
        case _:
            words = raised or killed or status
    return "; ".join(filter(None, (words, how.note)))


def span_text(ns: int) -> str:
    """``120 µs``, ``3.1 ms``, ``2.5 s``: two figures are enough of an uncertainty."""
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000)):
        if ns >= size:
            return f"{ns / size:.1f} {unit}" if ns < 10 * size else f"{ns / size:,.0f} {unit}"
    return f"{ns} ns"


def duration_text(seconds: float) -> str:
    """A duration as people say it: ``0.4 s``, ``34 s``, ``3 min``, ``2 h 5 min``, ``3 d 4 h``."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def fold_ranks(ranks: Iterable[int]) -> str:
    """Rank set for people: ``0-11,13,15``."""
    parts: list[str] = []
    start = previous = None
    for rank in [*sorted(set(ranks)), None]:
        if previous is not None and rank == previous + 1:
            previous = rank
            continue
        if start is not None:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
        start = previous = rank
    return ",".join(parts)


def unfold_ranks(text: str) -> tuple[int, ...]:
    """The inverse of `fold_ranks`.

    Raises:
        ValueError: when a part is neither a rank nor a range.
    """
    ranks: set[int] = set()
    budget = 1_000_000
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(part) > 20:
            raise ValueError(f"ranks: {part.strip()[:20]!r}: write ranks and ranges such as 0-3,7")
        low, high = int(first), int(last or first)
        if high < low:
            raise ValueError(f"ranks: {part.strip()!r}: the range must run upwards")
        budget -= high - low + 1
        if budget < 0:
            raise ValueError(f"ranks: {part.strip()!r}: more than a million ranks: ask for fewer")
        ranks.update(range(low, high + 1))
    return tuple(sorted(ranks))


def finding_json(finding: Finding) -> dict[str, Any]:
    """The JSON object of INTERFACES.md, the same everywhere; keys without a value are left out."""
    out: dict[str, Any] = {
        "id": finding.id,
        "kind": finding.kind.value,
        "state": finding.state.value,
        "job": finding.job,
        "attempt": finding.attempt,
        "opened_at": utc_text(finding.opened_at),
        "closed_at": utc_text(finding.closed_at) if finding.closed_at is not None else None,
    }
    if finding.severity is not None:
        out["severity"] = finding.severity.value
    if finding.critical_at is not None:
        out["critical_at"] = utc_text(finding.critical_at)
    if (c := finding.collective) is not None:
        out["collective"] = {
            "group": c.group,
            "group_id": c.group_id,
            "group_size": c.group_size,
            "seq": c.seq,
            "op": c.op,
            "waiting_ranks": list(c.waiting_ranks),
            "missing_ranks": list(c.missing_ranks),
            "waiting_s": round(c.waited_s, 3),
        }
    if finding.reason is not None:
        out["reason"] = finding.reason.value
    if finding.groups_held_up:
        out["groups_held_up"] = list(finding.groups_held_up)
    out["suspects"] = [_suspect_json(suspect) for suspect in finding.suspects]
    out["victims"] = list(finding.victims)
    if finding.unknown:
        out["unknown_ranks"] = list(finding.unknown)
    if finding.disagreement:
        out["disagreement"] = finding.disagreement
    if finding.witness is not None:
        out["witness"] = {"rank": finding.witness.rank, "stack": list(finding.witness.stack)}
    if finding.lost_s is not None:
        out["lost_s"] = round(finding.lost_s, 3)
    if finding.dump is not None:
        out["dump"] = finding.dump
    if finding.ended_by:
        out["ended_by"] = finding.ended_by
    if finding.close_reason:
        out["close_reason"] = finding.close_reason
    out["summary"] = finding.summary
    return out


def _suspect_json(suspect: Suspect) -> dict[str, Any]:
    out: dict[str, Any] = {
        "rank": suspect.rank,
        "node": suspect.node,
        "reason": suspect.reason.value,
        "confidence": suspect.confidence.value,
        "evidence": suspect.evidence,
        "stack": list(suspect.stack),
    }
    if suspect.inside:
        out["inside"] = suspect.inside
    if suspect.doing:
        out["doing"] = suspect.doing
    if suspect.workers:
        out["workers"] = [_worker_json(worker) for worker in suspect.workers]
    if suspect.onset_at is not None:
        out["onset_at"] = utc_text(suspect.onset_at)
    if suspect.onset_uncertainty_s is not None:
        out["onset_uncertainty_s"] = round(suspect.onset_uncertainty_s, 6)
    if suspect.tied:
        out["tied"] = True
    return out


def _worker_json(worker: WorkerStack) -> dict[str, Any]:
    out: dict[str, Any] = {"pid": worker.pid, "name": worker.name, "stack": list(worker.stack)}
    if worker.inside:
        out["inside"] = worker.inside
    if worker.doing:
        out["doing"] = worker.doing
    if worker.usage:
        out["usage"] = worker.usage
    return out


def _ns(text: str) -> AlignedNs:
    whole, _, fraction = text.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return AlignedNs(seconds * 1_000_000_000 + int((fraction or "0").ljust(9, "0")[:9]))


def _suspect_from_json(data: dict[str, Any]) -> Suspect:
    return Suspect(
        rank=data["rank"],
        node=data["node"],
        reason=Reason(data["reason"]),
        confidence=Confidence(data["confidence"]),
        evidence=data["evidence"],
        stack=tuple(data.get("stack", ())),
        inside=data.get("inside", ""),
        doing=data.get("doing", ""),
        workers=tuple(
            WorkerStack(
                pid=worker["pid"],
                name=worker["name"],
                stack=tuple(worker.get("stack", ())),
                inside=worker.get("inside", ""),
                doing=worker.get("doing", ""),
                usage=worker.get("usage", ""),
            )
            for worker in data.get("workers", ())
        ),
        onset_at=_ns(data["onset_at"]) if data.get("onset_at") else None,
        onset_uncertainty_s=data.get("onset_uncertainty_s"),
        tied=data.get("tied", False),
    )


def finding_from_json(data: dict[str, Any]) -> Finding:
    """The inverse of `finding_json` (to the microsecond); used by the store.

    Raises:
        KeyError, ValueError: when `data` is not such an object.
    """
    c = data.get("collective")
    return Finding(
        id=data["id"],
        kind=Kind(data["kind"]),
        state=FindingState(data["state"]),
        job=data["job"],
        attempt=data["attempt"],
        opened_at=_ns(data["opened_at"]),
        closed_at=_ns(data["closed_at"]) if data.get("closed_at") else None,
        collective=None
        if c is None
        else CollectiveRef(
            group=c["group"],
            group_id=c["group_id"],
            group_size=c["group_size"],
            seq=c["seq"],
            op=c["op"],
            waiting_ranks=tuple(c["waiting_ranks"]),
            missing_ranks=tuple(c["missing_ranks"]),
            waited_s=c["waiting_s"],
        ),
        reason=Reason(data["reason"]) if data.get("reason") else None,
        groups_held_up=tuple(data.get("groups_held_up", ())),
        suspects=tuple(_suspect_from_json(suspect) for suspect in data.get("suspects", ())),
        victims=tuple(data.get("victims", ())),
        unknown=tuple(data.get("unknown_ranks", ())),
        disagreement=data.get("disagreement", ""),
        witness=Witness(data["witness"]["rank"], tuple(data["witness"]["stack"]))
        if data.get("witness")
        else None,
        lost_s=data.get("lost_s"),
        dump=data.get("dump"),
        severity=Severity(data["severity"]) if data.get("severity") else None,
        critical_at=_ns(data["critical_at"]) if data.get("critical_at") else None,
        ended_by=data.get("ended_by", ""),
        close_reason=data.get("close_reason", ""),
        summary=data.get("summary", ""),
    )
