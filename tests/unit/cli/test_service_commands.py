"""The `frd` command against a small HTTP server that answers like the service."""

from __future__ import annotations

import csv
import io
import json
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from frd.cli import FAILED
from frd.cli.client import Client
from frd.cli.options import service_options
from frd.errors import FrdError, ServiceUnavailable
from tests.unit.cli.shell import Shell
from tests.world.daemons import run_program
from tests.world.http_service import FINDING, Service, jobs_answer


def tar_of(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def says_dump(service: Service, tar: bytes) -> None:
    """A dump of the job `train` is taken, and its archive is `tar`."""
    service.says("/api/v1/jobs/train/dumps", {"id": "d-1"}, 201)
    service.says("/api/v1/dumps/d-1", tar)


DUMP = {
    "summary.json": json.dumps({"answered": [0, 1, 3], "failed": {"2": "no answer"}}).encode(),
    "train/rank_0": b"pickle",
    "train/rank_0.json": b"{}",
}


# -- how commands end --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "address", "tls", "url"),
    [
        ("127.0.0.1:9374", "127.0.0.1:9374", False, "http://127.0.0.1:9374"),
        ("http://127.0.0.1:9374", "127.0.0.1:9374", False, "http://127.0.0.1:9374"),
        ("HTTP://frd.example/", "frd.example:80", False, "http://frd.example"),
        ("http://frd.example:443", "frd.example:443", False, "http://frd.example:443"),
        ("https://frd.example", "frd.example:443", True, "https://frd.example"),
        ("https://[::1]:9374/", "[::1]:9374", True, "https://[::1]:9374"),
        ("https://[::1]", "[::1]:443", True, "https://[::1]"),
    ],
)
def test_a_url_is_an_address(typed: str, address: str, tls: bool, url: str) -> None:
    """What a browser shows can be pasted, and is shown again; https asks for TLS."""
    asked: list[Client] = []

    @click.command()
    @service_options
    def command(client: Client) -> None:
        asked.append(client)

    command.main(["--http", typed], standalone_mode=False)
    (client,) = asked
    assert (client.address, client.tls is not None, client.url) == (address, tls, url)


