"""The `frd` command against a little HTTP server that speaks as the service does."""

from __future__ import annotations

import csv
import io
import json
import signal
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from frd.cli import FAILED, FINDINGS_PRESENT, USAGE, run
from frd.cli.client import Client
from frd.errors import FrdError, ServiceUnavailable

FINDING = {
    "id": "ab12",
    "kind": "stall",
    "state": "open",
    "job": "train",
    "attempt": 0,
    "opened_at": "2026-11-20T10:00:00.123456Z",
    "closed_at": None,
    "suspects": [],
    "victims": [0, 1],
    "summary": "it hangs",
    "dump": "20261120-1",
}
JOB = {
    "job": "a/b",
    "attempt": 1,
    "world_size": 4,
    "ended": False,
    "groups": [
        {
            "group_id": "g",
            "group": "default_pg",
            "size": 4,
            "open": 1,
            "stalled": 1,
            "stall_s": 12.0,
            "matched": 6,
            "enqueued": 7,
            "completed": 6,
        }
    ],
    "ranks": [
        {
            "rank": rank,
            "node": "node7",
            "pid": 100 + rank,
            "state": "live",
            "detail": "",
            "as_of": "2026-11-20T10:00:00.123456Z",
            "age_s": 0.5,
            "waiting_in": "" if rank == 2 else "all_reduce #7 on default_pg",
            "waiting_s": 0.0 if rank == 2 else 12.0,
        }
        for rank in range(4)
    ],
    "memory": {
        "ranks": 4,
        "recent_every_s": 2.0,
        "series": [
            {
                "rank": 2,
                "kind": "host_used",
                "device": "",
                "used_bytes": 12 << 30,
                "capacity_bytes": 16 << 30,
                "recent_bytes": [None, 4 << 30, 8 << 30, 12 << 30],
            }
        ],
    },
    "nodes": [
        {
            "node": "node7",
            "boot_id": "b",
            "connected": True,
            "clock_state": "synchronized",
            "clock_reason": "",
            "clock_offset_s": -2.5,
            "clock_uncertainty_s": 0.00032,
            "clock_drift_ppm": 12.34,
            "clock_age_s": 0.7,
            "clock_steps": 1,
            "last_message_age_s": 0.4,
            "ranks": [0, 1],
        },
        {
            "node": "node8",
            "boot_id": "c",
            "connected": True,
            "clock_state": "unsynchronized",
            "clock_reason": "no exchange yet",
            "clock_offset_s": 0.0002,
            "clock_uncertainty_s": None,
            "clock_drift_ppm": 0.0,
            "clock_age_s": None,
            "clock_steps": 0,
            "last_message_age_s": 0.4,
            "ranks": [2, 3],
        },
    ],
    "findings": [FINDING],
}


def tar_of(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


DUMP = {
    "summary.json": json.dumps({"answered": [0, 1, 3], "failed": {"2": "no answer"}}).encode(),
    "train/rank_0": b"pickle",
    "train/rank_0.json": b"{}",
}


class Service:
    """Answers by path; remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.asked: list[tuple[str, bytes]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.reply(b"")

            def do_POST(self) -> None:
                self.reply(self.rfile.read(int(self.headers["Content-Length"])))

            def reply(self, body: bytes) -> None:
                service.asked.append((self.path, body))
                missing = json.dumps({"error": "path: unknown: look elsewhere"}).encode()
                status, data = service.answers.get(self.path, (404, missing))
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                """Silence: the tests look at `asked`."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"

    def says(self, path: str, value: object, status: int = 200) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.answers[path] = (status, data)


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    thread = threading.Thread(target=service.server.serve_forever, args=(0.01,))
    thread.start()
    yield service
    service.server.shutdown()
    service.server.server_close()
    thread.join()


def frd(service: Service, *arguments: str) -> int:
    return run([*arguments, "--http", service.address])


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    assert error.startswith("frd: error: ")
    assert error.count("\n") == 1
    return error


# -- how commands end --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [["bogus"], ["findings", "--wach"], ["dump"], ["dump", "-o", "x", "--ranks", "3-1"], ["check"]],
)
def test_wrong_usage_is_one_line_and_exit_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped command line names the help that would have told."""
    assert run(arguments) == USAGE
    assert "--help`" in error_of(capsys)


def test_a_service_that_is_not_there_is_one_line_and_exit_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing listens: the line says where, and how to start or name the service."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        assert run(["status", "--http", f"127.0.0.1:{taken.getsockname()[1]}"]) == FAILED
    assert "nothing listens there: start `frd serve`" in error_of(capsys)


def test_a_token_is_not_sent_in_clear(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Beyond this machine a token wants TLS, or somebody who accepts that it is seen."""
    (tmp_path / "token").write_text("t" * 32)
    told = ["status", "--http", "frd.invalid:1", "--token-file", str(tmp_path / "token")]
    assert run(told) == USAGE
    assert "would be sent unencrypted" in error_of(capsys)
    assert run([*told, "--insecure"]) == FAILED
    assert "frd.invalid:1" in error_of(capsys)


