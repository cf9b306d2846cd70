"""Which messages a target gets: by its choice, while ranks are asked, while a finding is silenced,
over a restart, and when the target is new."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from frd.config import NotifyTarget
from frd.engine.evidence.answers import Stack
from frd.engine.evidence.questions import Question, QuestionKind
from frd.model import AlignedNs, Change, Finding, FindingEvent, Severity
from frd.service.findings.notices import HOLD_S, after, assumed, at_end
from frd.store.findings import Notified
from tests.world.asked import answer_to, stack_text
from tests.world.daemons import until
from tests.world.notified import Scene
from tests.world.webhook import Receiver

HOUR_NS = 3600 * 10**9


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def scene(tmp_path: Path, receiver: Receiver) -> Iterator[Scene]:
    scene = Scene(tmp_path, NotifyTarget(name="chat", url=receiver.url))
    yield scene
    scene.close()


def arrives(scene: Scene, receiver: Receiver, *events: str) -> None:
    """These messages, and the outbox knows it."""
    until(lambda: receiver.events() == [*events] and not scene.notifier.owed(), f"{events}")


def answer(scene: Scene, questions: list[Question]) -> None:
    """Rank 2 answers what it was asked for, inspections not.
    The service evaluates then."""
    stack, none = Stack.of(stack_text("")), {"unanswered": "unknown part", "is_silent": True}
    for question in (one for one in questions if 2 in one.ranks):
        is_inspection = question.rule.kind is QuestionKind.INSPECTION
        values = none if is_inspection else {"stack": stack}
        scene.world.evaluator.answer(answer_to(question, 2, scene.job.now, **values))
    scene.world.evaluate()


# -- while ranks are asked -------------------------------------------------------------------------


def test_a_message_waits_for_the_stack_of_a_suspect(scene: Scene, receiver: Receiver) -> None:
    """A finding opens, and its suspect is asked: the message is sent when it answers, two seconds
    later, and has the line, although the finding opened without."""
    questions: list[Question] = []
    scene.hold()
    scene.world.evaluator.ask = questions.extend
    scene.hang()
    scene.pass_s(2)
    assert receiver.asked == 0
    assert len(scene.notifier.owed()) == 1
    answer(scene, questions)
    arrives(scene, receiver, "opened")
    assert not scene.published[0].finding.suspects[0].stack
    assert receiver.received[0]["suspects"][0]["stack"] == ["train.py:88 in exchange"]
    assert scene.notifier.notified()[0].events == ("opened", "suspect")


def test_a_suspect_that_does_not_answer_holds_a_message_for_less_than_five_seconds(
    scene: Scene, receiver: Receiver
) -> None:
    """Its process is stopped: the message is sent without its stack. What happens meanwhile is in
    the same message."""
    scene.hold()
    scene.hang()
    scene.say(severity=Severity.CRITICAL)
    scene.pass_s(HOLD_S - 0.1)
    assert receiver.asked == 0
    scene.pass_s(0.25)
    arrives(scene, receiver, "opened")
    assert receiver.received[0]["severity"] == "critical"
    assert HOLD_S + 0.25 < 5


def test_a_finding_that_closes_while_its_message_waits(scene: Scene, receiver: Receiver) -> None:
    """Nothing is lost, and no closing comes without an opening."""
    scene.hold()
    scene.hang()
    scene.job.join("dp", [2], 1).complete("dp", range(4), 1)
    for _ in range(3):
        scene.pass_s(1)
    assert scene.published[-1].change is Change.CLOSED
    arrives(scene, receiver, "opened", "closed")


def test_a_service_that_is_killed_while_a_message_waits(scene: Scene, receiver: Receiver) -> None:
    """The next process sends it immediately, and does not wait again."""
    target = NotifyTarget(name="chat", url=receiver.url)
    scene.hold()
    scene.hang()
    assert receiver.asked == 0
    scene.restart(target)
    arrives(scene, receiver, "opened")
    scene.pass_s(1)
    assert scene.notifier.owed() == []


def test_the_end_of_the_service_waits_for_no_answer(scene: Scene, receiver: Receiver) -> None:
    """`frd demo` ends a second after its finding has opened: the message is sent."""
    scene.hold()
    scene.hang()
    scene.notifier.close()
    assert receiver.events() == ["opened"]


# -- while a finding is silenced -------------------------------------------------------------------


def test_messages_rest_while_a_finding_is_silenced(scene: Scene, receiver: Receiver) -> None:
    """It becomes critical meanwhile, and the service is started again: that is sent when the
    silence ends. An acknowledgement rests not: it may stop a pager."""
    scene.hang()
    arrives(scene, receiver, "opened")
    silence = {"silenced_until_at": AlignedNs(scene.job.now + HOUR_NS)}
    scene.say(severity=Severity.CRITICAL, **silence)
    scene.restart(NotifyTarget(name="chat", url=receiver.url))
    scene.say(acknowledged_by="anna")
    arrives(scene, receiver, "opened", "acknowledged")
    assert scene.notifier.owed() == []
    scene.say(silenced_until_at=None)
    arrives(scene, receiver, "opened", "acknowledged", "critical")


@pytest.mark.parametrize("is_new", [False, True])
def test_a_finding_that_opens_silenced(scene: Scene, receiver: Receiver, is_new: bool) -> None:
    """Its job is silenced before: its opening is sent when the silence ends, also by the next
    process. To a target that got nothing no closing is sent."""
    scene.hang()
    arrives(scene, receiver, "opened")
    silenced = replace(
        scene.published[-1].finding, id="f2", silenced_until_at=AlignedNs(scene.job.now + HOUR_NS)
    )
    event = FindingEvent(Change.OPENED, silenced)
    scene.send([event, FindingEvent(Change.CLOSED, silenced), event])
    scene.store.save([event])
    scene.published.append(event)
    if is_new:
        scene.restart(NotifyTarget(name="chat", url=receiver.url))
    assert scene.notifier.owed() == []
    scene.say(silenced_until_at=None)
    until(lambda: len(receiver.received) == 2, "the other one")
    assert [(one["id"], one["event"]) for one in receiver.received[1:]] == [("f2", "opened")]


def test_a_silence_that_begins_while_a_message_waits(scene: Scene, receiver: Receiver) -> None:
    """Nothing is sent or owed until it ends."""
    scene.hold()
    scene.hang()
    scene.say(silenced_until_at=AlignedNs(scene.job.now + HOUR_NS))
    scene.notifier.is_asking = lambda finding: False
    scene.notifier.look()
    assert scene.notifier.owed() == []
    scene.say(silenced_until_at=None)
    arrives(scene, receiver, "opened")


# -- targets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_restart", [False, True])
def test_a_target_that_is_added_later(scene: Scene, receiver: Receiver, by_restart: bool) -> None:
    """By a reload or a restart: it gets what happens from then on, and no end of what it does not
    know."""
    scene.hang()
    finding = scene.published[-1].finding
    arrives(scene, receiver, "opened")
    with Receiver() as second:
        both = NotifyTarget(name="chat", url=receiver.url), NotifyTarget(name="b", url=second.url)
        if by_restart:
            scene.restart(*both)
        else:
            scene.notifier.adopt(both)
        other = FindingEvent(Change.OPENED, replace(finding, id="f2"))
        scene.send([other, FindingEvent(Change.CLOSED, finding)])
        scene.send([FindingEvent(Change.UPDATED, replace(other.finding, acknowledged_by="anna"))])
        until(lambda: len(receiver.received) == 4, "the old one")
        until(lambda: len(second.received) == 2, "the new one")
        scene.notifier.close()
        assert {one["id"] for one in second.received} == {"f2"}
        assert second.events() == ["opened", "acknowledged"]
        assert sorted(receiver.events()) == ["acknowledged", "closed", "opened", "opened"]


def chosen(target: NotifyTarget, *events: FindingEvent, known: Notified | None = None) -> list[str]:
    found: list[str] = []
    for event in events:
        if event.change is Change.CLOSED:
            messages = at_end(known, [target]) if known is not None else []
        else:
            before = known or Notified(event.finding.id)
            known, messages = after(before, event.finding, [target], AlignedNs(0))
        found += [name for _, name in messages]
    return found


@pytest.fixture
def finding(tmp_path: Path) -> Finding:
    scene = Scene(tmp_path)
    scene.hang()
    scene.close()
    return scene.published[0].finding


def test_each_target_has_its_own_choice(finding: Finding) -> None:
    """By event and by severity; a closing and an acknowledgement only if the target had a message
    of the finding."""
    bare = replace(finding, suspects=())
    critical = replace(finding, severity=Severity.CRITICAL)
    story = (
        FindingEvent(Change.OPENED, bare),
        FindingEvent(Change.UPDATED, finding),
        FindingEvent(Change.UPDATED, critical),
        FindingEvent(Change.UPDATED, critical),
        FindingEvent(Change.CLOSED, critical),
    )
    url = "http://h/"
    assert chosen(NotifyTarget(url=url), *story) == ["opened", "suspect", "critical", "closed"]
    only_critical = NotifyTarget(url=url, min_severity="critical")
    assert chosen(only_critical, *story) == ["critical", "closed"]
    assert chosen(only_critical, *story[:2], FindingEvent(Change.CLOSED, finding)) == []
    assert chosen(NotifyTarget(url=url, on=("closed", "acknowledged")), *story) == []
    at_once = FindingEvent(Change.OPENED, critical)
    assert chosen(NotifyTarget(url=url), at_once) == ["opened"]
    assert chosen(NotifyTarget(url=url, on=("critical", "suspect")), at_once) == ["critical"]
    again = (*story[:3], FindingEvent(Change.UPDATED, bare), *story[1:])
    assert chosen(NotifyTarget(url=url), *again) == ["opened", "suspect", "critical", "closed"]


def test_an_acknowledgement_follows_the_first_message(finding: Finding) -> None:
    """A warning is acknowledged, and becomes critical. A pager for critical findings is called, and
    learns that a person has it; others learn it once, also if it is taken back and given again."""
    warning = replace(finding, acknowledged_by="anna")
    critical = replace(warning, severity=Severity.CRITICAL)
    story = [FindingEvent(Change.OPENED, finding)]
    story += [FindingEvent(Change.UPDATED, one) for one in (warning, finding, warning, critical)]
    pager = NotifyTarget(url="http://h/", min_severity="critical")
    assert chosen(pager, *story) == ["critical", "acknowledged"]
    assert chosen(NotifyTarget(url="http://h/"), *story) == ["opened", "acknowledged", "critical"]


def test_what_another_process_has_sent(finding: Finding) -> None:
    """A cell comes with a finding that is open and no more: a target that wants its opening gets
    its closing, one that wants what has not happened gets none. It becomes critical first: both
    get it. A finding that is silenced may not have been sent: that is repeated at the end."""
    bare = replace(finding, suspects=())
    silenced = replace(bare, silenced_until_at=AlignedNs(1))
    critical = FindingEvent(Change.UPDATED, replace(bare, severity=Severity.CRITICAL))
    closed = FindingEvent(Change.CLOSED, bare)

    def later(target: NotifyTarget, known: Finding, *events: FindingEvent) -> list[str]:
        return chosen(target, *events, known=assumed(known, [target], AlignedNs(0)))

    wants_all = NotifyTarget(url="http://h/")
    wants_critical = NotifyTarget(url="http://h/", on=("critical", "closed"))
    assert later(wants_all, finding, FindingEvent(Change.UPDATED, finding)) == []
    assert later(wants_all, bare, closed) == ["closed"]
    assert later(wants_critical, bare, closed) == []
    for target in (wants_all, wants_critical):
        assert later(target, bare, critical, closed) == ["critical", "closed"]
    assert later(wants_all, silenced, FindingEvent(Change.UPDATED, bare)) == ["opened"]


@pytest.mark.parametrize("is_sure", [False, True])
def test_a_service_that_is_not_sure_of_its_jobs(
    is_sure: bool, scene: Scene, receiver: Receiver
) -> None:
    """Another replica may have them, or would not know of the finding, which is not stored: the
    message waits, and is sent once, when the service is sure and the finding stored."""
    scene.notifier.is_sure = lambda: is_sure
    scene.notifier.is_unstored = lambda finding: is_sure
    scene.hang()
    for _ in range(3):
        scene.pass_s(HOLD_S)
    assert (receiver.asked, len(scene.notifier.owed())) == (0, 1)
    scene.notifier.is_sure, scene.notifier.is_unstored = lambda: True, lambda finding: False
    scene.pass_s(1)
    arrives(scene, receiver, "opened")


@pytest.mark.parametrize("waits", [False, True])
def test_a_cell_that_another_replica_has_claimed(
    waits: bool, scene: Scene, receiver: Receiver
) -> None:
    """A message waits in its queue because the service is not sure, or for a rank, and the cell is
    lost: the message, and those about later changes, are the next owner's."""
    scene.notifier.is_sure = lambda: waits
    scene.notifier.is_asking = lambda finding: waits
    scene.hang()
    finding = scene.published[-1].finding
    if not waits:
        scene.notifier._send(finding.id)
    scene.notifier.forget([finding.id])
    scene.notifier.is_sure, scene.notifier.is_asking = lambda: True, lambda finding: False
    scene.send([FindingEvent(Change.UPDATED, replace(finding, severity=Severity.CRITICAL))])
    scene.send([FindingEvent(Change.CLOSED, finding)])
    scene.notifier.close()
    assert (receiver.asked, scene.notifier.owed(), scene.notifier.notified()) == (0, [], [])


async def test_a_cell_that_is_handed_over(scene: Scene, receiver: Receiver) -> None:
    """A request is under way: it is awaited, so that the next owner does not send the message
    again. None begins any more."""
    receiver.gate.clear()
    await asyncio.to_thread(scene.hang)
    finding = scene.published[-1].finding
    await asyncio.to_thread(until, lambda: receiver.asked, "not sent")
    resting = asyncio.create_task(scene.notifier.rest([finding.id]))
    await asyncio.sleep(0.1)
    assert not resting.done()
    receiver.gate.set()
    await resting
    assert scene.notifier.notified_of(finding.id).owed == ()
    scene.send([FindingEvent(Change.CLOSED, finding)])
    scene.notifier.close()
    assert receiver.events() == ["opened"]
    assert scene.notifier.notified_of(finding.id).owed == (("chat", "closed"),)
