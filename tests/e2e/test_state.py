"""A data directory that is damaged or full, and messages that a killed service owed."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from frd.forms import utc_ns
from tests.world.daemons import frd, run_program, until
from tests.world.small_disk import fill, small_disk
from tests.world.streams import Service, both_nodes, serving, stall
from tests.world.webhook import Receiver

pytestmark = pytest.mark.timeout(120)


def config(folder: Path, url: str = "") -> tuple[str, Path]:
    """A flag for a service that finds a hang after a second, and sends it to `url`."""
    file = folder / "frd.toml"
    notify = f'[notify]\nname = "chat"\nurl = "{url}"\n' if url else ""
    file.write_text(f"{notify}[policy]\nstall_after_s = 1.0\n")
    return "--config", file


async def hang(service: Service, receiver: Receiver | None = None) -> dict[str, Any]:
    """Rank 2 does not come: the finding, once `receiver` was asked."""

    def found() -> Sequence[dict[str, Any]]:
        known: Sequence[dict[str, Any]] = service.get("/api/v1/findings")["findings"]
        return known if receiver is None or receiver.asked else ()

    async with both_nodes(service) as peers:
        return (await stall(peers, time.time_ns(), found))[0]


def rows(data: Path, query: str, name: str = "findings.sqlite3") -> list[Any]:
    """Of a database; none, if it has no such table."""
    try:
        with closing(sqlite3.connect(data / name, timeout=10)) as db, db:
            return db.execute(query).fetchall()
    except sqlite3.OperationalError:
        return []


def failing(service: Service) -> list[dict[str, Any]]:
    """The service, if it cannot store findings."""
    known = service.get("/api/v1/health")["services"]
    return [one for one in known if one["store_errors"].get("findings")]


async def test_damaged_rows_and_a_damaged_cache(tmp_path: Path) -> None:
    """A row of the findings is nested too deeply, another one has no finding, and the timelines are
    no database any more: the service starts, with a line for each in its log, and people see the
    finding that is whole."""
    data, flags, log = tmp_path / "data", config(tmp_path), tmp_path / "log"
    with serving(data, *flags) as service:
        finding = await hang(service)
        service.terminate()
    deep = "[" * 100_000 + "]" * 100_000
    values = f"job, 'open', opened_ns, NULL, '{deep}' FROM findings WHERE id = '{finding['id']}'"
    rows(data, f"INSERT INTO findings SELECT 'deep', {values}")
    rows(data, f"INSERT INTO findings SELECT 'none', {values.replace(deep, '{}')}")
    cache = data / "timelines.sqlite3"
    cache.write_bytes(b"?" * 20_000)
    with serving(data, *flags, log=log) as service:
        said = log.read_text()
        known = service.get("/api/v1/findings")["findings"]
        assert [one["id"] for one in known] == [finding["id"]]
        shown = frd("findings", "--all", "--http", service.http)
        assert shown.returncode == 3
        assert "warning" not in shown.stderr
        assert finding["id"] in shown.stdout
        assert service.metric('frd_store_errors_total{store="timelines"}') == 1
        service.terminate()
    lines = [line for line in said.splitlines() if " ERROR " in line or " WARNING " in line]
    assert len(lines) == 3, said
    assert all(any(word in line for line in lines) for word in ("'deep'", "'none'", str(cache)))
    assert "Traceback" not in log.read_text()
    assert cache.with_name("timelines.sqlite3.damaged").read_bytes() == b"?" * 20_000


async def test_damaged_findings_are_moved_aside(tmp_path: Path) -> None:
    """The file of the findings is no database any more: the service watches, says so, and stores
    what it finds; the damaged file is kept."""
    data, flags = tmp_path / "data", config(tmp_path)
    data.mkdir()
    (data / "findings.sqlite3").write_bytes(b"?" * 20_000)
    with serving(data, *flags) as service:
        assert service.metric('frd_store_errors_total{store="findings"}') == 1
        finding = await hang(service)
        until(lambda: rows(data, "SELECT id FROM findings") == [(finding["id"],)], "not stored")
        service.terminate()
    assert (data / "findings.sqlite3.damaged").read_bytes() == b"?" * 20_000


async def test_a_disk_that_is_full_at_the_start(tmp_path: Path) -> None:
    """The service starts, finds a hang, sends it, and shows that it stores nothing; with room, all
    that is known is stored without a restart. On a disk that has become read-only, a service starts
    as well, and shows what is there."""
    with small_disk(tmp_path / "disk", "2m") as disk, Receiver() as receiver:
        data, log = disk / "data", tmp_path / "log"
        filler = fill(disk)
        with serving(data, *config(tmp_path, receiver.url), log=log) as service:
            until(lambda: failing(service), "it does not show")
            assert "full: free some space: nothing is stored until then" in log.read_text()
            finding = await hang(service, receiver)
            assert receiver.events() == ["opened"]
            assert [one["id"] for one in receiver.received] == [finding["id"]]
            assert rows(data, "SELECT id FROM findings") == []
            filler.unlink()
            until(lambda: rows(data, "SELECT id FROM findings") == [(finding["id"],)], "not stored")
            kept = "SELECT id FROM timelines"
            until(lambda: rows(data, kept, "timelines.sqlite3"), "no timeline")
            service.terminate()
        assert receiver.events() == ["opened"]
        assert "Traceback" not in log.read_text()
        run_program(["mount", "-o", "remount,ro", str(disk)], check=True)
        with serving(data, *config(tmp_path), log=log) as service:
            (known,) = service.get("/api/v1/findings")["findings"]
            assert known["id"] == finding["id"]
            until(lambda: failing(service), "it does not show")
            service.terminate()
        assert "Traceback" not in log.read_text()


async def test_what_a_killed_service_owed_is_sent(tmp_path: Path) -> None:
    """The receiver is down while a finding opens, and the service is killed: the next process sends
    the message, with the same key, and a third one does not repeat it."""
    data = tmp_path / "data"
    with Receiver() as receiver:
        flags = config(tmp_path, receiver.url)
        receiver.status = 503
        with serving(data, *flags) as service:
            finding = await hang(service, receiver)
            service.process.kill()
        receiver.status = 200
        with serving(data, *flags) as service:
            until(receiver.events, "the message is lost")
            until(lambda: rows(data, "SELECT key FROM outbox") == [], "it is still owed")
            service.process.kill()
        with serving(data, *flags) as service:
            service.terminate()
        assert receiver.events() == ["opened"]
        assert receiver.received[0]["id"] == finding["id"]
        assert receiver.headers[0]["Idempotency-Key"] == f'"{finding["id"]}-opened"'


async def test_a_message_that_may_have_been_sent(tmp_path: Path) -> None:
    """The agents do not answer what the service asks of the suspect, so that the message is sent
    nearly five seconds later. The service is killed when it has arrived, and starts from a copy of
    its data of that moment: the receiver gets the message again, and knows it by its key."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    with Receiver() as receiver:
        flags = config(tmp_path, receiver.url)
        receiver.gate.clear()
        with serving(data, *flags) as service:
            finding = await hang(service, receiver)
            assert 4 < receiver.asked_at - utc_ns(finding["opened_at"]) / 1e9 < 5
            # A dump under way may end during the copy.
            shutil.copytree(data, copy, ignore=shutil.ignore_patterns(".unfinished-*"))
            receiver.gate.set()
            until(receiver.events, "no message")
            service.process.kill()
        with serving(copy, *flags) as service:
            until(lambda: len(receiver.events()) == 2, "it is not repeated")
            service.terminate()
        first, second = (sent["Idempotency-Key"] for sent in receiver.headers)
        assert first == second
        assert receiver.events() == ["opened", "opened"]


