"""Messages as Slack, Teams and PagerDuty take them, sent to a real HTTP server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
from markdown_it import MarkdownIt

from frd.config import NotifyTarget
from frd.do_now import shown_json
from frd.engine.findings.headlines import worded
from frd.model import (
    Address,
    AlignedNs,
    Certainty,
    Change,
    CollectiveRef,
    Confidence,
    Finding,
    FindingEvent,
    FindingState,
    Kind,
    Note,
    Reason,
    Suspect,
    WaitKind,
    WaitsFor,
)
from frd.service.findings.report import report
from tests.world import receivers
from tests.world.daemons import until
from tests.world.notified import Scene
from tests.world.webhook import Receiver

Format: TypeAlias = Literal["json", "slack", "teams", "pagerduty"]
KEY = "0123456789abcdef0123456789ABCDEF"


def routing_key(folder: Path) -> Path:
    path = folder / "key"
    path.write_text(f"{KEY}\n")
    return path


def waiting(finding: Finding, **changes: Any) -> Finding:
    """The finding, once rank 2 has shown where it is, and what it waits for."""
    wait = WaitsFor(
        *(WaitKind.FILE_OPEN, Certainty.SEEN, "/data/shard-17.tar"),
        text="rank 2 waits for data: its loader worker (pid 25037) is in open(/data/shard-17.tar)",
    )
    address = Address(pid=4711, command="python train.py --api-key s3cret", log="/logs/2.err")
    stack = ("/job/train.py:88 in load_batch",)
    suspect = replace(finding.suspects[0], stack=stack, waits_for=wait, address=address)
    said = {
        "headline": "Rank 2 (node1): its loader worker is stuck in open(/data/shard-17.tar)",
        "effect": "holds up 3 ranks in all_reduce #1 of dp for 6 s",
    }
    return replace(finding, **{"id": "f2", "suspects": (suspect,), **said, **changes})


def sent(scene: Scene, receiver: Receiver, finding: Finding) -> dict[str, Any]:
    """The message about its opening."""
    before = len(receiver.received)
    scene.send([FindingEvent(Change.OPENED, finding)])
    until(lambda: len(receiver.received) > before or receiver.problems, "a message")
    assert receiver.problems == []
    return receiver.received[-1]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def test_a_chat_gets_text_with_suspects_and_a_command(tmp_path: Path, receiver: Receiver) -> None:
    """Slack's form; characters that would be a mention or a link are escaped."""
    target = NotifyTarget(
        url=receiver.url, format="slack", on=("opened",), runbook_url="https://wiki/frd/"
    )
    scene = Scene(tmp_path, target)
    scene.hang()
    (event,) = scene.published
    hostile = replace(event.finding, id="f2", job="<!channel>")
    scene.send([replace(event, finding=hostile)])
    until(lambda: len(receiver.received) == 2, "two messages")
    scene.close()
    texts = [message["text"] for message in receiver.received]
    assert [list(message) for message in receiver.received] == [["text"]] * 2
    assert event.finding.headline in texts[0]
    assert event.finding.effect in texts[0]
    assert "• rank 2 on " in texts[0]
    assert f"`frd findings {event.finding.id}`" in texts[0]
    assert texts[0].splitlines()[-2:] == [
        f"http://127.0.0.1:9374/findings/{event.finding.id}",
        "https://wiki/frd/FrdCollectiveStalled.md",
    ]
    assert "<!channel>" not in texts[1]
    assert "&lt;!channel&gt;" in texts[1]


def test_a_chat_gets_equally_likely_suspects_in_one_line(
    tmp_path: Path, receiver: Receiver
) -> None:
    """Ranks 0 and 1 of a circle, what each of them left out, and its line, once; JSON has both."""
    scene = Scene(tmp_path, NotifyTarget(url=receiver.url, format="slack", on=("opened",)))
    scene.hang()
    (event,) = scene.published
    suspects = tuple(
        replace(
            event.finding.suspects[0],
            rank=rank,
            confidence=Confidence.MEDIUM,
            evidence=f"{words}; main thread at train.py:88 in save",
            stack=("/job/train.py:88 in save",),
        )
        for rank, words in enumerate(("is in a", "is in b"))
    )
    scene.send([replace(event, finding=replace(event.finding, id="f2", suspects=suspects))])
    until(lambda: len(receiver.received) == 2, "two messages")
    scene.close()
    lines = receiver.received[1]["text"].splitlines()
    (line,) = (line for line in lines if line.startswith("• "))
    assert line.startswith("• ranks 0-1 (cpu_stuck, confidence medium): rank 0")
    assert "is in a; main thread at train.py:88 in save; rank 1" in line
    assert line.count("train.py:88") == 2


