"""Replay: a journal alone gives the findings of the service."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frd.cli import FINDINGS_PRESENT, run
from frd.engine.evidence.answers import Answer, Stack
from frd.engine.evidence.questions import Occasion
from frd.engine.policy import Policy
from frd.errors import StoreError
from frd.forms import utc_text
from frd.model import (
    AlignedNs,
    AttemptKey,
    Certainty,
    Confidence,
    EntryColumns,
    FindingState,
    Flags,
    Kind,
    NodeNs,
    NodeRawNs,
    RankInfo,
    RankState,
    RankStatus,
    Reason,
    Stage,
    WaitKind,
    WaitsFor,
    WaitSource,
)
from frd.service.clocks.agent_clocks import encode, guess
from frd.service.journal.payloads import Dismissal, Settings, decode_payload, encode_payload
from frd.service.journal.replay import Player, Replayed, replay
from frd.store.journal import Journal, JournalLimits, read, segments
from frd.store.records import Record, RecordKind
from frd.wire.codec import encode_agent
from frd.wire.messages import PROTOCOL, AgentEvent, Hello, Statuses, Watermarks
from frd.wire.waits import WaitReport
from tests.world.asked import stack_text
from tests.world.messages import declare, entry_columns, watermarks

SECOND = 1_000_000_000
START = 1_800_000_000 * SECOND
SETTINGS = encode_payload(Settings("1", Policy(stall_after_s=2.0)))
WORLD = 3
STREAM = 1
BOOTED = 7 * SECOND


def columns(rank: int, seq: int, flags: Flags, revision: int, at: int) -> EntryColumns:
    completed = at if flags & Flags.COMPLETED else 0
    return entry_columns(
        [seq], rank=rank, revision=revision, flags=flags, created=at, completed=completed
    )


def standing(enqueued: Sequence[int], head_since: int, at: int) -> Watermarks:
    """All ranks have completed seq 0; those with 1 wait in it since `head_since`."""
    heads = [head_since if seq == 1 else 0 for seq in enqueued]
    everyone = range(WORLD)
    return watermarks(
        everyone, enqueued=enqueued, completed=0, head=heads, seen=everyone, as_of=at, sent=at
    )


def declarations() -> list[AgentEvent]:
    infos = [RankInfo(r, WORLD, "node-a", "boot-a", 100 + r) for r in range(WORLD)]
    whole = declare(infos, key=AttemptKey("train", 0))
    return [
        Hello(PROTOCOL, "1", "node-a", "boot-a", "session", NodeNs(START), NodeRawNs(START)),
        replace(whole, groups=(), signatures=()),
        replace(whole, attempts=(), ranks=()),
        Statuses(tuple(RankStatus(r, RankState.LIVE, NodeNs(START)) for r in range(WORLD))),
    ]


def message(event: AgentEvent, at: int) -> Record:
    return Record(RecordKind.MESSAGE, AlignedNs(at), STREAM, encode_agent(event))


def incident(until_s: int = 8, ahead: int = 0) -> Iterator[Record]:
    """Seq 0 is done by all; rank 2 never joins seq 1, in which 0 and 1 wait from second 1 on.

    The node's clock is `ahead` of what its hello says, and the service learned of it.
    """
    yield Record(RecordKind.OPENED, AlignedNs(START), STREAM, b"")
    for event in declarations():
        yield message(event, START)
    if ahead:
        learned = guess(NodeNs(START + ahead), AlignedNs(START))
        yield Record(RecordKind.ALIGNED, AlignedNs(START), STREAM, encode(learned))
    for rank in range(WORLD):
        both = Flags.JOINED | Flags.COMPLETED
        yield message(columns(rank, 0, both, 1, START + ahead), START)
    stuck_at = START + SECOND
    for rank in (0, 1):
        yield message(columns(rank, 1, Flags.JOINED, 2, stuck_at + ahead), stuck_at)
    for second in range(1, until_s):
        at = START + second * SECOND
        yield message(standing([1, 1, 0], stuck_at + ahead, at + ahead), at)
        yield Record(RecordKind.TICK, AlignedNs(at), 0, b"")
        yield Record(RecordKind.TICK, AlignedNs(at + SECOND // 2), 0, b"")


def recorded(
    folder: Path,
    records: Sequence[Record],
    *,
    segment_bytes: int = 10**6,
    settings: bytes = SETTINGS,
) -> Path:
    """A journal of `records`, written as the service writes it."""
    live: list[Record] = []
    journal = Journal(
        folder,
        settings=settings,
        preamble=lambda: live,
        begun_at=AlignedNs(START),
        limits=JournalLimits(segment_bytes, total_bytes=10**7),
    )
    for number, record in enumerate(records):
        if number < 1 + len(declarations()):
            live.append(record)
        journal.append([record])
    journal.close()
    return folder


def replayed(path: Path) -> Replayed:
    return replay(read(path, pytest.fail), pytest.fail)


def test_stall_is_found_again(tmp_path: Path) -> None:
    """The journal of a stall names the rank that never joined, with the recorded threshold."""
    result = replayed(recorded(tmp_path, list(incident())))
    (found,) = result.findings
    assert (found.kind, found.state) == (Kind.STALL, FindingState.OPEN)
    assert [(s.rank, s.reason) for s in found.suspects] == [(2, Reason.CPU_STUCK)]
    assert found.victims == (0, 1)
    assert 3 * SECOND <= found.opened_at - START <= 5 * SECOND
    assert result.first_at == START


def test_a_replay_does_not_depend_on_segments(tmp_path: Path) -> None:
    """The same journal gives the same findings, with ids and times, however it is cut."""
    whole = replayed(recorded(tmp_path / "whole", list(incident(until_s=12))))
    cut = replayed(recorded(tmp_path / "cut", list(incident(until_s=12)), segment_bytes=1000))
    assert len(segments(tmp_path / "cut")) > 1
    assert cut.findings == whole.findings


def test_alignments_are_replayed(tmp_path: Path) -> None:
    """The node's clock ran two seconds ahead, as the service knew: the finding is the same."""
    true = replayed(recorded(tmp_path / "true", list(incident())))
    ahead = replayed(recorded(tmp_path / "ahead", list(incident(ahead=2 * SECOND))))
    assert ahead.findings == true.findings
    assert ahead.findings