async def test_what_people_said_outlasts_a_killed_service(tmp_path: Path) -> None:
    """A finding is acknowledged, its job is silenced, and the service is killed: the next process
    has both, and exit code 3 stays. The finding is closed, gets a note, and the process is killed,
    too: the third one has the note."""
    data, flags = tmp_path / "data", config(tmp_path)

    def says(service: Service, *words: str) -> str:
        done = frd("findings", *words, "--http", service.http)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with serving(data, *flags) as service:
        finding = await hang(service)
        id_, job = finding["id"], finding["job"]
        assert says(service, "ack", id_).startswith(f"acknowledged {id_}: ")
        says(service, "silence", "--job", job, "--for", "1h", "--because", "it moves")
        until(lambda: service.get(f"/api/v1/findings/{id_}").get("silenced_by"), "not silenced")
        service.process.kill()
    with serving(data, *flags) as service:
        (known,) = service.get("/api/v1/findings?state=open")["findings"]
        assert known["acknowledged_by"].endswith(" (unverified)")
        assert known["silenced_by"].endswith(f" (unverified), for job {job}")
        assert frd("findings", "--http", service.http).returncode == 3
        assert ": it moves\n" in says(service, "silence", "--list")
        says(service, "close", id_, "--because", "seen")
        says(service, "note", id_, "a bad disk")
        service.process.kill()
    with serving(data, *flags) as service:
        known = service.get(f"/api/v1/findings/{id_}")
        assert [one["text"] for one in known["notes"]] == ["a bad disk"]
        assert known["close_reason"].endswith(" (unverified): seen")
        service.terminate()
