"""Webhooks: what is sent when, to a real HTTP server, whatever that server does."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from frd import config
from frd.config import NotifyTarget
from frd.config.settings import LIVE_KEYS, changed_keys
from frd.errors import ConfigError
from frd.model import Change, FindingEvent
from frd.service.findings import notifier as notifier_module
from frd.service.findings.notifier import Notifier
from frd.service.http.web.pages import load_runbooks as runbooks
from frd.store.findings import Owed
from tests.world.daemons import free_port, until
from tests.world.notified import Scene
from tests.world.webhook import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def test_a_finding_is_sent_when_it_opens_becomes_critical_and_closes(
    tmp_path: Path, receiver: Receiver
) -> None:
    """A rank does not come for half a minute: three messages, each with all of the finding."""
    scene = Scene(tmp_path, NotifyTarget(url=receiver.url))
    scene.whole_story()
    until(lambda: len(receiver.received) == 3, "three messages")
    scene.close()
    assert receiver.events() == ["opened", "critical", "closed"]
    assert [m["severity"] for m in receiver.received] == ["warning", "critical", "critical"]
    opened, _, closed = receiver.received
    finding = scene.published[0].finding
    assert (opened["version"], opened["id"], opened["job"]) == (1, finding.id, finding.job)
    assert opened["summary"] == finding.summary
    assert [suspect["rank"] for suspect in opened["suspects"]] == [2]
    assert opened["command"] == f"frd findings {finding.id}"
    runbook = opened["runbook_url"].removeprefix("http://127.0.0.1:9374/runbooks/")
    assert runbook in runbooks()
    assert opened["page_url"] == f"http://127.0.0.1:9374/findings/{finding.id}"
    assert closed["finding"]["state"] == "closed"
    assert receiver.headers[0]["Content-Type"] == "application/json"
    assert scene.counted("sent") == 3


def test_a_receiver_that_was_down_gets_it_when_it_is_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No server listens, then one does: all messages arrive in order, the log has two lines, and
    no line contains the URL."""
    caplog.set_level(logging.DEBUG)
    port = free_port()
    scene = Scene(tmp_path, NotifyTarget(url=f"http://127.0.0.1:{port}/hook/s3cret"))
    scene.whole_story()
    until(lambda: scene.counted("failed") >= 2, "two tries")
    assert scene.counted("sent") == 0
    with Receiver(port) as receiver:
        receiver.status = 503
        until(lambda: "HTTP 503" in caplog.text or scene.counted("failed") >= 4, "more tries")
        receiver.status = 200
        until(lambda: len(receiver.received) == 3, "three messages")
        until(lambda: scene.counted("sent") == 3, "they are counted")
        scene.close()
        assert receiver.events() == ["opened", "critical", "closed"]
    lines = [r.getMessage() for r in caplog.records if r.name == "frd.service.findings.notifier"]
    assert len(lines) == 2
    assert "not delivered" in lines[0]
    assert "takes messages again" in lines[1]
    assert "s3cret" not in caplog.text


def test_a_receiver_that_does_not_answer_delays_neither_evaluation_nor_others(
    tmp_path: Path, receiver: Receiver
) -> None:
    """One receiver hangs: findings are published as always, and the other one gets them."""
    receiver.gate.clear()
    with Receiver() as other:
        scene = Scene(
            tmp_path,
            NotifyTarget(name="slow", url=receiver.url),
            NotifyTarget(name="quick", url=other.url),
        )
        started = time.monotonic()
        scene.whole_story()
        until(lambda: len(other.received) == 3, "the quick one")
        assert time.monotonic() - started < 10 < NotifyTarget().timeout_s + 1
        assert scene.counted("sent", "slow") == 0
        receiver.gate.set()
        until(lambda: len(receiver.received) == 3, "the slow one")
        scene.close()
    assert receiver.events() == other.events()