@pytest.mark.parametrize("form", ["json", "slack", "teams", "pagerduty"])
def test_without_the_page_messages_lead_to_the_runbook_only(
    form: Format, tmp_path: Path, receiver: Receiver
) -> None:
    """The page is switched off: no message links to it."""
    key = routing_key(tmp_path) if form == "pagerduty" else None
    target = NotifyTarget(url=receiver.url, format=form, on=("opened",), routing_key_file=key)
    scene = Scene(tmp_path, target, has_pages=False)
    scene.hang()
    until(lambda: receiver.received, "a message")
    scene.close()
    text = json.dumps(receiver.received)
    assert "http://127.0.0.1:9374/runbooks/FrdCollectiveStalled.md" in text
    assert "9374/findings/" not in text
    assert "page_url" not in text


@pytest.mark.parametrize("form", ["json", "slack", "teams", "pagerduty"])
def test_a_message_says_what_a_person_needs_first(form: Format, tmp_path: Path) -> None:
    """Cause, effect, line, wait, what to do, and page; not the command line, in which secrets may
    be."""
    key = routing_key(tmp_path) if form == "pagerduty" else None
    with Receiver() as receiver:
        target = NotifyTarget(url=receiver.url, format=form, routing_key_file=key)
        scene = Scene(tmp_path, target)
        scene.hang()
        finding = waiting(scene.published[0].finding)
        text = json.dumps(sent(scene, receiver, finding))
        scene.close()
    for part in (
        finding.headline,
        finding.effect,
        "train.py:88",
        "pid 25037",
        "ssh node1",
        "/findings/f2",
    ):
        assert part in text, part
    assert "api-key" not in text


def test_pagerduty_follows_a_finding(tmp_path: Path) -> None:
    """An alert with the id of the finding as its key, which is acknowledged and resolved. What
    PagerDuty would refuse is refused here. The routing key is in no row of the outbox."""
    with Receiver(check=receivers.pagerduty) as receiver:
        key = routing_key(tmp_path)
        scene = Scene(
            tmp_path, NotifyTarget(url=receiver.url, format="pagerduty", routing_key_file=key)
        )
        receiver.status = 503
        scene.hang()
        until(lambda: receiver.asked, "a try")
        assert KEY.encode() not in scene.notifier.owed()[0].body
        receiver.status = 200
        finding = scene.say(acknowledged_by="anna")
        scene.send([FindingEvent(Change.CLOSED, finding)])
        until(lambda: len(receiver.received) == 3 or receiver.problems, "three events")
        scene.close()
    assert receiver.problems == []
    trigger, *others = receiver.received
    assert trigger["routing_key"] == KEY
    assert trigger["links"][0]["href"] == f"http://127.0.0.1:9374/findings/{finding.id}"
    payload = trigger["payload"]
    assert (payload["severity"], payload["class"]) == ("warning", "stall")
    assert payload["group"] == finding.job
    assert payload["source"] == finding.suspects[0].node
    assert payload["component"] == "rank 2"
    assert others == [
        {"routing_key": KEY, "dedup_key": finding.id, "event_action": action}
        for action in ("acknowledge", "resolve")
    ]


@pytest.mark.parametrize("status", [400, 429, 500])
def test_what_pagerduty_says(tmp_path: Path, status: int) -> None:
    """A bad request is refused; too many requests and an error of the server are repeated."""
    with Receiver() as receiver:
        receiver.status, key = status, routing_key(tmp_path)
        scene = Scene(
            tmp_path, NotifyTarget(url=receiver.url, format="pagerduty", routing_key_file=key)
        )
        scene.hang()
        until(lambda: scene.counted("refused" if status == 400 else "failed"), "an answer")
        receiver.status = 200
        if status != 400:
            until(lambda: scene.counted("sent"), "another try")
        scene.close()


def test_a_card_of_teams(tmp_path: Path) -> None:
    """Teams' card has buttons, and text that is no Markdown, whatever the job says."""
    with Receiver(check=receivers.teams) as receiver:
        scene = Scene(tmp_path, NotifyTarget(url=receiver.url, format="teams"))
        scene.hang()
        until(lambda: receiver.received, "a card")
        finding = waiting(scene.published[0].finding, job="**x** [a](http://evil)")
        message = sent(scene, receiver, finding)
        scene.close()
    title, headline, effect, *_ = receivers.texts(message)
    assert title == "warning: stall in job **x** [a](http://evil)"
    assert (headline, effect) == (finding.headline, finding.effect)
    actions = message["attachments"][0]["content"]["actions"]
    assert [action["title"] for action in actions] == ["Open the finding", "Runbook"]
    assert actions[0]["url"] == "http://127.0.0.1:9374/findings/f2"