def test_a_full_disk_is_one_line() -> None:
    """Output that cannot be written is an error of one line, and is not written again."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "import frd.cli; frd.cli.main()", "completion", "bash"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == FAILED
    assert done.stderr == "frd: error: output: No space left on device: write it elsewhere\n"


def test_help_does_not_import_the_commands() -> None:
    """`frd --help` is fast: it imports no command, and none of their libraries."""
    script = (
        "import sys; from frd.cli import run; run(['--help']); "
        "print([m for m in ('rich', 'numpy', 'pydantic', 'grpc', 'frd.cli.commands.status')"
        " if m in sys.modules])"
    )
    done = run_program([sys.executable, "-c", script], check=True)
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


@pytest.mark.parametrize(("status", "body"), [(500, b"<html>"), (200, b"<html>"), (200, b"\xff")])
def test_another_server_is_recognized(service: Service, status: int, body: bytes) -> None:
    """The error for another HTTP server says to check the address."""
    service.says("/api/v1/jobs", body, status)
    with pytest.raises(FrdError, match="name the HTTP address of `frd serve`"):
        Client(service.address).get("/api/v1/jobs")


def test_a_server_of_another_protocol_is_an_error() -> None:
    """The gRPC port instead of the HTTP port gives a clear error."""
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


def test_tls_to_a_service_without_it_is_an_error(ask: Shell) -> None:
    """The line says what to leave out."""
    error = ask("status", "--tls", code=FAILED).error
    assert "does not speak TLS: leave out --tls and the options of TLS, or write http://" in error


# -- commands ----------------------------------------------------------------------------------


def says_history(service: Service) -> None:
    """Two pages of one finding each, as asked for since one moment."""
    since = "since=2026-11-20T00%3A00%3A00.000000Z&limit=500"
    later = {**FINDING, "id": "cd34", "job": "\t=1+1", "summary": "=HYPERLINK()"}
    service.says(f"/api/v1/history?{since}", {"findings": [FINDING], "next": "9.ab12"})
    service.says(f"/api/v1/history?{since}&after=9.ab12", {"findings": [later], "next": None})


def test_export_goes_from_page_to_page(service: Service, ask: Shell, tmp_path: Path) -> None:
    """All pages, one JSON object a line; into a file only if there is none yet."""
    says_history(service)
    printed = ask("findings", "export", "--since", "2026-11-20")
    found = [json.loads(line) for line in printed.lines]
    assert [finding["id"] for finding in found] == ["ab12", "cd34"]
    assert found[0] == FINDING
    wanted = ("findings", "export", "--since", "2026-11-20", "-o", str(tmp_path / "f"))
    ask(*wanted)
    assert len((tmp_path / "f").read_text().splitlines()) == 2
    assert "exists: nothing is overwritten" in ask(*wanted, code=FAILED).err


def test_export_as_csv(service: Service, ask: Shell) -> None:
    """A row a finding, ranks folded, and nothing that a spreadsheet would execute."""
    says_history(service)
    printed = ask("findings", "export", "--since", "2026-11-20", "--format", "csv")
    first, second = csv.DictReader(io.StringIO(printed.out))
    assert (first["id"], first["victims"], first["closed_at"]) == ("ab12", "0-1", "")
    assert second["summary"] == "'=HYPERLINK()"
    assert second["job"] == "'\t=1+1"


def test_an_export_that_breaks_off_leaves_no_file(
    service: Service, ask: Shell, tmp_path: Path
) -> None:
    """The second page fails: exit 1, one line, and no half of a file."""
    service.says("/api/v1/history?limit=500", {"findings": [FINDING], "next": "9.ab12"})
    assert "frd: error: " in ask("findings", "export", "-o", tmp_path / "f", code=FAILED).err
    assert not (tmp_path / "f").exists()


# -- dumps -------------------------------------------------------------------------------------


def test_a_dump_becomes_a_folder(service: Service, tmp_path: Path, ask: Shell) -> None:
    """The only job that runs is dumped: two jobs have ended, in one of them a rank is still seen to
    have exited. --ranks is normalized, and ranks without an answer are listed."""
    over = [job_line("old", ended=True), job_line("crashed", exited=2)]
    service.says("/api/v1/jobs", jobs_answer(*over, job_line("train", live=1, silent=1)))
    says_dump(service, tar_of(DUMP))
    folder = tmp_path / "new" / "out"
    printed = ask("dump", "--ranks", "3,0-1,2", "--stacks", "-o", folder)
    asked = dict(service.asked)["/api/v1/jobs/train/dumps"]
    assert json.loads(asked) == {"ranks": "0-3", "stacks": True, "timeout_s": 10.0}
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert found == DUMP
    assert list(folder.parent.iterdir()) == [folder]
    assert "dumps of ranks 0-1,3" in printed.out
    assert "no answer from rank 2: no answer" in printed.out
    assert printed.lines[-1] == f"next: frd analyze {folder}"


def job_line(name: str, *, ended: bool = False, **ranks: int) -> dict[str, object]:
    return {"job": name, "ended": ended, "ranks": ranks or {"live": 2}}


def test_the_dump_of_a_finding_is_fetched_without_asking_ranks(
    service: Service, tmp_path: Path, ask: Shell
) -> None:
    """The job may be long gone: nothing is posted."""
    service.says("/api/v1/findings/ab12", FINDING)
    service.says("/api/v1/dumps/20261120-1", tar_of(DUMP))
    ask("dump", "--finding", "ab12", "-o", tmp_path / "out")
    assert (tmp_path / "out/train/rank_0").read_bytes() == b"pickle"


def test_a_finding_without_a_dump_says_so(service: Service, tmp_path: Path, ask: Shell) -> None:
    """No empty folder is left."""
    service.says("/api/v1/findings/ab12", {**FINDING, "dump": None})
    error = ask("dump", "--finding", "ab12", "-o", tmp_path / "out", code=FAILED).error
    assert "finding: ab12: has no dump" in error
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(service: Service, tmp_path: Path, ask: Shell) -> None:
    """An existing folder is refused before any request."""
    assert "exists: nothing is overwritten" in ask("dump", "-o", tmp_path, code=FAILED).error
    assert service.asked == []


def test_a_dump_of_an_unknown_job_names_the_jobs(
    service: Service, tmp_path: Path, ask: Shell
) -> None:
    """What to type, not which part of the API to read."""
    service.says("/api/v1/jobs", jobs_answer(job_line("train"), job_line("eval")))
    error = ask("dump", "--job", "trian", "-o", tmp_path / "out", code=FAILED).error
    assert "job: 'trian': unknown to this service: it knows 'eval', 'train'" in error
    assert error.endswith(", did you mean train\n")


OLD = job_line("old", ended=True)


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ([job_line("b"), OLD, job_line("a")], "job: a, b: several jobs run: choose one with --job"),
        (
            [OLD, job_line("older", ended=True)],
            "job: old, older: several jobs have ended and none runs: choose",
        ),
        ([job_line("a"), job_line("b\x1b]0;owned\x07")], r"b\x1b]0;owned\x07: several jobs run"),
    ],
)
def test_several_jobs_need_a_choice(
    service: Service,
    tmp_path: Path,
    ask: Shell,
    jobs: list[dict[str, object]],
    said: str,
) -> None:
    """frd does not guess: running jobs are listed, or all that ended, with escape codes as text."""
    service.says("/api/v1/jobs", {"jobs": jobs})
    assert said in ask("dump", "-o", tmp_path / "out", code=FAILED).error


def test_a_dump_without_any_answer_fails(service: Service, tmp_path: Path, ask: Shell) -> None:
    """The folder has the reasons; the exit code shows that it has no dump."""
    unanswered = {"summary.json": json.dumps({"answered": [], "failed": {"0": "gone"}}).encode()}
    says_dump(service, tar_of(unanswered))
    ask("dump", "--job", "train", "-o", tmp_path / "out", code=FAILED)
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
    service: Service, tmp_path: Path, tar: bytes, ask: Shell
) -> None:
    """No link, no device, nothing outside the folder, and no partial folder."""
    says_dump(service, tar)
    inside = tmp_path / "inside"
    assert ask("dump", "--job", "train", "-o", inside / "out", code=FAILED).error
    assert [path.name for path in tmp_path.rglob("*")] == ["inside"]
