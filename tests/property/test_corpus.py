"""Generated incidents, and the findings that each of them must give: a thousand in `make sim`.

Worlds are small except for a few of up to 1,024 ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from frd.model import Confidence, Reason
from frd.offline.analysis.analyze import Analysis, analyze
from tests import corpus
from tests.corpus import Fault, Job, Truth
from tests.frozen.sources import LARGE
from tests.world.seeds import ALL

SEEDS = 1_000 if ALL else 200
pytestmark = pytest.mark.xdist_group("corpus")  # `make sim`: one worker generates it once
REASONS = {
    Fault.CPU_STUCK: Reason.CPU_STUCK,
    Fault.ALONE: Reason.IN_COLLECTIVE_ALONE,
    Fault.DEVICE: Reason.DEVICE_STUCK,
    Fault.SIZE: Reason.MISMATCH,
    Fault.OP: Reason.MISMATCH,
    Fault.ORDER: Reason.ORDER,
}


@dataclass(frozen=True)
class Outcome:
    job: Job
    truth: Truth
    analysis: Analysis

    @property
    def named(self) -> set[int]:
        return {s.rank for finding in self.analysis.findings for s in finding.suspects}

    @property
    def is_exact(self) -> bool:
        """All first causes and no other rank are named, each for the injected fault."""
        if not self.truth.named <= self.named <= self.truth.tolerated:
            return False
        findings = self.analysis.findings
        reasons = {s.rank: s.reason for f in findings for s in f.suspects}
        if [one.fault for one in self.truth.came] == [Fault.NETWORK]:
            return any(finding.reason is Reason.NETWORK_OR_DEVICE for finding in findings)
        return all(
            reasons[one.rank] is REASONS[one.fault]
            for one in self.truth.came
            if one.rank in self.truth.named
        )

    def __str__(self) -> str:
        faults = [(one.fault.name, one.rank) for one in self.job.faults]
        return f"seed {self.job.seed}: {faults}, named {sorted(self.named)}, {self.truth}"


def outcome(seed: int) -> Outcome:
    job = corpus.job(seed, LARGE.get(seed))
    corpus.run(job)
    return Outcome(job, corpus.truth(job), analyze(corpus.trace(job)))


@pytest.fixture(scope="module")
def outcomes() -> Sequence[Outcome]:
    return [outcome(seed) for seed in range(SEEDS)]


def listed(outcomes: Sequence[Outcome]) -> str:
    return "\n".join(map(str, outcomes))


def test_first_causes_are_exact(outcomes: Sequence[Outcome]) -> None:
    """If the dumps decide it, exactly the injected ranks are named, for the right reason."""
    decidable = [one for one in outcomes if one.truth.decidable]
    wrong = [one for one in decidable if not one.is_exact]
    assert len(decidable) > SEEDS * 0.7
    assert len(wrong) <= len(decidable) * 0.01, listed(wrong)


def test_no_healthy_rank_is_named_with_certainty(outcomes: Sequence[Outcome]) -> None:
    """In every job, only ranks with an injected fault are named with high confidence."""
    wrong = [
        one
        for one in outcomes
        for finding in one.analysis.findings
        for suspect in finding.suspects
        if suspect.confidence is Confidence.HIGH and suspect.rank not in one.truth.tolerated
    ]
    assert not wrong, listed(wrong)


def test_a_hang_is_found_and_health_is_reported(outcomes: Sequence[Outcome]) -> None:
    """Jobs that hang have a finding; jobs that ended well have none, and the summary says so."""
    wrong = [one for one in outcomes if one.analysis.fault is not one.truth.stuck]
    assert not wrong, listed(wrong)
    well = [one for one in outcomes if not one.truth.stuck]
    assert len(well) > SEEDS * 0.03
    assert all("no communication fault" in one.analysis.summary for one in well)


def test_a_rank_without_a_dump_is_never_named(outcomes: Sequence[Outcome]) -> None:
    """Missing files make ranks unknown; a finding that they could explain lists them."""
    for one in outcomes:
        assert not one.named & one.job.missing, str(one)
        assert set(one.analysis.missing_ranks) == one.job.missing
    blamed = [one for one in outcomes if {f.rank for f in one.job.faults} & one.job.missing]
    assert any(set(f.unknown) & one.job.missing for one in blamed for f in one.analysis.findings)


def test_every_fault_is_in_the_corpus_alone_and_in_pairs(outcomes: Sequence[Outcome]) -> None:
    """The corpus does not shrink to the easy cases."""
    for fault in Fault:
        alone = [one for one in outcomes if [f.fault for f in one.job.faults] == [fault]]
        paired = [one for one in outcomes if fault in [f.fault for f in one.job.faults[:2]]]
        assert len(alone) >= SEEDS // 40, fault
        assert len(paired) > len(alone), fault
    assert max(one.job.world for one in outcomes) == max(LARGE.values())
