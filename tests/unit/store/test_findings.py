"""The findings database: durable, idempotent, clear when it cannot be used."""

from __future__ import annotations

import dataclasses
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from frd.engine.matching.learned_pauses import JobPauses
from frd.errors import StoreError
from frd.model import (
    AlignedNs,
    Change,
    Finding,
    FindingEvent,
    FindingState,
)
from frd.store.database import VERSION
from frd.store.findings import FindingStore, Notified, Owed
from tests.world.timelines import finding as hang

SECOND = 1_000_000_000
START = 1_800_000_000 * SECOND + 123_456_789


def finding(number: int = 1, *, job: str = "train") -> Finding:
    """Each opened a second after the one before."""
    at = AlignedNs(START + number * SECOND)
    return hang(
        *(2, 3), missing=(2, 3), waiting=(0, 1), victims=(0, 1), unknown=(5,), witness=0,
        id=f"{number:016x}", job=job, opened_at=at, groups_held_up=("dp",), dump="20261120-1",
    )  # fmt: skip


def opened(item: Finding) -> FindingEvent:
    return FindingEvent(Change.OPENED, item)


def closed(item: Finding, at: int) -> FindingEvent:
    return FindingEvent(
        Change.CLOSED,
        dataclasses.replace(item, state=FindingState.CLOSED, closed_at=AlignedNs(at)),
    )


def writer(store: FindingStore) -> sqlite3.Connection:
    """The connection that `store` writes with."""
    assert store.db._writer is not None
    return store.db._writer


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FindingStore]:
    store = FindingStore(tmp_path / "findings.sqlite")
    yield store
    store.close()


def test_saving_again_changes_nothing(store: FindingStore) -> None:
    """The same events saved twice leave one row, and a newer version replaces the older."""
    newer = dataclasses.replace(finding(), summary="now with a stack")
    store.save([opened(finding()), opened(finding())])
    store.save([FindingEvent(Change.UPDATED, newer)])
    store.save([FindingEvent(Change.UPDATED, newer)])
    assert store.query() == [newer]


def test_query_filters_and_orders(store: FindingStore) -> None:
    """Queries give the newest first, by state and job, at most `limit`."""
    store.save([opened(finding(n, job="a" if n % 2 else "b")) for n in range(1, 7)])
    store.save([closed(finding(6, job="b"), START + 9 * SECOND)])
    assert [f.id[-1] for f in store.query()] == list("654321")
    assert [f.id[-1] for f in store.query(job="a")] == list("531")
    assert [f.id[-1] for f in store.query(state=FindingState.CLOSED)] == ["6"]
    assert [f.id[-1] for f in store.query(state=FindingState.OPEN, job="b", limit=1)] == ["4"]
    assert [f.id[-1] for f in store.open_findings()] == list("12345")
    assert store.get("nothing") is None


@pytest.mark.parametrize("name", ["a\udcffb", "\ud800", "né\x00w", "' OR 1=1 --", "\U0001f525"])
def test_odd_text_survives(store: FindingStore, name: str) -> None:
    """Job names and groups that are not UTF-8, or look like SQL, are read back unchanged."""
    odd = dataclasses.replace(finding(job=name), summary=name, groups_held_up=(name,))
    store.save([opened(odd)])
    assert store.query(job=name) == [odd]


def test_pages_show_each_finding_once(store: FindingStore) -> None:
    """Three findings opened in the same nanosecond, and pages are of two."""
    same = [dataclasses.replace(finding(n), opened_at=AlignedNs(START)) for n in (1, 2, 3)]
    store.save([opened(one) for one in (*same, finding(4))])
    seen: list[Finding] = []
    while page := store.page(after=(seen[-1].opened_at, seen[-1].id) if seen else (0, ""), limit=2):
        seen += page
    assert seen == [*same, finding(4)]


@pytest.mark.parametrize(
    ("event", "synced"),
    [
        (opened(finding()), True),
        (FindingEvent(Change.UPDATED, finding()), False),
        (closed(finding(), START + 9 * SECOND), True),
    ],
    ids=["opened", "updated", "closed"],
)
def test_openings_and_closings_are_synced(
    store: FindingStore, event: FindingEvent, synced: bool
) -> None:
    """After a power loss a closed finding must not be open again; updates need no sync."""
    said: list[str] = []
    writer(store).set_trace_callback(said.append)
    store.save([event])
    assert f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}" in said


