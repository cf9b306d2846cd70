"""Texts for people: one printable line each, whatever a job calls its things."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frd.engine.findings.builder import listed
from frd.engine.findings.text import clean, place, summarize
from frd.model import (
    AlignedNs,
    CollectiveRef,
    Confidence,
    Finding,
    FindingState,
    Kind,
    Reason,
    Suspect,
)

REF = CollectiveRef("dp", "0123456789abcdef", 4, 7, "all_reduce", (0, 1, 3), (2,), 12.44)
STALL = Finding(
    "00112233445566aa", Kind.STALL, FindingState.OPEN, "job", 0, AlignedNs(1), collective=REF
)


WAITED = "all_reduce #7 on dp has waited 12.4 s"


def stall(*suspects: Suspect, **fields: object) -> Finding:
    return replace(STALL, suspects=suspects, **fields)  # type: ignore[arg-type]  # by name


def suspect(
    rank: int, reason: Reason, *stack: str, evidence: str = "seen", doing: str = ""
) -> Suspect:
    return Suspect(rank, "node", reason, Confidence.HIGH, evidence, stack, doing=doing)


def stuck(rank: int, *stack: str, doing: str = "") -> Suspect:
    return suspect(rank, Reason.CPU_STUCK, *stack, doing=doing)


@pytest.mark.parametrize(
    ("frame", "place_text"),
    [
        ("train.py:88 in load_batch", "train.py:88 load_batch"),
        ("/srv/app/train.py:88 load_batch", "train.py:88 load_batch"),
        ("C:\\job\\train.py:88 in load_batch", "train.py:88 load_batch"),
        ("run.py:??? in <module>", "run.py:??? <module>"),
        ("no frame at all", "no frame at all"),
    ],
)
def test_the_place_that_a_frame_names(frame: str, place_text: str) -> None:
    """Folders are left out; what is no frame is shown as it is."""
    assert place(frame) == place_text


def test_nothing_unprintable_passes() -> None:
    """Control characters, terminal escapes, direction overrides and surrogates are replaced."""
    cleaned = clean("a\x00b\x1b[31mc\u202ed\udcffe\nf\tg")
    assert cleaned == "a\ufffdb\ufffd[31mc\ufffdd\ufffde f g"
    assert clean("x" * 1000).endswith("…")
    assert len(clean("x" * 1000)) == 300


@pytest.mark.parametrize(
    ("finding", "summary"),
    [
        (
            stall(suspect(2, Reason.EXITED), victims=(0, 1, 3), groups_held_up=("dp", "tp")),
            f"{WAITED} for rank 2 (its process exited); 3 other ranks wait, 2 groups are held up",
        ),
        (
            stall(stuck(2, "a.py:1 in f"), suspect(5, Reason.EXITED)),
            f"{WAITED} for rank 2 (a.py:1 f), rank 5 (its process exited)",
        ),
        (stall(*map(stuck, range(8, 16))), f"{WAITED} for ranks 8-15"),
        (
            stall(suspect(0, Reason.IN_COLLECTIVE_ALONE)),
            f"{WAITED} for rank 0, still inside an op that the other ranks completed",
        ),
        (
            stall(suspect(0, Reason.DEVICE_STUCK)),
            f"{WAITED} for the device of rank 0, which has not started it",
        ),
        (
            stall(suspect(2, Reason.EXITED), collective=None),
            "the job waits for rank 2 (its process exited)",
        ),
        (
            stall(suspect(2, Reason.MISMATCH), suspect(5, Reason.MISMATCH)),
            f"{WAITED}: ranks 2,5 joined with another op, size or type than the other ranks",
        ),
        (
            stall(reason=Reason.NETWORK_OR_DEVICE),
            f"{WAITED} although all of its ranks have joined: "
            "no single rank is the cause, check the network and the devices",
        ),
        (
            stall(reason=Reason.NETWORK_OR_DEVICE, disagreement="rank 1 has, 0 has not"),
            f"{WAITED} although all of its ranks have joined: rank 1 has, 0 has not",
        ),
        (
            stall(unknown=(2,)),
            f"{WAITED}; the cause may be rank 2, "
            "whose telemetry is missing or late: check the agents (frd status)",
        ),
        (
            stall(suspect(0, Reason.ORDER), suspect(1, Reason.ORDER), kind=Kind.ORDER),
            "ranks 0-1 entered their groups in different orders, and they wait for each other: "
            + WAITED,
        ),
        (
            stall(stuck(2, "train.py:88 in save", doing="saving a checkpoint")),
            f"{WAITED} for rank 2, which is saving a checkpoint (train.py:88 save)",
        ),
        (
            stall(stuck(2, "t.py:8 in main", doing="waits for its DataLoader worker pid 7: d.py")),
            f"{WAITED} for rank 2, which waits for its DataLoader worker pid 7: d.py",
        ),
        (
            stall(
                stuck(
                    2,
                    "threading.py:1590 in _shutdown",
                    doing="the program has ended, a non-daemon thread keeps it alive: log.py:8 run",
                )
            ),
            f"{WAITED} for rank 2, where the program has ended, "
            "a non-daemon thread keeps it alive: log.py:8 run",
        ),
        (
            stall(stuck(2, "a.py:1 in f", doing="compiling"), stuck(5)),
            f"{WAITED} for rank 2 (compiling, a.py:1 f), rank 5 (alive, but has not joined)",
        ),
        (
            stall(
                suspect(2, Reason.MISMATCH, "t.py:3 in g", evidence="passed barrier"),
                kind=Kind.MISMATCH,
                victims=(0, 1, 3),
            ),
            "rank 2 (t.py:3 g) joined with another op, size or type than the other ranks; "
            f"rank 2 is at t.py:3 g; {WAITED}",
        ),
        (
            stall(
                suspect(2, Reason.MISMATCH, "t.py:3 in g"),
                kind=Kind.MISMATCH,
                collective=replace(REF, waiting_ranks=()),
                disagreement="rank 2 passed float16 where rank 0 passed float32 to all_reduce #7",
            ),
            "rank 2 passed float16 where rank 0 passed float32 to all_reduce #7; "
            "rank 2 is at t.py:3 g",
        ),
    ],
)
def test_summaries(finding: Finding, summary: str) -> None:
    """One line for each kind of finding: what waits, how long, for which rank, and where it is."""
    assert summarize(finding) == summary


def test_a_group_of_unknown_members_may_wait_for_another_job() -> None:
    """All ranks of the job have joined, and the group has members that are not of the job: neither
    the network nor a device is blamed."""
    ref = replace(REF, group_size=0, missing_ranks=())
    summary = summarize(stall(collective=ref, reason=Reason.NETWORK_OR_DEVICE))
    assert summary.startswith(
        f"{WAITED} although all of its ranks of this job have joined: "
        "it may wait for members that are not of this job"
    )


def test_suspects_that_are_equally_likely_are_folded() -> None:
    """Rank 3 is certain; ranks 0 and 1, at one place, and 2, at another, are less so."""
    maybe = [replace(stuck(rank, "a.py:1 in f"), confidence=Confidence.MEDIUM) for rank in (0, 1)]
    finding = stall(stuck(3, "b.py:2 in g"), *maybe)
    assert summarize(finding) == f"{WAITED} for rank 3 (b.py:2 g), perhaps ranks 0-1 (a.py:1 f)"


def test_the_surest_suspects_come_first() -> None:
    """Of equally sure ones the one that began first; onsets that are unknown are last."""
    suspects = [
        replace(stuck(rank), confidence=confidence, onset_at=onset)
        for rank, confidence, onset in (
            (0, Confidence.LOW, AlignedNs(1)),
            (1, Confidence.MEDIUM, None),
            (2, Confidence.MEDIUM, AlignedNs(9)),
            (3, Confidence.HIGH, AlignedNs(20)),
            (4, Confidence.HIGH, AlignedNs(10)),
        )
    ]
    assert [one.rank for one in listed(suspects)] == [4, 3, 2, 1, 0]
