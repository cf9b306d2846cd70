"""Ranks of another user, which publish what this agent may not read, or may not publish at all.

They must not look as if there were none. Taps publish files that only their own user may read, in a
directory that may be the user's own; a tap that may not write there leaves ``refused.UID`` beside
it (`frd_agent.tap`). What a rank left when it ended counts no more: a clean end removes its socket,
and after any other end its counters are no longer written.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from frd.wire.messages import MAX_UNREADABLE, Unreadable
from frd_agent import tap, untrusted_files
from frd_agent.inspection.reading.files import printable
from frd_agent.ranks.token_files import TokenFile

_STILL_S: Final = 600.0
"""A rank that holds its GIL does not write either, and is what nobody must overlook."""
_REFUSED_S: Final = 3 * tap.RESCAN_S
_MAX_ENTRIES: Final = 10_000
_MAX_BYTES: Final = 4096


def unreadable(run_dir: Path, files: Iterable[TokenFile[Any]]) -> Unreadable:
    """One text for each user. `files` are those of the run directory."""
    owners = {file.owner for file in files if file.owner is not None and _is_of_living(file)}
    texts = {
        owner: f"{run_dir}: the agent of uid {os.geteuid()} may not read what ranks of uid {owner} "
        f"publish: {_advice(owner)}"
        for owner in owners
    }
    for uid, job in _refused(run_dir):
        texts[uid] = (
            f"{run_dir}: ranks of uid {uid}{job} may not write there, so nothing is known of them: "
            f"{_advice(uid)}"
        )
    return Unreadable(tuple(texts[uid] for uid in sorted(texts))[:MAX_UNREADABLE])


def _advice(uid: int) -> str:
    if os.geteuid() == 0:
        return f"{tap.same_user(uid)}, or give it CAP_DAC_OVERRIDE"
    return tap.same_user(uid)


def _is_of_living(file: TokenFile[Any]) -> bool:
    if file.path.suffix != file.SUFFIX:
        return True  # the directory itself
    with contextlib.suppress(OSError):
        if file.SUFFIX == ".json":
            file.path.with_suffix(".sock").lstat()
        written = file.path.with_suffix(".shm" if file.SUFFIX == ".json" else file.SUFFIX)
        return time.time() - written.lstat().st_mtime < _STILL_S
    return False


def _refused(run_dir: Path) -> Iterator[tuple[int, str]]:
    """Users whose ranks may not write in the run directory, and the job of one of them as text."""
    if str(run_dir) == tap.default_run_dir(os.environ):
        return  # beside it are the files of all users
    with contextlib.suppress(OSError), os.scandir(run_dir.parent) as entries:
        for entry, _ in zip(entries, range(_MAX_ENTRIES), strict=False):
            match = re.fullmatch(r"refused\.(\d{1,10})", entry.name)
            if match is None:
                continue
            uid = int(match[1])
            with (
                contextlib.suppress(OSError, UnicodeDecodeError),
                untrusted_files.opened(entry.path) as fd,
            ):
                found = os.fstat(fd)
                text = untrusted_files.read_up_to(fd, _MAX_BYTES).decode()
                name, _, job = text.partition("\n")
                is_fresh = time.time() - found.st_mtime < _REFUSED_S
                if found.st_uid == uid and is_fresh and name == run_dir.name:
                    yield uid, f" (job {printable(job)})" if job else ""