def test_jobs_share_the_store(store: FindingStore) -> None:
    """Job a had eight findings after the two of job b: pruning takes those of a."""
    of_a = [replace(finding(n), job="a") for n in range(1, 9)]
    of_b = [replace(finding(n), job="b", id=f"b{n}") for n in (1, 2)]
    store.save([opened(one) for one in (*of_a, *of_b)])
    store.save([closed(one, START + (9 + n) * SECOND) for n, one in enumerate(of_a)])
    store.save([closed(one, START + n * SECOND) for n, one in enumerate(of_b)])
    now = AlignedNs(START + 100 * SECOND)
    assert store.prune(max_count=5, max_age_s=1000, now=now) == 5
    assert sorted(f.job for f in store.query()) == ["a", "a", "a", "b", "b"]
    assert store.prune(max_count=3, max_age_s=1000, now=now) == 2
    assert sorted((f.job, f.id[-1]) for f in store.query()) == [("a", "7"), ("a", "8"), ("b", "2")]


def test_prune_keeps_what_is_open(store: FindingStore) -> None:
    """Pruning by age, then by count, takes the oldest closed findings and never an open one."""
    store.save([opened(finding(n)) for n in range(1, 9)])
    store.save([closed(finding(n), START + n * SECOND) for n in range(3, 9)])
    now = AlignedNs(START + 10 * SECOND)
    assert store.prune(max_count=100, max_age_s=6.5, now=now) == 1
    assert store.prune(max_count=4, max_age_s=100, now=now) == 3
    assert {f.id[-1] for f in store.query()} == set("1278")
    assert store.prune(max_count=0, max_age_s=0, now=now) == 2
    assert {f.id[-1] for f in store.query()} == set("12")


def test_killed_process_loses_nothing_saved(tmp_path: Path) -> None:
    """A process that dies by SIGKILL right after `save` leaves the finding for the next one."""
    path = tmp_path / "findings.sqlite"
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tests.unit.store.test_findings import finding, opened\n"
        "from frd.store.findings import FindingStore\n"
        "FindingStore(Path(sys.argv[1])).save([opened(finding())])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parents[3]
    died = subprocess.run([sys.executable, "-c", code, path], cwd=root, check=False)
    assert died.returncode == -9
    store = FindingStore(path)
    assert store.open_findings() == [finding()]
    store.close()


def test_readers_and_a_writer(store: FindingStore) -> None:
    """Threads that read while another writes see whole findings and no lock error."""
    errors: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                for item in store.query():
                    assert item.summary
        except BaseException as error:
            errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in readers:
        thread.start()
    for number in range(50):
        store.save([FindingEvent(Change.UPDATED, finding(number))])
    done.set()
    for thread in readers:
        thread.join()
    assert errors == []
    assert len(store.query()) == 50


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    """With the umask of a login shell, other users cannot read the files."""
    tmp_path.chmod(0o755)
    before = os.umask(0o022)
    try:
        with closing(FindingStore(tmp_path / "findings.sqlite3")) as store:
            store.save([opened(finding())])
            modes = {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == {0o600}


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_files_that_cannot_be_used(tmp_path: Path, version: int) -> None:
    """A path below a file fails each use, and the database of another frd the start, with an error
    that names it and what to do; the file is left alone."""
    other, foreign = tmp_path / "other", tmp_path / "foreign"
    other.write_bytes(b"")
    with closing(sqlite3.connect(foreign)) as db, db:
        db.execute(f"PRAGMA user_version = {version}")
    before = foreign.read_bytes()
    store = FindingStore(other / "db")
    with pytest.raises(StoreError, match=r"findings database: .*other/db.*--data-dir"):
        store.save([opened(finding())])
    with pytest.raises(StoreError, match=rf"schema version {version} where this frd has {VERSION}"):
        FindingStore(foreign)
    assert foreign.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"foreign", "other"}


DAMAGE = {
    "empty": "body = '{}'",
    "cut off": "body = '{'",
    "a list": "body = '[]'",
    "a number": "body = 7",
    "not UTF-8": "body = CAST(x'7b22ff227d' AS TEXT)",
    "deep lists": f"body = '{'[' * 50_000}{']' * 50_000}'",
    "deep objects": f"""body = '{'{"a":' * 50_000}1{"}" * 50_000}'""",
    "a time of text": "opened_ns = 'soon'",
    "a time of bytes": "opened_ns = x'00'",
    "an infinite time": "closed_ns = 9e999",
    "an id of bytes": "id = x'ff', body = ''",
    "a suspect": """body = json_set(body, '$.suspects', json('[{"rank":"two"}]'))""",
    "victims": "body = json_set(body, '$.victims', 'all')",
}