def test_stages_are_replayed() -> None:
    """Rank 1 was in init_process_group when the journal ended: the replayed engine knows it."""
    stage = Stage("init_process_group", NodeRawNs(START - SECOND), NodeRawNs(START + 7 * SECOND))
    seen_at = START + 8 * SECOND
    status = RankStatus(1, RankState.LIVE, NodeRawNs(START), as_of_ns=seen_at, stage=stage)
    player = Player(pytest.fail)
    for record in (*incident(), message(Statuses((status,)), seen_at)):
        player.play(record)
    attempt = player.engine.known(AttemptKey("train", 0))
    assert attempt is not None
    (wait,) = attempt.snapshot(AlignedNs(seen_at)).unrecorded[1]
    assert (wait.source, wait.op) == (WaitSource.STAGE, "init_process_group")
    assert wait.as_of_ns - wait.since_ns == 8 * SECOND


def with_record(records: Iterable[Record], extra: Record) -> list[Record]:
    """`extra` comes before those of the same time."""
    return sorted([extra, *records], key=lambda record: record.at)


def dismissal(finding: str, at: int) -> Record:
    payload = encode_payload(Dismissal(finding, "known"))
    return Record(RecordKind.DISMISSED, AlignedNs(at), 0, payload)


def test_what_was_closed_by_hand_is_closed_in_a_replay(tmp_path: Path) -> None:
    """Closed by hand in second 7 of 20: the replay has one finding, closed then for that reason."""
    (opened,) = replayed(recorded(tmp_path / "a", list(incident(8)))).findings
    at = START + 7 * SECOND
    records = with_record(incident(20), dismissal(opened.id, at))
    (found,) = replayed(recorded(tmp_path / "b", records)).findings
    reason = "closed by hand: known"
    assert (found.id, found.closed_at, found.close_reason) == (opened.id, at, reason)


def test_a_finding_that_was_closed_by_hand_and_is_unknown(tmp_path: Path) -> None:
    """The journal reaches back less far than the finding: a warning names it."""
    warnings: list[str] = []
    folder = recorded(tmp_path, [dismissal("ab12", START + SECOND)])
    replay(read(folder, pytest.fail), warnings.append)
    assert warnings == ["finding ab12 was closed by hand, but is not open in this journal"]


LOCK = WaitReport(
    WaitsFor(WaitKind.LOCK_FILE, Certainty.SEEN, "/ckpt/.lock", topic="a lock", says="it waits"),
    *(NodeRawNs(START + 5 * SECOND), NodeRawNs(START + 7 * SECOND)),
)


def answers(finding: str) -> list[Answer]:
    """Rank 2 is in recv before the finding opens and when it does; then the dump comes, what an
    inspection shows, and what NCCL says. A rank does not answer."""
    stack, still, opened = Stack.of(stack_text()), Occasion.STILL, Occasion.OPENED
    of_stack = [
        answer(2 + second, occasion, 2, finding * (occasion is opened), stack=stack)
        for second, occasion in ((0, still), (1, Occasion.SIGHTED), (4, opened))
    ]
    return [
        *of_stack,
        answer(6, opened, 1, finding, unanswered="its agent is not connected"),
        answer(6.5, opened, -1, finding, dump="d1"),
        answer(7, Occasion.SUSPECTED, 2, finding, blocked=LOCK),
        answer(7, Occasion.UNDECIDED, -1, finding, opinion=("NCCL RAS: x",)),
    ]


