"""Texts for people: one printable line each, whatever a job calls its things."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frd.engine.findings.builder import listed
from frd.engine.findings.headlines import worded
from frd.engine.findings.text import clean, place
from frd.model import (
    AlignedNs,
    Certainty,
    CollectiveRef,
    Confidence,
    Finding,
    FindingState,
    Kind,
    Reason,
    Suspect,
    WaitKind,
    WaitsFor,
)

REF = CollectiveRef("dp", "0123456789abcdef", 4, 7, "all_reduce", (0, 1, 3), (2,), 12.44)
STALL = Finding(
    "00112233445566aa", Kind.STALL, FindingState.OPEN, "job", 0, AlignedNs(1), collective=REF
)


HOLDS_UP = "holds up 3 ranks in all_reduce #7 of dp for 12 s"
HOLD_UP = HOLDS_UP.replace("holds", "hold")
HOLDS_UP_TWO = HOLDS_UP.replace("3", "2")
WAIT = "3 ranks wait in all_reduce #7 of dp for 12 s"


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


READ = WaitsFor(
    WaitKind.FILE_READ,
    Certainty.SEEN,
    "/data/shard-17.tar",
    topic="data",
    says="its loader worker (pid 7) has been in read() of /data/shard-17.tar (nfs4 s:/x on /data)",
    mount="/data",
    fs="nfs4 s:/x",
)


def case(
    finding: Finding, headline: str, effect: str = HOLDS_UP, *, rest: str = ""
) -> tuple[Finding, str, str, str]:
    return finding, headline, effect, rest


@pytest.mark.parametrize(
    ("finding", "headline", "effect", "rest"),
    [
        case(
            stall(suspect(2, Reason.EXITED), victims=(0, 1, 3), groups_held_up=("dp", "tp")),
            "Rank 2 (node) has exited",
            f"{HOLDS_UP}, in all 3 ranks in 2 groups",
        ),
        case(
            stall(stuck(2, "a.py:1 in f"), suspect(5, Reason.EXITED)),
            "Rank 2 (node) is at a.py:1 f, rank 5 (node) has exited",
            HOLD_UP,
        ),
        case(
            stall(*map(stuck, range(8, 16))),
            "Ranks 8-15 (node) are alive, but have not joined",
            HOLD_UP,
        ),
        case(
            stall(suspect(0, Reason.IN_COLLECTIVE_ALONE)),
            "Rank 0 (node) is still inside an op that the other ranks completed",
            HOLDS_UP_TWO,
        ),
        case(
            stall(suspect(0, Reason.DEVICE_STUCK, "a.py:1 in f")),
            "Rank 0 (node) has joined, but the device has not started the op (a.py:1 f)",
            HOLDS_UP_TWO,
        ),
        case(
            stall(stuck(2, "lock.py:23 in upload"), victims=(0, 1, 3, 4)),
            "Rank 2 (node) is at lock.py:23 upload",
            f"{HOLDS_UP}, in all 4 ranks",
        ),
        case(
            stall(suspect(2, Reason.EXITED), collective=None),
            "Rank 2 (node) has exited",
            "the job waits for it",
        ),
        case(
            stall(suspect(2, Reason.MISMATCH), suspect(5, Reason.MISMATCH)),
            "Ranks 2,5 (node) joined with another op, size or type than the other ranks",
            HOLD_UP,
        ),
        case(
            stall(reason=Reason.NETWORK_OR_DEVICE),
            "No single rank is the cause of the hang: check network and devices",
            f"{WAIT}, although all ranks that are known have joined",
        ),
        case(
            stall(reason=Reason.NETWORK_OR_DEVICE, disagreement="rank 1 has, 0 has not"),
            "Rank 1 has, 0 has not",
            f"{WAIT}, although all ranks that are known have joined",
        ),
        case(
            stall(unknown=(2,)),
            "The cause may be rank 2, whose telemetry is missing or late",
            WAIT,
            rest="check the agents (frd status)",
        ),
        case(
            stall(
                suspect(0, Reason.ORDER),
                suspect(1, Reason.ORDER),
                kind=Kind.ORDER,
                groups_held_up=("pp", "dp"),
            ),
            "Ranks 0-1 (node) entered pp and dp in different orders",
            "they wait for each other in all_reduce #7 of dp for 12 s",
        ),
        case(
            stall(
                suspect(0, Reason.ORDER),
                suspect(1, Reason.ORDER),
                kind=Kind.ORDER,
                victims=(2, 3),
                groups_held_up=("encoder", "dp", "decoder"),
            ),
            "Ranks 0-1 (node) entered their groups in different orders",
            "they wait for each other in all_reduce #7 of dp for 12 s, and hold up 2 ranks in "
            "3 groups",
        ),
        case(
            stall(stuck(2, "train.py:88 in save", doing="saving a checkpoint")),
            "Rank 2 (node): saving a checkpoint (train.py:88 save)",
        ),
        case(
            stall(stuck(2, "t.py:8 in main", doing="waits for its DataLoader worker pid 7: d.py")),
            "Rank 2 (node): waits for its DataLoader worker pid 7: d.py",
        ),
        case(
            stall(
                stuck(
                    2,
                    "threading.py:1590 in _shutdown",
                    doing="the program has ended, a non-daemon thread keeps it alive: log.py:8 run",
                )
            ),
            "Rank 2 (node): the program has ended, "
            "a non-daemon thread keeps it alive: log.py:8 run",
        ),
        case(
            stall(stuck(2, "a.py:1 in f", doing="compiling"), stuck(5)),
            "Rank 2 (node): compiling (a.py:1 f), rank 5 (node) is alive, but has not joined",
            HOLD_UP,
        ),
        case(
            stall(replace(stuck(2, "t.py:8 in main", doing="waits for a worker"), waits_for=READ)),
            "Rank 2 (node): its loader worker is stuck in read(/data/shard-17.tar)",
            rest="rank 2: waits for a worker (t.py:8 main); "
            "rank 2 waits for data (pid 7, nfs4 s:/x on /data)",
        ),
        case(
            stall(
                suspect(2, Reason.MISMATCH, "t.py:3 in g"),
                kind=Kind.MISMATCH,
                collective=replace(REF, waiting_ranks=()),
                disagreement="rank 2 passed float16 where rank 0 passed float32 to all_reduce #7",
            ),
            "Rank 2 (node) passed float16 where rank 0 passed float32 to all_reduce #7",
            "",
            rest="rank 2 is at t.py:3 g",
        ),
    ],
)
def test_texts(finding: Finding, headline: str, effect: str, rest: str) -> None:
    """The cause first, by the best that is known; then what it holds up, and how long; the summary
    has both and the rest."""
    said = worded(finding)
    assert (said.headline, said.effect) == (headline, effect)
    assert said.summary == "; ".join(filter(None, (headline, effect, rest)))


def test_a_line_is_said_once() -> None:
    """The rank sleeps at a line: the headline has both, and the summary has the line once."""
    says = "its main thread has been asleep (clock_nanosleep)"
    found = WaitsFor(WaitKind.SLEEP, Certainty.SEEN, topic="a timer", says=says)
    said = worded(stall(replace(stuck(2, "t.py:8 in load"), waits_for=found)))
    assert (
        said.headline == "Rank 2 (node): its main thread is asleep (clock_nanosleep) at t.py:8 load"
    )
    assert said.summary.count("t.py:8") == 1


LOST = "was killed by SIGKILL at 10:02:11 (last joined all_reduce #2 on d(p)); memory ran out"


def test_a_lost_rank_and_others() -> None:
    """How it ended and why, without the time and the op, which the summary has."""
    ranks = [suspect(rank, Reason.EXITED, evidence=LOST) for rank in (2, 3)]
    said = worded(stall(*ranks, kind=Kind.RANK_LOST))
    assert said.headline == (
        "Rank 2 (node) was killed by SIGKILL; memory ran out, and rank 3 was lost with it"
    )
    assert said.summary == f"Rank 2 (node) {LOST}, and rank 3 was lost with it; {said.effect}"
    assert said.effect == "2 ranks wait for them"


def test_clauses_go_before_words() -> None:
    """A note of the kernel for which there is no room is left out as a whole."""
    note = "the kernel's out-of-memory killer killed no process in its cgroup while it ran"
    lost = suspect(2, Reason.EXITED, evidence=f"was killed by SIGKILL at 10:02:11; {note}")
    said = worded(stall(lost, kind=Kind.RANK_LOST))
    assert said.headline == "Rank 2 (node) was killed by SIGKILL"
    assert note in said.summary


def test_a_closed_finding_held_up_its_ranks() -> None:
    """The effect of what is over is past."""
    closed = stall(stuck(2), state=FindingState.CLOSED)
    assert worded(closed).effect == HOLDS_UP.replace("holds", "held")


def test_a_long_path_keeps_its_end() -> None:
    """The headline is cut in the middle of the path, and the summary is not cut."""
    path = f"/data/{'very/' * 30}shard-17.tar"
    says = f"its main thread has been in open() of {path}"
    found = WaitsFor(WaitKind.FILE_OPEN, Certainty.SEEN, path, says=says)
    said = worded(stall(replace(stuck(2), waits_for=found)))
    assert said.headline.startswith("Rank 2 (node): its main thread is stuck in open(/data/ve")
    assert said.headline.endswith("very/shard-17.tar)")
    assert len(said.headline) == 100
    assert f"open({path})" in said.summary


def test_a_group_of_unknown_members_may_wait_for_another_job() -> None:
    """All ranks of the job have joined, and the group has members that are not of the job: neither
    the network nor a device is blamed."""
    ref = replace(REF, group_size=0, missing_ranks=())
    said = worded(stall(collective=ref, reason=Reason.NETWORK_OR_DEVICE))
    assert said.headline == "The group may wait for members that are not of this job"


def test_suspects_that_are_equally_likely_are_folded() -> None:
    """Rank 3 is certain; ranks 0 and 1, at one place, and 2, at another, are less so."""
    maybe = [replace(stuck(rank, "a.py:1 in f"), confidence=Confidence.MEDIUM) for rank in (0, 1)]
    said = worded(stall(stuck(3, "b.py:2 in g"), *maybe))
    assert said.headline == (
        "Rank 3 (node) is at b.py:2 g, perhaps ranks 0-1 (node) are at a.py:1 f"
    )


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