@pytest.mark.parametrize("change", DAMAGE.values(), ids=DAMAGE)
def test_damaged_row(store: FindingStore, change: str, caplog: pytest.LogCaptureFixture) -> None:
    """A row that is no finding, or is nested too deeply, is left out of every answer, and logged
    once with its id; the others are shown."""
    store.save([opened(finding(n)) for n in (1, 2, 3)])
    with closing(sqlite3.connect(store.path)) as db, db:
        db.execute(f"UPDATE findings SET {change} WHERE id = '{finding(2).id}'")
    for _ in range(2):
        assert store.open_findings() == [finding(1), finding(3)]
        assert store.query() == [finding(3), finding(1)]
        assert store.query(kind=finding().kind) == [finding(3), finding(1)]
        assert store.page() == [finding(1), finding(3)]
        assert store.get(finding(2).id) is None
    (line,) = caplog.messages
    assert finding(2).id in line or "xff" in line
    assert "the row is left out" in line
    assert len(line) < 1_100
    store.save([closed(finding(2), START + 9 * SECOND)])
    assert finding(3) in store.query()


def test_damaged_pauses(store: FindingStore, caplog: pytest.LogCaptureFixture) -> None:
    """The pauses of one job cannot be read: those of the others are."""
    store.save_pauses([JobPauses(job, AlignedNs(START)) for job in ("a", "b")])
    with closing(sqlite3.connect(store.path)) as db, db:
        db.execute("UPDATE pauses SET body = ? WHERE job = 'a'", ("[" * 50_000,))
    assert [one.job for one in store.pauses()] == ["b"]
    assert "pauses 'a'" in caplog.text


def test_full_disk(store: FindingStore) -> None:
    """A disk that is full fails the save with advice, and leaves what was there."""
    store.save([opened(finding(1))])
    (pages,) = writer(store).execute("PRAGMA page_count").fetchone()
    writer(store).execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="free some space"):
        store.save([opened(finding(n)) for n in range(2, 200)])
    assert store.query() == [finding(1)]


def test_messages_are_stored_with_their_finding(store: FindingStore) -> None:
    """The outbox follows what is owed: in the transaction of a finding or later, in the order of
    storing. If it cannot, the finding is not stored."""
    one, two, three = (Owed("chat", f"{n}-opened", n, b"\0\xff") for n in (1, 2, 3))
    owed = [two]
    store.save([opened(finding(1))])
    store.keep_owed()
    assert store.outbox() == []
    store.owed = lambda: owed
    store.save([opened(finding(1))])
    assert store.outbox() == [two]
    owed += [one, three]
    store.keep_owed()
    assert store.outbox() == [two, one, three]
    owed.remove(one)
    store.save([FindingEvent(Change.UPDATED, finding(2))])
    assert store.outbox() == [two, three]
    owed.clear()
    store.keep_owed()
    assert store.outbox() == []

    def fails() -> list[Owed]:
        raise sqlite3.OperationalError("no room")

    store.owed = fails
    with pytest.raises(StoreError, match="no room"):
        store.save([opened(finding(4))])
    assert store.get(finding(4).id) is None


def test_what_was_sent_is_stored_with_its_finding(store: FindingStore) -> None:
    """By finding, as long as it is open, and only as it is now."""
    one, two = Notified("a", ("opened",), ("chat", 'b"\ud800')), Notified("b")
    known = [one, two]
    store.notified = lambda: known
    store.save([opened(finding(1))])
    assert sorted(store.were_notified()) == known
    known[:] = [two._replace(events=("opened", "critical"))]
    store.keep_owed()
    assert store.were_notified() == known


def test_what_is_owed_is_news_until_it_is_stored(store: FindingStore) -> None:
    """At first it is unknown what the file has; then only what has changed is news, also if a
    finding was stored meanwhile, and all of it for a file that replaces a damaged one."""
    owed: list[Owed] = []
    store.owed = lambda: owed
    assert store.owes_news
    store.keep_owed()
    assert not store.owes_news
    owed.append(Owed("chat", "a-opened", 1, b"x"))
    assert store.owes_news
    store.save([opened(finding(1))])
    assert not store.owes_news
    store.db.damaged += 1
    assert store.owes_news


def test_a_damaged_outbox(store: FindingStore) -> None:
    """Values of another kind do no harm."""
    store.owed = lambda: [Owed("chat", "a-opened", 1, b"x")]
    store.notified = lambda: [Notified("a", ("opened",))]
    store.keep_owed()
    with closing(sqlite3.connect(store.path)) as db, db:
        db.execute("UPDATE outbox SET since_ns = 'soon', body = 7, key = x'ff'")
        db.execute("UPDATE notified SET events = 7")
    (message,) = store.outbox()
    assert (message.since_ns, message.body) == (0, b"7")
    assert store.were_notified() == []
    store.keep_owed()
    assert store.were_notified() == [Notified("a", ("opened",))]


def test_a_database_locked_by_another_process(store: FindingStore) -> None:
    """The error says that another frd serve may be the cause."""
    writer(store).execute("PRAGMA busy_timeout = 0")
    with closing(sqlite3.connect(store.path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another frd serve uses this data directory"):
            store.save([opened(finding())])
        store.save([])
    store.save([opened(finding())])
    assert store.query() == [finding()]