def test_help_does_not_import_the_commands() -> None:
    """`frd --help` is fast: it imports no command, and none of their libraries."""
    script = (
        "import sys; from frd.cli import run; run(['--help']); "
        "print([m for m in ('rich', 'numpy', 'pydantic', 'grpc', 'frd.cli.status')"
        " if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_leaves_early_is_no_crash(tmp_path: Path) -> None:
    """`frd check ... | head -0` ends without a traceback."""
    config = tmp_path / "frd.toml"
    config.write_text("")
    frd = subprocess.Popen(
        [sys.executable, "-m", "frd", "check", "--config", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert frd.stdout is not None
    frd.stdout.close()
    _, error = frd.communicate()
    assert b"Traceback" not in error


# -- the client --------------------------------------------------------------------------------


def test_the_service_is_quoted_when_it_refuses(service: Service) -> None:
    """An error of the API reaches the user in the service's own words."""
    with pytest.raises(FrdError, match="path: unknown: look elsewhere"):
        Client(service.address).get("/api/v1/nothing")


@pytest.mark.parametrize(("status", "body"), [(500, b"<html>"), (200, b"<html>"), (200, b"\xff")])
def test_another_server_is_recognized(service: Service, status: int, body: bytes) -> None:
    """HTTP without frd behind it says that the address is wrong."""
    service.says("/api/v1/jobs", body, status)
    with pytest.raises(FrdError, match="name the HTTP address of `frd serve`"):
        Client(service.address).get("/api/v1/jobs")


def test_a_server_that_says_nothing_is_given_up() -> None:
    """A port that accepts and stays silent costs the timeout, no more."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = Client(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.05)
        with pytest.raises(ServiceUnavailable, match=r"no answer within 0\.05 s"):
            client.get("/api/v1/jobs")


def test_a_server_that_speaks_something_else_is_given_up() -> None:
    """The gRPC port instead of the HTTP port is a clear line, not a stack trace."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\n\n")

        thread = threading.Thread(target=answer)
        thread.start()
        client = Client(f"127.0.0.1:{other.getsockname()[1]}", timeout_s=5.0)
        with pytest.raises(ServiceUnavailable, match="does not speak HTTP"):
            client.get("/api/v1/jobs")
        thread.join()


# -- commands ----------------------------------------------------------------------------------


def test_findings_present_is_exit_3(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    """A script can tell by the exit code alone."""
    service.says("/api/v1/findings?state=open", {"findings": []})
    assert frd(service, "findings") == 0
    assert "no findings" in capsys.readouterr().out
    service.says("/api/v1/findings?state=open", {"findings": [FINDING]})
    assert frd(service, "findings") == FINDINGS_PRESENT
    assert "it hangs" in capsys.readouterr().out


def test_findings_as_json_are_the_services_own(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """--all asks for closed ones too, --job is passed on, and nothing is reshaped."""
    service.says("/api/v1/findings?job=a%2Fb", {"findings": [FINDING]})
    assert frd(service, "findings", "--all", "--job", "a/b", "--json") == FINDINGS_PRESENT
    assert json.loads(capsys.readouterr().out) == {"findings": [FINDING]}


def says_history(service: Service) -> None:
    """Two pages of one finding each, as asked for since one moment."""
    since = "since=2026-11-20T00%3A00%3A00.000000Z&limit=500"
    later = {**FINDING, "id": "cd34", "job": "\t=1+1", "summary": "=HYPERLINK()"}
    service.says(f"/api/v1/history?{since}", {"findings": [FINDING], "next": "9.ab12"})
    service.says(f"/api/v1/history?{since}&after=9.ab12", {"findings": [later], "next": None})


def test_export_goes_from_page_to_page(
    service: Service, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """All pages, one JSON object a line; into a file only if there is none yet."""
    says_history(service)
    assert frd(service, "findings", "export", "--since", "2026-11-20") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [finding["id"] for finding in found] == ["ab12", "cd34"]
    assert found[0] == FINDING
    wanted = ("findings", "export", "--since", "2026-11-20", "-o", str(tmp_path / "f"))
    assert frd(service, *wanted) == 0
    assert len((tmp_path / "f").read_text().splitlines()) == 2
    assert frd(service, *wanted) == FAILED
    assert "exists: name a new file" in capsys.readouterr().err


def test_export_as_csv(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    """A row a finding, ranks folded, and nothing that a spreadsheet would execute."""
    says_history(service)
    assert frd(service, "findings", "export", "--since", "2026-11-20", "--format", "csv") == 0
    first, second = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (first["id"], first["victims"], first["closed_at"]) == ("ab12", "0-1", "")
    assert second["summary"] == "'=HYPERLINK()"
    assert second["job"] == "'\t=1+1"


def test_an_export_that_breaks_off_leaves_no_file(
    service: Service, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The second page fails: exit 1, one line, and no half of a file."""
    service.says("/api/v1/history?limit=500", {"findings": [FINDING], "next": "9.ab12"})
    assert frd(service, "findings", "export", "-o", str(tmp_path / "f")) == FAILED
    assert "frd: error: " in capsys.readouterr().err
    assert not (tmp_path / "f").exists()


def test_options_of_export_stand_behind_it(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """What stands before it would be lost, so it is refused."""
    assert run(["findings", "--http", service.address, "export"]) == USAGE
    assert "write it behind export" in capsys.readouterr().err
    assert frd(service, "findings", "export", "--since", "soon") == USAGE
    assert "write a time such as" in capsys.readouterr().err


def test_status_folds_ranks_that_stand_alike(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three ranks that wait in one collective are one row; clocks and the finding are told."""
    service.says("/api/v1/jobs", {"jobs": [{"job": "a/b"}]})
    service.says("/api/v1/jobs/a%2Fb", JOB)
    assert frd(service, "status") == 0
    text = capsys.readouterr().out
    row = next(line for line in text.splitlines() if "all_reduce #7" in line)
    assert row.split()[:3] == ["0-1,3", "(3", "ranks)"]
    assert "ab12" in text
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert rows.index("node8 no exchange yet +0.200 0") < rows.index(
        "node7 synchronized -2500.000 ± 0.320 +12.3 1 0.7"
    )


def test_status_shows_the_worst_memory(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """One rank rises by 2 GiB a second: its row has use, capacity, share, bars and trend."""
    service.says("/api/v1/jobs/a%2Fb", JOB)
    assert frd(service, "status", "--job", "a/b") == 0
    text = capsys.readouterr().out
    row = next(line for line in text.splitlines() if "host" in line)
    assert " ".join(row.split()) == "2 host 12.0 GiB 16.0 GiB, 75% ▁▄█ +2.0 GiB/s"
    assert "3 more ranks: --memory" in text


@pytest.mark.parametrize(
    ("options", "query"), [(["--memory"], "all"), (["--ranks", "2-3"], "2-3")], ids=str
)
def test_status_asks_for_the_memory_of_ranks(
    service: Service, capsys: pytest.CaptureFixture[str], options: list[str], query: str
) -> None:
    """--memory shows all, --ranks those named; these are then the only ones in the tables."""
    service.says(f"/api/v1/jobs/a%2Fb?memory={query}", JOB)
    assert frd(service, "status", "--job", "a/b", "--json", *options) == 0
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    ranks = [rank["rank"] for rank in job["ranks"]]
    assert ranks == ([2, 3] if "--ranks" in options else [0, 1, 2, 3])


def test_status_as_json_holds_every_job(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """The details of all jobs in one object."""
    service.says("/api/v1/jobs/a%2Fb", JOB)
    assert frd(service, "status", "--job", "a/b", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"jobs": [JOB]}


def test_a_watch_into_a_pipe_tells_each_change_once(service: Service) -> None:
    """A new finding is a line, its closing another; an interrupt ends the watch well."""
    service.says("/api/v1/findings?state=open", {"findings": []})
    old = {**FINDING, "id": "old", "state": "closed"}
    service.says("/api/v1/findings", {"findings": [FINDING, old]})
    watch = subprocess.Popen(
        [sys.executable, "-m", "frd", "findings", "--watch", "--json", "--http", service.address],
        stdout=subprocess.PIPE,
    )
    with watch:
        assert watch.stdout is not None
        assert json.loads(watch.stdout.readline()) == FINDING
        closed = {**FINDING, "state": "closed"}
        service.says("/api/v1/findings", {"findings": [closed, old]})
        assert json.loads(watch.stdout.readline()) == closed
        watch.send_signal(signal.SIGINT)
        assert watch.wait(10) == 0
        assert watch.stdout.read() == b""


# -- dumps -------------------------------------------------------------------------------------


def test_a_dump_becomes_a_folder(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The only job is dumped, ranks are normalized, and who did not answer is told with why."""
    service.says("/api/v1/jobs", {"jobs": [{"job": "train"}]})
    service.says("/api/v1/jobs/train/dumps", {"id": "d-1"}, 201)
    service.says("/api/v1/dumps/d-1", tar_of(DUMP))
    folder = tmp_path / "new" / "out"
    assert frd(service, "dump", "--ranks", "3,0-1,2", "--stacks", "-o", str(folder)) == 0
    asked = dict(service.asked)["/api/v1/jobs/train/dumps"]
    assert json.loads(asked) == {"ranks": "0-3", "stacks": True, "timeout_s": 10.0}
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert found == DUMP
    assert list(folder.parent.iterdir()) == [folder]
    out = capsys.readouterr().out
    assert "dumps of ranks 0-1,3" in out
    assert "no answer from rank 2: no answer" in out


def test_the_dump_of_a_finding_is_fetched_without_asking_ranks(
    service: Service, tmp_path: Path
) -> None:
    """The job may be long gone: nothing is posted."""
    service.says("/api/v1/findings/ab12", FINDING)
    service.says("/api/v1/dumps/20261120-1", tar_of(DUMP))
    assert frd(service, "dump", "--finding", "ab12", "-o", str(tmp_path / "out")) == 0
    assert (tmp_path / "out/train/rank_0").read_bytes() == b"pickle"


def test_a_finding_without_a_dump_says_so(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No empty folder is left."""
    service.says("/api/v1/findings/ab12", {**FINDING, "dump": None})
    assert frd(service, "dump", "--finding", "ab12", "-o", str(tmp_path / "out")) == FAILED
    assert "finding: ab12: has no dump" in error_of(capsys)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An existing folder is refused before any rank is bothered."""
    assert frd(service, "dump", "-o", str(tmp_path)) == FAILED
    assert "exists: dumps are never overwritten" in error_of(capsys)
    assert service.asked == []


def test_several_jobs_need_a_choice(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """frd does not guess which job is meant."""
    service.says("/api/v1/jobs", {"jobs": [{"job": "b"}, {"job": "a"}]})
    assert frd(service, "dump", "-o", str(tmp_path / "out")) == FAILED
    assert "job: a, b: choose one with --job" in error_of(capsys)


def test_a_job_cannot_steer_the_terminal(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two jobs, one with escape codes for a name: the error line shows them as text."""
    service.says("/api/v1/jobs", {"jobs": [{"job": "a"}, {"job": "b\x1b]0;owned\x07"}]})
    assert frd(service, "dump", "-o", str(tmp_path / "d")) == FAILED
    assert r"b\x1b]0;owned\x07: choose one" in error_of(capsys)


def test_a_dump_that_nobody_answered_fails(service: Service, tmp_path: Path) -> None:
    """The folder says why; the exit code says that it holds no dump."""
    nobody = {"summary.json": json.dumps({"answered": [], "failed": {"0": "gone"}}).encode()}
    service.says("/api/v1/jobs/train/dumps", {"id": "d-1"}, 201)
    service.says("/api/v1/dumps/d-1", tar_of(nobody))
    assert frd(service, "dump", "--job", "train", "-o", str(tmp_path / "out")) == FAILED
    assert (tmp_path / "out/summary.json").exists()


def hostile_tar(**attributes: Any) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("train/rank_0")
        for name, value in attributes.items():
            setattr(info, name, value)
        archive.addfile(info)
    return out.getvalue()


@pytest.mark.parametrize(
    "tar",
    [
        hostile_tar(name="../outside"),
        hostile_tar(name="/tmp/outside"),
        hostile_tar(name="train/../../outside"),
        hostile_tar(type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        hostile_tar(type=tarfile.LNKTYPE, linkname="/etc/passwd"),
        hostile_tar(type=tarfile.CHRTYPE),
        tar_of(DUMP)[:700],
        b"no tar at all" * 100,
    ],
)
def test_a_hostile_or_broken_tar_leaves_nothing(
    service: Service, tmp_path: Path, tar: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """No link, no device, nothing outside the folder, and no half a folder."""
    service.says("/api/v1/jobs/train/dumps", {"id": "d-1"}, 201)
    service.says("/api/v1/dumps/d-1", tar)
    inside = tmp_path / "inside"
    assert frd(service, "dump", "--job", "train", "-o", str(inside / "out")) == FAILED
    error_of(capsys)
    assert [path.name for path in tmp_path.rglob("*")] == ["inside"]