def answer(at_s: float, occasion: Occasion, rank: int, finding: str, **values: Any) -> Answer:
    at = AlignedNs(START + round(at_s * SECOND))
    return Answer(1, AttemptKey("train", 0), occasion, finding, rank, at, at, **values)


def test_answers_are_replayed(tmp_path: Path) -> None:
    """The service took them between its messages; the replay of its journal ends in the same
    finding, word for word: less sure because of the wait, with stack, dump and opinion."""
    usual = list(incident(10))
    (opened,) = replayed(recorded(tmp_path / "first", usual)).findings
    assert (opened.dump, opened.suspects[0].confidence) == (None, Confidence.HIGH)
    live, journal = Player(pytest.fail), list[Record]()
    left = answers(opened.id)
    for record in [Record(RecordKind.START, AlignedNs(START), 0, SETTINGS), *usual]:
        while left and left[0].answered_at <= record.at:
            one = left.pop(0)
            live.engine.answer(one, one.answered_at)
            payload = encode_payload(one)
            journal.append(Record(RecordKind.ANSWERED, one.answered_at, 0, payload))
        live.play(record)
        journal.append(record)
    (of_live,) = live.findings.values()
    (found,) = replayed(recorded(tmp_path / "second", journal[1:])).findings
    assert found == of_live
    assert (found.id, found.dump, found.second_opinion) == (opened.id, "d1", ("NCCL RAS: x",))
    [suspect] = found.suspects
    assert suspect.confidence is Confidence.MEDIUM
    assert "waits in recv (train.py:88 in exchange)" in suspect.evidence
    assert suspect.stack == ("train.py:88 in exchange",)
    assert suspect.waits_for is not None
    assert suspect.waits_for.kind is WaitKind.LOCK_FILE


@pytest.mark.parametrize(
    "garbage", [b"", b"[]", b'{"question": 1}', b"\xff", b'{"rank": 99999999999999999999}']
)
def test_an_answer_that_cannot_be_read(garbage: bytes) -> None:
    """A newer release wrote it, or the journal is damaged there: it is left out, with a warning."""
    warned: list[str] = []
    records = [Record(RecordKind.ANSWERED, AlignedNs(START), 0, garbage)]
    assert replay(records, warned.append).findings == ()
    (warning,) = warned
    assert warning.startswith("journal: answer: ")


def test_restart_of_the_service(tmp_path: Path) -> None:
    """A second process in the journal takes up the open finding and opens no other."""
    records = list(incident())
    first = replayed(recorded(tmp_path, records))
    recorded(tmp_path, [Record(RecordKind.TICK, AlignedNs(START + 9 * SECOND), 0, b"")])
    second = replayed(tmp_path)
    assert [f.id for f in second.findings] == [f.id for f in first.findings]
    assert second.findings[0].state is FindingState.OPEN


def test_a_job_that_had_to_wait_for_room(tmp_path: Path) -> None:
    """Another job takes the only place when the job is declared, and ends in second 3: from then on
    the job is watched, in a replay as it was live."""
    policy = Policy(stall_after_s=2.0, max_attempts=1)
    info = RankInfo(0, 1, "node-b", "boot-b", 7)
    other = declare([info], key=AttemptKey("other", 0))
    hello = Hello(PROTOCOL, "1", "node-b", "boot-b", "other", NodeNs(START), NodeRawNs(START))
    over = Statuses((RankStatus(0, RankState.FINISHED, NodeNs(START)),))

    def of_other(event: AgentEvent, at: int = START) -> Record:
        return replace(message(event, at), stream=STREAM + 1)

    opened = Record(RecordKind.OPENED, AlignedNs(START), STREAM + 1, b"")
    records = [opened, of_other(hello), of_other(other), *incident(until_s=16)]
    at = START + 3 * SECOND
    place = next(n for n, record in enumerate(records) if record.at > at)
    records.insert(place, of_other(over, at))
    settings = encode_payload(Settings("1", policy))
    result = replayed(recorded(tmp_path, records, settings=settings))
    (finding,) = result.findings
    assert (finding.job, [suspect.rank for suspect in finding.suspects]) == ("train", [2])
    assert finding.opened_at > at


def test_lost_records_are_a_warning(tmp_path: Path) -> None:
    """A message that depends on a lost one ends its stream with a warning."""
    records = [r for n, r in enumerate(incident()) if n != 3]  # the groups' declaration
    warnings: list[str] = []
    result = replay(read(recorded(tmp_path, records), warnings.append), warnings.append)
    assert result.records > 10
    assert len(warnings) == 1
    assert warnings[0].startswith("stream 1: entries.group")