@pytest.mark.parametrize("form", ["slack", "teams", "pagerduty"])
def test_hostile_texts_of_a_job(form: Format, tmp_path: Path) -> None:
    """Control characters, a lone surrogate, markup and megabytes: the receiver takes the message,
    which keeps the title and the page."""
    check = {"teams": receivers.teams, "pagerduty": receivers.pagerduty}.get(form, lambda _: ())
    key = routing_key(tmp_path) if form == "pagerduty" else None
    with Receiver(check=check) as receiver:
        scene = Scene(tmp_path, NotifyTarget(url=receiver.url, format=form, routing_key_file=key))
        scene.hang()
        until(lambda: receiver.received, "the first")
        hostile = "\x1b[31m\ud800<!channel>`" + "\U0001f600" * 200_000
        finding = waiting(scene.published[0].finding, job=hostile, headline=hostile, effect=hostile)
        suspect = replace(finding.suspects[0], evidence=hostile, node=hostile, stack=(hostile,))
        message = sent(scene, receiver, replace(finding, suspects=(suspect,) * 40))
        scene.close()
    text = json.dumps(message)
    assert "/findings/f2" in text
    assert not any(part in text for part in ("\\u001b", '"\\ud800', "u001b", "\\ud800<"))
    if form == "slack":
        assert "<!channel>" not in text
        assert len(message["text"]) < 4_000


# -- A finding as Markdown: what `frd report` prints and the page copies ---------------------------


READ = WaitsFor(
    WaitKind.FILE_READ,
    Certainty.SEEN,
    "/data/shard-17.tar",
    pid=7,
    says="its loader worker (pid 7) has been in read() of /data/shard-17.tar",
)
SUSPECT = Suspect(
    *(1, "node7", Reason.CPU_STUCK, Confidence.HIGH, "last joined seq 6 of dp"),
    stack=("train.py:88 in load",),
    waits_for=READ,
    address=Address(13908, "python train.py", log="/logs/rank1.err"),
)
FINDING = Finding(
    *(
        "0123456789abcdef",
        Kind.STALL,
        FindingState.OPEN,
        "llm",
        0,
        AlignedNs(1_800_000_000 * 10**9),
    ),
    collective=CollectiveRef("dp", "id", 3, 7, "all_reduce", (0, 2), (1,), 62.0),
    suspects=(SUSPECT,),
    victims=(0, 2),
    notes=(Note("ann", AlignedNs(1_800_000_060 * 10**9), "see *OPS-1*"),),
)

REPORT = """\
# Rank 1 (node7): its loader worker is stuck in read(/data/shard-17.tar)

- effect: holds up 2 ranks in all\\_reduce \\#7 of dp for 62 s
- stall · open, job `llm`
- finding `0123456789abcdef`: <https://frd/findings/0123456789abcdef>
- victims: 0,2 (2 ranks)

## Do now

1. Log in to the node.

   ```sh
   ssh node7
   ```

2. Does the file answer? Use a shell that you can lose.

   ```sh
   ls -l /data/shard-17.tar
   ```


## Rank 1 on node7

- alive, but has not joined (cpu_stuck), high confidence
- evidence: last joined seq 6 of dp
- pid: `13908`
- command: `python train.py`
- log: `/logs/rank1.err`

```
train.py:88 in load
```

## History

- 2027-01-15 08:00:00 UTC: opened
- 2027-01-15 08:01:00 UTC: ann: see \\*OPS-1\\*
"""


def test_a_report() -> None:
    """Cause, effect, steps with their commands, the suspect, and what people said."""
    shown = shown_json(worded(FINDING))
    assert report(shown, "https://frd/findings/0123456789abcdef") == REPORT


def test_text_of_jobs_is_no_markup() -> None:
    """Names, evidence and stacks with fences, links, headings, images and control characters."""
    nasty = "```\n# x\n[a](http://b)<img src=x>![i](j)**b** `` ~~~ \x1b[31m @all &lt;"
    suspect = replace(
        SUSPECT,
        node=nasty,
        evidence=nasty,
        stack=(nasty, nasty),
        address=Address(1, nasty, nasty, log=nasty),
    )
    finding = replace(FINDING, job=nasty, suspects=(suspect,), ended_by=nasty, assigned_to=nasty)
    text = report(shown_json(worded(finding)), "")
    html = MarkdownIt("commonmark").render(text)
    tags = set(re.findall(r"</?([a-z0-9]+)", html))
    assert tags == {"h1", "h2", "p", "ul", "ol", "li", "code", "pre"}
    assert html.count("<h1>") == 1
    assert html.count("<h2>") == 3
    assert "\x1b" not in text
