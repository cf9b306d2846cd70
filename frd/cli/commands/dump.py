"""`frd dump`: a folder of Flight Recorder dumps, taken now or when a finding opened.

The service collects and keeps; this command asks, fetches one tar and unpacks it.
"""

from __future__ import annotations

import shlex
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

import click
import msgspec

from frd.cli import FAILED
from frd.cli.client import Client, job_path, unknown_job
from frd.cli.commands.findings.one import find
from frd.cli.options import PATH, finding_ids, job_names, ranks_option, service_options
from frd.cli.screens.records import incomplete_text, silent_replicas
from frd.engine.findings.text import ranks as ranks_text
from frd.errors import FrdError, UnknownThing
from frd.forms import fold_ranks
from frd.store.new_path import check_new, new_path
from frd.usage import examples, plain

_PATIENCE_S = 15.0
"""Time for the service itself, in addition to the time limit of the ranks."""

_RUNNING = frozenset({"live", "silent"})
"""States of ranks whose processes exist."""


@click.command(
    "dump",
    epilog=examples(
        "frd dump --stacks -o dumps                       # every rank, now",
        "frd dump --ranks 0-3 -o four",
        "frd dump --finding 5f0c6a2e91d3b784 -o opened     # as taken when it opened",
    ),
)
@click.option("--job", metavar="J", shell_complete=job_names, help="By default the running one.")
@ranks_option("Only these ranks.")
@click.option(
    "--stacks",
    is_flag=True,
    help="Also Python stacks, including those of child processes such as DataLoader workers.",
)
@click.option(
    "--finding", metavar="ID", shell_complete=finding_ids, help="The dump taken when this opened."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.1, max=300.0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a rank may take to answer.",
)
@click.option(
    "-o",
    "--output",
    "folder",
    type=PATH,
    required=True,
    metavar="DIR",
    help="The folder to create; it must not exist.",
)
@service_options
def command(
    client: Client,
    job: str | None,
    ranks: tuple[int, ...] | None,
    stacks: bool,
    finding: str | None,
    timeout_s: float,
    folder: Path,
) -> int:
    """Take a Flight Recorder dump of every rank now, or fetch those taken when a finding opened.

    torchfrtrace reads DIR/<job>. Ranks that did not answer are listed with the reason.
    """
    if finding is not None and (job is not None or ranks is not None or stacks):
        raise click.UsageError(
            "--finding: its dump is already taken: leave out --job, --ranks and --stacks"
        )
    check_new(folder)
    if finding is not None:
        dump_id = _of_finding(client, finding)
    else:
        chosen = None if ranks is None else fold_ranks(ranks)
        wanted = {"ranks": chosen, "stacks": stacks, "timeout_s": timeout_s}
        path = job_path(job if job is not None else _only_job(client), "dumps")
        try:
            dump_id = client.post(path, wanted, timeout_s=timeout_s + _PATIENCE_S)["id"]
        except UnknownThing:
            answer = client.get("/api/v1/jobs")
            known = [line["job"] for line in answer["jobs"]]
            raise unknown_job(job or "", known, silent=silent_replicas(answer)) from None
    with tempfile.TemporaryFile() as tar:
        client.download(f"/api/v1/dumps/{dump_id}", tar)
        tar.seek(0)
        _unpack(tar, folder)
    return _report(folder)


def _only_job(client: Client) -> str:
    """The only running job; if none runs, the only known job."""
    answer = client.get("/api/v1/jobs")
    jobs = answer["jobs"]
    if silent := silent_replicas(answer):
        click.echo(f"frd: warning: {incomplete_text(silent)}", err=True)
    live = [job for job in jobs if not job["ended"] and _RUNNING & job["ranks"].keys()]
    match live or jobs:
        case [job]:
            name: str = job["job"]
            return name
        case []:
            raise FrdError("job: none: the service knows no job yet: wait for its agents")
        case several:
            names = ", ".join(sorted(job["job"] for job in several))
            what = "several jobs run" if live else "several jobs have ended and none runs"
            raise FrdError(f"job: {names}: {what}: choose one with --job")


def _of_finding(client: Client, finding: str) -> str:
    dump_id: str | None = find(client, finding).get("dump")
    if dump_id is None:
        raise FrdError(
            f"finding: {finding}: has no dump: none of its ranks could be asked, or it was dropped "
            "to stay within store.dump_count and store.dump_bytes"
        )
    return dump_id


# -- the folder --------------------------------------------------------------------------------


def _unpack(tar: IO[bytes], folder: Path) -> None:
    """Make `folder` from `tar`."""
    with new_path(folder) as staged:
        staged.mkdir()
        try:
            with tarfile.open(fileobj=tar, mode="r:") as archive:
                _extract(archive, staged)
        except tarfile.TarError as error:
            raise FrdError(
                f"dump: {folder}: the service sent no tar ({error}): try again"
            ) from None


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Plain files below `folder`, nothing else.

    Stricter than ``filter="data"``, which Python 3.11 has only since its fourth patch release: a
    dump folder has no links, no devices and no owners.
    """
    for member in archive:
        path = PurePosixPath(member.name)
        if member.isdir():
            continue
        usual = member.isreg() and not member.issparse()  # few bytes could fill the disk
        if not usual or path.is_absolute() or ".." in path.parts or not path.name:
            raise FrdError(
                f"dump: {member.name!r}: not a plain file of a dump: nothing was written"
            )
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        source = archive.extractfile(member)
        assert source is not None  # a regular file always has contents
        with source, target.open("xb") as out:
            shutil.copyfileobj(source, out, 1 << 20)


def _report(folder: Path) -> int:
    """Print which ranks answered and which did not; fail when no rank answered."""
    path = folder / "summary.json"
    try:
        summary = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        raise FrdError(f"dump: {path}: cannot be read: the folder is incomplete") from None
    answered: Sequence[int] = summary["answered"]
    failed: Mapping[str, str] = summary["failed"]
    click.echo(f"{folder}: dumps of {ranks_text(answered) if answered else 'no rank'}")
    by_reason: dict[str, list[int]] = {}
    for rank, reason in failed.items():
        by_reason.setdefault(reason, []).append(int(rank))
    for reason, ranks in sorted(by_reason.items(), key=lambda item: item[1]):
        click.echo(f"no answer from {ranks_text(ranks)}: {plain(reason)}")
    if answered:
        click.echo(f"next: frd analyze {shlex.quote(str(folder))}")
    return 0 if answered else FAILED