def test_what_a_newer_release_wrote_is_left_out() -> None:
    """A finding or learned pauses that cannot be decoded end no replay."""
    records = [Record(RecordKind.START, AlignedNs(START), 0, SETTINGS), *incident()]
    of_a_newer = [
        Record(RecordKind.RESTORED, records[-1].at, 0, b'{"id": "f1", "kind": "new"}'),
        Record(RecordKind.LEARNED, records[-1].at, 0, b"new"),
    ]
    warnings: list[str] = []
    result = replay([*records, *of_a_newer], warnings.append)
    assert result.findings == replay(records, warnings.append).findings
    assert result.findings
    assert ["finding f1" in warnings[0], len(warnings)] == [True, 2]


def test_the_wall_clock_was_set(tmp_path: Path) -> None:
    """UTC moves by an hour while a rank hangs, and the next process begins with that UTC: a replay
    finds what the service found, and shows times as the service did."""
    hour, policy = 3600 * SECOND, Policy(stall_after_s=2.0)
    settings = encode_payload(Settings("1", policy, hour))
    moved = Record(RecordKind.SETTINGS, AlignedNs(START + 6 * SECOND), 0, settings)
    *before, last = incident(8)
    records = [*before[:-6], moved, *before[-6:], last]
    (usual,) = replayed(recorded(tmp_path / "usual", list(incident(8)))).findings
    result = replayed(recorded(tmp_path / "moved", records))
    (found,) = result.findings
    assert (found.id, found.state) == (usual.id, usual.state)
    assert found.opened_at == usual.opened_at + hour
    assert (result.first_at, result.last_at) == (START, last.at + hour)
    assert found.collective is not None
    assert 4 <= found.collective.waited_s <= 6

    again = Record(RecordKind.START, AlignedNs(START + hour + 9 * SECOND), 0, SETTINGS)
    (later,) = replayed(recorded(tmp_path / "again", [*records, again])).findings
    assert (later.id, later.opened_at) == (found.id, found.opened_at)


def test_settings_of_another_version() -> None:
    """Unknown settings are ignored, absent ones have defaults, garbage is an error."""
    assert decode_payload(
        b'{"policy": {"stall_after_s": 3, "new": 1}, "more": {}}', Settings
    ) == Settings(policy=Policy(stall_after_s=3.0))
    for garbage in (b"", b"[]", b'{"policy": {"stall_after_s": "x"}}', b"\xff"):
        with pytest.raises(StoreError, match="journal: settings"):
            decode_payload(garbage, Settings)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`frd replay` prints the findings and exits with 3 when there are any; a path without a
    journal is one line on stderr."""
    folder = recorded(tmp_path / "stall", list(incident()))
    assert run(["replay", str(folder), "--json"]) == FINDINGS_PRESENT
    shown = json.loads(capsys.readouterr().out)
    assert [s["rank"] for s in shown["findings"][0]["suspects"]] == [2]
    assert shown["warnings"] == []
    assert run(["replay", str(segments(folder)[0])]) == FINDINGS_PRESENT
    assert "rank 2" in capsys.readouterr().out
    healthy = recorded(tmp_path / "healthy", list(incident(until_s=2)))
    assert run(["replay", str(healthy)]) == 0
    assert "no findings" in capsys.readouterr().out
    assert run(["replay", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("frd: error: journal: ")


def test_command_for_one_job_and_since(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Findings of one job, those that were open since a moment; an unknown job is an error."""
    folder = str(recorded(tmp_path, list(incident())))
    (found,) = replayed(tmp_path).findings
    assert run(["replay", folder, "--job", found.job, "--since", "2030-01-01"]) == FINDINGS_PRESENT
    assert run(["replay", folder, "--job", "typo"]) == 1
    assert f"'typo': unknown to this journal: it knows {found.job!r}" in capsys.readouterr().err
    at = AlignedNs(START + 7 * SECOND)
    closed = str(recorded(tmp_path / "closed", [*incident(), dismissal(found.id, at)]))
    assert run(["replay", closed, "--since", utc_text(AlignedNs(at))]) == FINDINGS_PRESENT
    assert run(["replay", closed, "--since", utc_text(AlignedNs(at + 1_000_000))]) == 0


def test_progress_is_in_bytes(tmp_path: Path) -> None:
    """Reading ends at the last byte of the last segment, and never goes back."""
    folder = recorded(tmp_path, list(incident(40)), segment_bytes=3000)
    size = sum(segment.stat().st_size for segment in segments(folder))
    seen: list[tuple[int, int]] = []
    list(read(folder, pytest.fail, lambda done, total: seen.append((done, total))))
    assert seen == sorted(seen)
    assert len(seen) >= len(segments(folder)) > 1
    assert seen[-1] == (size, size)
