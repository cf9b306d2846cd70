"""A finding for people: complete, folded, and harmless to a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from frd.cli.screens.finding_panel import finding_panel
from frd.forms import REASONS, ranks_text
from frd.model import Reason
from frd.usage import plain

STALL: dict[str, Any] = {
    "id": "ab12",
    "kind": "stall",
    "state": "open",
    "job": "train",
    "attempt": 0,
    "opened_at": "2026-11-20T10:00:00.123456Z",
    "closed_at": None,
    "collective": {
        "group": "default_pg",
        "group_id": "g",
        "group_size": 4,
        "seq": 7,
        "op": "all_reduce",
        "waiting_ranks": [0, 1, 3],
        "missing_ranks": [2],
        "waiting_s": 12.4,
    },
    "groups_held_up": ["default_pg", "TP_0"],
    "suspects": [
        {
            "rank": 2,
            "node": "node7",
            "reason": "cpu_stuck",
            "confidence": "high",
            "evidence": "last joined seq 6 of default_pg",
            "stack": ["load_batch (train.py:88)", "main (train.py:120)"],
        }
    ],
    "victims": [0, 1, 3],
    "dump": "d1",
    "headline": "all_reduce #7 on default_pg has waited 12.4 s for rank 2",
    "summary": "all_reduce #7 on default_pg has waited 12.4 s for rank 2",
}


def suspected(**fields: Any) -> dict[str, Any]:
    """The stall, with more about its suspect."""
    return {**STALL, "suspects": [{**STALL["suspects"][0], **fields}]}


def drawn(finding: dict[str, Any], *, terminal: bool = False, width: int = 100, **how: bool) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=terminal, color_system="auto").print(
        finding_panel(finding, **how), crop=False
    )
    return out.getvalue()


def test_the_title_says_how_severe_it_is() -> None:
    """A warning differs from a critical finding in text and color."""
    warning, critical = ({**STALL, "severity": severity} for severity in ("warning", "critical"))
    assert "stall · open · warning · train" in drawn(warning)
    assert "stall · open · critical · train" in drawn(critical)
    assert "[33m" in drawn(warning, terminal=True)
    assert "[31m" in drawn(critical, terminal=True)


def test_a_stall_shows_suspect_reason_and_victims() -> None:
    """The verdict comes first; suspect, reason, evidence, stack and folded victims follow."""
    text = drawn(STALL)
    lines = text.splitlines()
    assert lines[:2] == [
        "stall · open · train",
        "all_reduce #7 on default_pg has waited 12.4 s for rank 2",
    ]
    for fact in (
        "rank 2 on node7: cpu_stuck, high confidence",
        "last joined seq 6 of default_pg",
        "load_batch (train.py:88)",
        "0-1,3 (3 ranks)",
        "default_pg, TP_0",
        "frd dump --finding ab12 -o DIR",
        "opened 2026-11-20 10:00:00 UTC",
    ):
        assert fact in text
    assert "missing" not in text  # it would repeat the suspect
    assert "\x1b" not in text


def test_a_finding_without_a_suspect_says_why() -> None:
    """If all ranks joined and none completes, no rank is shown as the cause."""
    no_suspect = {**STALL, "suspects": [], "reason": "network_or_device", "groups_held_up": []}
    assert "none: all ranks joined and none completes: network or devices (network_or" in drawn(
        no_suspect
    )


def test_every_reason_has_a_phrase() -> None:
    """A name such as cpu_stuck alone explains little."""
    assert set(REASONS) == set(Reason)


def test_what_else_is_known_is_shown() -> None:
    """What the rank is doing, the stacks of its worker processes, how the job ended, and what NCCL
    says: each sentence on its own line, with control characters escaped."""
    frame, doing = "__getitem__ (train.py:28)", "waits for its DataLoader worker pid 22219"
    worker = {"pid": 22219, "name": "pt_data_worker", "stack": [frame]}
    ended = "ended by KeyboardInterrupt at 10:02:11"
    lags = "NCCL RAS: rank 3 has launched 31 AllReduce in communicator ab (4 ranks), the others 32"
    silent = "NCCL RAS: rank 2 does not respond in communicator ab (4 ranks)"
    finding = suspected(doing=doing, workers=[worker])
    finding |= {"ended_by": ended, "second_opinion": [lags, silent, "\x1b[2J"]}
    text = " ".join(drawn(finding).split())
    for fact in (doing, "process 22219, pt_data_worker", frame, ended, silent):
        assert fact in text
    assert "2nd opinion NCCL RAS: rank 3 has launched 31 AllReduce" in text
    assert "\x1b" not in text


def test_a_whole_finding_has_its_history_and_all_frames() -> None:
    """Nothing is cut. The short view has the innermost frames, and what the suspect waits for in
    the first line only. Both say when it opened, became critical and closed."""
    stack = [f"frame {number}" for number in range(50)]
    waits_for = "rank 2 waits for data: it has been in read() of /data/shard-17.tar for 41 s"
    finding = {
        **suspected(stack=stack, waits_for={"kind": "file_read", "text": waits_for}),
        "witness": {"rank": 0, "stack": ["step (train.py:9)", "main (train.py:2)"]},
        "state": "closed",
        "critical_at": "2026-11-20T10:02:00.123456Z",
        "closed_at": "2026-11-20T12:05:00.123456Z",
    }
    text = drawn(finding, whole=True)
    assert "frame 49" in text
    assert "more frames" not in text
    assert "main (train.py:2)" in text
    assert waits_for in text
    when = "ab12, opened 2026-11-20 10:00:00 UTC, critical after 2 min, closed after 2 h 5 min"
    assert when in text
    short = drawn(finding)
    assert "frame 7" in short
    assert "frame 8" not in short
    assert "42 more frames" in short
    assert when in short
    assert waits_for not in short


def test_a_finding_with_the_fewest_keys_is_drawn() -> None:
    """A kind that does not need a key leaves it out; a closed one says how long it lasted."""
    lost = {key: STALL[key] for key in ("id", "kind", "job", "opened_at", "headline", "suspects")}
    closed = {
        **lost,
        "state": "closed",
        "closed_at": "2026-11-20T10:00:30.123456Z",
        "close_reason": "the job went on",
        "victims": [],
    }
    text = drawn(closed)
    assert "closed after 30 s" in text
    assert "the job went on" in text


def test_names_cannot_control_the_terminal() -> None:
    """Escapes, markup, line breaks and lone surrogates in names and frames stay visible text."""
    nasty = "\x1b[2Jx[red]\n\u202e\udc80"
    finding = suspected(stack=[nasty], evidence=nasty, node=nasty)
    text = drawn({**finding, "job": nasty, "headline": nasty}, terminal=True)
    assert "\x1b[2J" not in text
    assert "\u202e" not in text
    assert r"\x1b[2Jx[red]\n\u202e\udc80" in text


def test_rank_sets_are_folded() -> None:
    """4,095 victims take one short line."""
    assert ranks_text([rank for rank in range(4096) if rank != 17]) == "0-16,18-4095 (4095 ranks)"
    assert ranks_text([5]) == "5"
    assert ranks_text([]) == "none"
    assert plain("café 集合") == "café 集合"


def test_a_call_without_a_record_has_no_group() -> None:
    """It is named by its op alone."""
    call = {**STALL["collective"], "group": "", "group_id": "", "seq": -1, "op": "new_group"}
    text = drawn({**STALL, "collective": call, "groups_held_up": []})
    assert "new_group, 4 ranks, 12 s" in text


def test_suspects_that_are_equally_likely_are_folded() -> None:
    """Ranks 0 and 1 of a circle: their reason and confidence once, and the evidence of each."""
    order = {**STALL["suspects"][0], "reason": "order", "confidence": "medium", "stack": []}
    suspects = [
        {**order, "rank": 0, "evidence": "is in all_reduce #1 on a"},
        {**order, "rank": 1, "evidence": "is in all_reduce #1 on b"},
    ]
    text = drawn({**STALL, "suspects": suspects})
    assert "ranks 0-1: order, medium confidence" in text
    assert text.count("medium confidence") == 1
    assert "rank 0 on node7: is in all_reduce #1 on a" in text
    assert "rank 1 on node7: is in all_reduce #1 on b" in text
    sure = [{**one, "confidence": "high"} for one in suspects]
    assert drawn({**STALL, "suspects": sure}).count("high confidence") == 2


DUMP = "kubectl exec --namespace ml --container trainer pretrain-7b-worker-1 -- py-spy dump --pid 7"
LOADER = suspected(
    node="node7",
    evidence="last joined seq 6 of default_pg; its loader worker is stuck",
    doing="waits for its DataLoader worker pid 13910",
    waits_for={"kind": "file_open", "what": "/data/shard-17.tar", "text": "it is in open()"},
    address={"pid": 13908, "user": "ann", "slurm_job": "4711", "command": "python train.py"},
) | {
    "severity": "critical",
    "headline": "Rank 2 (node7): its loader worker is stuck in open(/data/shard-17.tar)",
    "effect": "holds up 3 ranks in all_reduce #7 of default_pg for 62 s",
    "do_now": [
        {"text": "Log in to the node.", "command": "ssh node7"},
        {"text": "Look at its stack.", "command": DUMP},
        {"text": "Ask who runs the file server."},
    ],
    "acknowledged_by": "cy",
    "assigned_to": "bob",
    "silenced_until": "2026-11-20T12:00:00Z",
    "silenced_by": "cy",
    "notes": [{"by": "cy", "written_at": "2026-11-20T10:05:00Z", "text": "storage is asked"}],
}
SCREEN = f"""\
stall · open · critical · train
Rank 2 (node7): its loader worker is stuck in open(/data/shard-17.tar)
holds up 3 ranks in all_reduce #7 of default_pg for 62 s
acknowledged by cy; assigned to bob; silenced until 2026-11-20 12:00:00 UTC by
cy; cy: storage is asked
do now  Log in to the node.
          ssh node7
        Look at its stack.
          {DUMP}
        Ask who runs the file server.

