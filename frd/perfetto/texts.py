"""How ranks and findings are shown in a trace, whatever it is made from."""

from __future__ import annotations

from frd.forms import fold_ranks
from frd.model import Finding
from frd.perfetto.writer import Slice


def rank_title(rank: int, node: str, *, is_cause: bool) -> str:
    """Of the track of a rank; `node` may be unknown."""
    on = f" on {node}" if node else ""
    return f"rank {rank}{on}{' (first cause)' if is_cause else ''}"


def finding_slice(finding: Finding) -> Slice:
    evidence = "; ".join(f"rank {s.rank}: {s.evidence}" for s in finding.suspects)
    texts = {"evidence": evidence, "victims": fold_ranks(finding.victims)}
    return Slice(finding.summary, "finding", texts=texts)