def test_a_queue_drops_its_oldest(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message is on its way and two may wait: of five, two are dropped and counted."""
    monkeypatch.setattr(notifier_module, "MAX_QUEUED", 2)
    receiver.gate.clear()
    scene = Scene(tmp_path, NotifyTarget(url=receiver.url))
    scene.hang()
    until(lambda: receiver.asked, "the first message")
    (event,) = scene.published
    for number in range(4):
        scene.send([replace(event, finding=replace(event.finding, id=f"f{number}"))])
    assert scene.counted("dropped") == 2
    receiver.gate.set()
    until(lambda: len(receiver.received) == 3, "three messages")
    scene.close()
    assert [message["id"] for message in receiver.received] == [event.finding.id, "f2", "f3"]
    assert scene.counted("dropped") == 2


def test_what_is_owed_outlives_the_process(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receiver is down when the service ends: what is owed is in the outbox, without the URL,
    and the next process sends it, each message with the key that it had."""
    monkeypatch.setattr(notifier_module, "_STOP_WITHIN_S", 0.1)
    target = NotifyTarget(name="chat", url=receiver.url)
    receiver.status = 503
    scene = Scene(tmp_path, target)
    store = scene.world.store
    store.owed = scene.notifier.owed
    scene.whole_story()
    finding, events = scene.published[0].finding, ["opened", "critical", "closed"]
    owed = store.outbox()
    assert [message.key for message in owed] == [f"{finding.id}-{name}" for name in events]
    assert b"s3cret" not in b"".join(message.body for message in owed)
    scene.notifier.close()
    store.keep_owed()
    assert store.outbox() == owed

    receiver.status = 200
    later = Notifier([target], lambda: "")
    store.owed = later.owed
    later.resume(store.outbox())
    until(lambda: len(receiver.received) == 3, "three messages")
    until(lambda: not later.owed(), "they are settled")
    store.keep_owed()
    assert store.outbox() == []
    assert receiver.events() == events
    keys = [headers["Idempotency-Key"] for headers in receiver.headers]
    assert keys == [f'"{message.key}"' for message in owed]
    later.close()
    scene.close()


def test_what_is_owed_in_vain(tmp_path: Path, receiver: Receiver) -> None:
    """After a day, and for a target that is configured no more, nothing is sent, and it is counted;
    beyond the bound the oldest are dropped. A time in the future is no reason."""
    now = time.time_ns()
    notifier = Notifier([NotifyTarget(name="chat", url=receiver.url)], lambda: "")
    notifier.resume(
        [
            Owed("chat", "a-opened", now - 86_400 * 10**9, b'{"event": "old"}'),
            Owed("gone", "b-opened", now, b'{"event": "gone"}'),
            Owed("chat", "c-opened", now - 10**9, b'{"event": "young"}'),
            Owed("chat", "d-opened", now + 86_400 * 10**9, b'{"event": "future"}'),
        ]
    )
    until(lambda: len(receiver.received) == 2, "two messages")
    until(lambda: not notifier.owed(), "all is settled")
    assert receiver.events() == ["young", "future"]
    assert notifier.counted()["chat", "dropped"] == notifier.counted()["gone", "dropped"] == 1
    receiver.gate.clear()
    notifier.resume(Owed("chat", f"{n}", now, b"{}") for n in range(2_000))
    assert len(notifier.owed()) <= notifier_module.MAX_QUEUED + 1
    receiver.gate.set()
    notifier.close()


def test_a_target_that_changes_owes_nothing(tmp_path: Path, receiver: Receiver) -> None:
    """SIGHUP changes its URL: what the old one did not take is dropped, counted, and not owed."""
    receiver.status = 503
    scene = Scene(tmp_path, NotifyTarget(name="chat", url=receiver.url))
    scene.hang()
    until(lambda: receiver.asked, "a try")
    scene.notifier.adopt([NotifyTarget(name="chat", url="http://127.0.0.1:1/")])
    until(lambda: not scene.notifier.owed(), "it is still owed")
    assert scene.counted("dropped", "chat") == 1
    scene.close()


def test_a_message_waits_until_its_finding_is_stored(tmp_path: Path, receiver: Receiver) -> None:
    """It is owed when the finding is stored, and sent when the finding is published."""
    scene = Scene(tmp_path, NotifyTarget(url=receiver.url))
    scene.hang()
    until(lambda: receiver.events() == ["opened"], "a message")
    (event,) = scene.published
    other = [replace(event, finding=replace(event.finding, id="f1"))]
    until(lambda: not scene.notifier.owed(), "the first one is settled")
    scene.notifier.prepare(other)
    assert [message.key for message in scene.notifier.owed()] == ["f1-opened"]
    scene.notifier.see([])
    scene.notifier.see(other)
    until(lambda: receiver.events() == ["opened", "opened"], "the other one")
    scene.close()


@pytest.mark.parametrize("status", [302, 307, 404])
def test_refused_messages_are_not_repeated(tmp_path: Path, receiver: Receiver, status: int) -> None:
    """A redirect is not followed, and a 404 is not repeated; the next message is sent."""
    with Receiver() as elsewhere:
        receiver.status, receiver.location = status, elsewhere.url
        scene = Scene(tmp_path, NotifyTarget(url=receiver.url))
        scene.hang()
        until(lambda: scene.counted("refused") == 1, "a refusal")
        scene.close()
        assert elsewhere.received == receiver.received == []
        assert scene.counted("failed") == scene.counted("dropped") == 0


def test_url_and_headers_come_from_files_that_may_change(
    tmp_path: Path, receiver: Receiver
) -> None:
    """A Secret is mounted as files: their content at the time of sending is used."""
    url, headers = tmp_path / "url", tmp_path / "headers"
    url.write_text(f"{receiver.url}\n")
    headers.write_text("# ours\nAuthorization: Bearer abc\n")
    target = NotifyTarget(url_file=url, headers_file=headers)
    scene = Scene(tmp_path, target)
    scene.hang()
    until(lambda: len(receiver.received) == 1, "the opening")
    headers.write_text("Authorization: Bearer def\n")
    (event,) = scene.published
    scene.send([FindingEvent(Change.CLOSED, event.finding)])
    until(lambda: len(receiver.received) == 2, "the closing")
    scene.close()
    assert [sent["Authorization"] for sent in receiver.headers] == ["Bearer abc", "Bearer def"]
    url.write_text("hooks.example/s3cret")
    with pytest.raises(ConfigError, match=r"^notify : url_file: .*/url: set, not shown: must beg"):
        Notifier([target], lambda: "")
    headers.write_text("no colon")
    url.write_text(receiver.url)
    with pytest.raises(ConfigError, match=r"headers_file: .*: line 1: write NAME: VALUE"):
        Notifier([target], lambda: "")
    url.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        Notifier([target], lambda: "")


def test_a_reload_keeps_the_queues_of_targets_that_stay(tmp_path: Path, receiver: Receiver) -> None:
    """Messages of a target that stays are sent; a new target gets later changes."""
    receiver.status = 500
    stays = NotifyTarget(name="stays", url=receiver.url)
    closed = f"http://127.0.0.1:{free_port()}/"
    scene = Scene(tmp_path, stays, NotifyTarget(name="goes", url=closed))
    scene.hang()
    with Receiver() as second:
        scene.notifier.adopt([stays, NotifyTarget(name="new", url=second.url)])
        receiver.status = 200
        until(lambda: receiver.events() == ["opened"], "the one that stays")
        (event,) = scene.published
        other = replace(event.finding, id="other")
        scene.send([FindingEvent(Change.CLOSED, event.finding)])
        scene.send([replace(event, finding=other)])
        until(lambda: receiver.events() == ["opened", "closed", "opened"], "what comes")
        until(lambda: second.events() == ["opened"], "the new one")
        scene.close()


# -- configuration -------------------------------------------------------------------------------


def loaded(folder: Path, text: str) -> config.Config:
    path = folder / "frd.toml"
    path.write_text(text)
    return config.load(path)


def test_one_table_or_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the file and in the environment; no output contains the URL."""
    one = loaded(tmp_path, '[notify]\nurl = "https://h/s3cret"\non = ["closed"]\n')
    assert one.notify == (NotifyTarget("1", "https://h/s3cret", on=("closed",)),)
    for text in (config.as_toml(one), str(config.as_dict(one)), repr(one)):
        assert "s3cret" not in text
    text = '[[notify]]\nname = "a"\nurl = "http://h/"\n[[notify]]\nurl_file = "f"\n'
    two = loaded(tmp_path, text)
    assert [(t.name, t.url, t.url_file) for t in two.notify] == [
        ("a", "http://h/", None),
        ("2", "", Path("f")),
    ]
    assert changed_keys(one, two) == ["notify"]
    assert "notify" in LIVE_KEYS
    text = '[notify]\nformat = "pagerduty"\nrouting_key_file = "f"\n'
    assert loaded(tmp_path, text).notify[0].url == "https://events.pagerduty.com/v2/enqueue"
    by_file = loaded(tmp_path, '[[notify]]\nurl_file = "f"\n')
    assert loaded(tmp_path, config.as_toml(by_file)) == by_file
    monkeypatch.setenv("FRD_NOTIFY", '[{"url": "http://e/", "format": "slack"}]')
    assert config.load().notify == (NotifyTarget("1", "http://e/", format="slack"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "notify.0.url: set either url or url_file"),
        ('url = "http://h/"\nurl_file = "f"', "notify.0.url: set either url or url_file"),
        ('url = "s3cret"', "notify.0.url: set, not shown: must begin with http:// or https://"),
        ('url = "http://s3cret:99999/"', "notify.0.url: set, not shown: not a URL"),
        ('url = "http://s3cret@h/"', "notify.0.url: set, not shown: holds a user name"),
        ('url = "http://h/s3cret x"', "notify.0.url: set, not shown: write it without spaces"),
        ('urll = "s3cret"', "notify.0.urll: unknown key: did you mean notify.0.url?"),
        ('url = "http://h/"\non = ["soon"]', "notify.0.on.0: 'soon': must be 'opened', 'critical"),
        ('format = "pagerduty"', "notify.0.routing_key_file: not set: format pagerduty needs it"),
        (
            'url = "http://h/"\nrouting_key_file = "f"',
            "notify.0.routing_key_file: set: only format pagerduty has one",
        ),
        ('url = "http://h/"\non = []', "notify.0.on: []: name at least one event"),
        ('url = "http://h/"\ntimeout_s = 0', "notify.0.timeout_s: 0: must be greater than 0"),
        ('url = "http://h/"\n[[notify]]\nurl = "http://h/"\nname = "1"', "notify.1.name: '1': ano"),
    ],
)
def test_a_mistake_names_the_key_and_never_the_url(tmp_path: Path, text: str, message: str) -> None:
    """A user who sees the error may not be allowed to see the URL."""
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, f"[[notify]]\n{text}\n")
    assert str(caught.value).startswith(message)
    assert "s3cret" not in str(caught.value)