suspect   rank 2 on node7: cpu_stuck, high confidence
          last joined seq 6 of default_pg
          pid 13908, user ann, Slurm job 4711, command python train.py
          waits for its DataLoader worker pid 13910
            load_batch (train.py:88)
            main (train.py:120)
victims   0-1,3 (3 ranks)
holds up  default_pg, TP_0
dump      frd dump --finding ab12 -o DIR
id        ab12, opened 2026-11-20 10:00:00 UTC
"""


def test_the_first_screen_of_a_stuck_loader() -> None:
    """In 80 columns: the cause first and once, then what it holds up and what to do, each command
    on one line, however long it is."""
    text = "\n".join(line.rstrip() for line in drawn(LOADER, width=80).splitlines())
    assert text == SCREEN
    assert text.count("shard-17") == text.count("is stuck") == 1


def test_what_a_suspect_waits_for_is_said_once() -> None:
    """The headline has it; the whole finding has it in full. Evidence that is the headline in other
    words is left out."""
    text = "rank 2 waits for a timer: asleep for 3 s"
    evidence = "last joined seq 6 of default_pg; main thread at train.py:88 in load_batch"
    finding = suspected(waits_for={"kind": "sleep", "text": text}, evidence=evidence) | {
        "headline": "Rank 2 (node7): its main thread is asleep at train.py:88 load_batch",
        "effect": "holds up 3 ranks in all_reduce #7 of default_pg for 12 s",
    }
    short = drawn(finding)
    assert text not in short
    assert "last joined seq 6" in short
    assert "main thread at" not in short
    assert text in drawn(finding, whole=True)


def test_a_picture_that_is_redrawn_has_no_half_command() -> None:
    """A command that does not fit the window is not cut: the picture says where it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        text = drawn(LOADER, width=80, is_live=True)
    assert "          ssh node7\n" in text
    assert "kubectl" not in text
    assert "(a long command: see `frd findings ID`)" in text
