"""Reads the address of a rank's process from /proc, once, when the agent finds the process.

Its command line and environment are in its memory, whose lock a process in trouble may hold, and
the directory of users may not answer: both are read on helper threads with a deadline. Of the
environment only a few variables are looked at. The job writes all of it, so a value of another form
than expected is left out. Of the command line, what looks like a secret is blanked, too much rather
than too little: people need to recognize the program, not to run it again.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from frd.forms import log_lines
from frd.model import Address
from frd_agent.addresses import log_tail
from frd_agent.inspection.reading.memory import Helper, NotInTime
from frd_agent.proc import content, link, namespace_of, path_of, status_line
from frd_agent.ranks.rank_process import RankProcess
from frd_agent.ranks.stacks.reader import output_of
from frd_agent.ranks.tap_files import TapIdentity
from frd_agent.untrusted_files import opened, read_up_to

_MOST_COMMAND: Final = 300
_WITHIN_S: Final = 1.0
"""A node is busiest when its ranks start."""
_COMMAND_BYTES: Final = 4096
_ENVIRONMENT_BYTES: Final = 256 * 1024
_CONTAINER: Final = re.compile(rb"[0-9a-f]{64}")
_LABEL: Final = r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?"
_FORMS: Final = {
    b"SLURM_JOB_ID": r"\d{1,12}",
    b"SLURM_STEP_ID": r"\d{1,12}",
    b"POD_NAME": _LABEL,
    b"POD_NAMESPACE": _LABEL,
    b"HOSTNAME": _LABEL,
    b"KUBERNETES_SERVICE_HOST": r".+",
}
"""Of the variables that are looked at."""
_NAMESPACE: Final = "secrets/kubernetes.io/serviceaccount/..data/namespace"
WITHIN_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Stderr:
    """Where the stderr of a process goes, as far as it was seen while the process lived."""

    uid: int
    """Effective ids of the process."""
    gid: int
    link: str
    """``/logs/rank1.err``, ``pipe:[4711]``; empty if it cannot be seen."""
    inode: int = 0
    """0 if the kernel does not say (before 5.14)."""
    has_path: bool = True
    """Its path leads to it for the agent as well, or the inode shows that it does not."""

    @property
    def path(self) -> str:
        """Empty if it is no file."""
        is_device = self.link.startswith("/dev/") and not self.link.startswith("/dev/shm/")
        return self.link if self.link.startswith("/") and not is_device else ""


class Addresses:
    """Of the ranks of one agent. Used by one thread at a time."""

    def __init__(self, log_path: str = "") -> None:
        """`log_path`: as in the agent's configuration."""
        self._log_path = log_path
        self._helper = Helper(_WITHIN_S, "frd-address")
        self._directory = Helper(name="frd-user-names")

    def of(
        self, process: RankProcess, identity: TapIdentity
    ) -> tuple[Address | None, Stderr | None]:
        """Both None if the process is not seen, or cannot be read in time."""
        with suppress(NotInTime, OSError, LookupError):
            if (pid := process.readable) is not None:
                address, stderr = self._helper.run(lambda: _read(pid, identity.host))
                if process.may_read(pid):
                    log = shown(self.configured(identity) or stderr.path)
                    return replace(address, user=self._user(stderr.uid), log=log), stderr
        return None, None

    def configured(self, identity: TapIdentity) -> str:
        """Where the agent's configuration says that the log of a rank is; empty: nowhere, or the
        job's name would lead elsewhere."""
        local = {"local_rank": identity.local_rank, "node": identity.host}
        path = self._log_path.format(job=identity.job, rank=identity.rank, **local)
        return "" if ".." in path.split("/") else path

    def _user(self, uid: int) -> str:
        """The name, or the number if the directory does not answer in time."""
        with suppress(NotInTime, KeyError):
            return self._directory.run(lambda: pwd.getpwuid(uid).pw_name)
        return str(uid)


def shown(text: str) -> str:
    """A path or command line as the wire carries it."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _read(pid: int, node: str) -> tuple[Address, Stderr]:
    """
    Raises:
        LookupError: the process is gone.
    """
    uid, gid = (int(status_line(pid, name)[1]) for name in ("Uid", "Gid"))
    line = content(f"{pid}/cmdline", _COMMAND_BYTES)
    words = os.fsdecode(line).rstrip("\0").split("\0")
    if len(line) == _COMMAND_BYTES:  # what is cut may be half of a secret
        words.pop()
    variables = _variables(content(f"{pid}/environ", _ENVIRONMENT_BYTES))
    containers = _CONTAINER.findall(content(f"{pid}/cgroup", _COMMAND_BYTES))
    pod = variables.get(b"POD_NAME", "")
    if not pod and b"KUBERNETES_SERVICE_HOST" in variables:
        pod = variables.get(b"HOSTNAME", "")
        pod = "" if pod == node else pod  # in the network of the node
    address = Address(
        pid=pid,
        command=shown(blanked(words))[:_MOST_COMMAND],
        container=containers[-1].decode("ascii") if containers else "",
        slurm_job=variables.get(b"SLURM_JOB_ID", ""),
        slurm_step=variables.get(b"SLURM_STEP_ID", ""),
        namespace=variables.get(b"POD_NAMESPACE", "") or (_namespace(pid) if pod else ""),
        pod=pod,
    )
    return address, _stderr(pid, uid, gid)


def _stderr(pid: int, uid: int, gid: int) -> Stderr:
    """Looks at no file: its file system may not answer."""
    found = re.search(rb"^ino:\s*(\d+)$", content(f"{pid}/fdinfo/2", _COMMAND_BYTES), re.MULTILINE)
    mounts = {namespace_of(one, "mnt") for one in (pid, "self")}
    inode, has_path = int(found[1]) if found else 0, found is not None or len(mounts) == 1
    return Stderr(uid, gid, link(pid, "fd/2"), inode, has_path)


def _variables(environment: bytes) -> dict[bytes, str]:
    pairs = (one.partition(b"=") for one in environment.split(b"\0"))
    found = {name: os.fsdecode(value) for name, _, value in pairs if name in _FORMS}
    return {name: value for name, value in found.items() if re.fullmatch(_FORMS[name], value)}


def _namespace(pid: int) -> str:
    """From the files of the pod. A link from the root would lead out of its container."""
    run = "run" if link(pid, "root/var/run") else "var/run"
    with suppress(OSError), opened(path_of(f"{pid}/root/{run}/{_NAMESPACE}")) as fd:
        found = read_up_to(fd, 256).decode("utf-8", "replace").strip()
        return found if re.fullmatch(_LABEL, found) else ""
    return ""


# -- secrets on a command line ----------------------------------------------------------------

BLANK: Final = "REDACTED"

_NAME: Final = (
    r"(?:passw|passphrase|secret|credential|cookie|authorization|bearer|token(?!s|iz)"
    r"|(?:api|access|private|account|auth)[-_.]?key|signature"
    r"|(?<![a-z])(?:key|pwd|pass|pat|auth|jwt|sig)(?![a-z]))"
)
"""In the name of an option, a variable or a header whose value is a secret."""
_VALUE: Final = r"""(?:(?:bearer|basic)\s+)?(?:"[^"]*"|'[^']*'|[^\s"',;&})]+)"""
_SECRET_NAME: Final = re.compile(_NAME, re.IGNORECASE)
_PATTERNS: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), rf"\1{BLANK}")
    for pattern in (
        r"(://)[^/\s]*(?=@)",  # scheme://user:password@host
        r"""((?:cookie|authorization)["']?\s{0,3}:\s{0,3})[^"'\n]+""",  # the whole header
        rf"""({_NAME}[\w.-]{{0,64}}["']?\s{{0,3}}[=:]\s{{0,3}}){_VALUE}""",  # also inside of texts
        rf"(--?[\w.-]{{0,64}}?{_NAME}[\w.-]{{0,64}}\s{{1,3}}){_VALUE}",  # of ``sh -c``
        r"\b(hf_|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|sk-|nvapi-|AKIA|ASIA|eyJ)[\w.-]{8,}",
    )
)
"""Keep what the group matches."""


def blanked(words: Sequence[str]) -> str:
    """A command line that a shell would split into `words`, without their secrets."""
    shown = [_blanked(*pair) for pair in zip(words, ("", *words), strict=False)]
    return shown[0] if len(shown) == 1 else shlex.join(shown)  # one word: its title was set


def _blanked(word: str, before: str) -> str:
    if before.startswith("-") and not word.startswith("--") and _is_secret(before):
        return BLANK
    name, equals, _ = word.partition("=")
    if equals and _is_secret(name):
        return f"{name}={BLANK}"
    for pattern, kept in _PATTERNS:
        word = pattern.sub(kept, word)
    return word


def _is_secret(name: str) -> bool:
    return not {"=", " "} & set(name) and _SECRET_NAME.search(name) is not None


@dataclass(frozen=True, slots=True)
class Log:
    """Of one rank."""

    process: RankProcess
    seen: Stderr | None
    """As it was when the agent found the process."""
    configured: str
    """Its path by the agent's configuration; empty without one."""

    async def json(self) -> dict[str, Any]:
        """``{"path": "/logs/rank1.err", "lines": [...], "why": ""}``; raises nothing."""
        if (seen := self.seen) is None:
            return no_log("the agent has not seen its process")
        files = [(self.configured, 0, False)] if self.configured else []
        if seen.path and (pid := self.process.readable) is not None:
            files.append((path_of(f"{pid}/fd/2"), seen.inode, True))
        if seen.path and seen.has_path:
            files.append((seen.path, seen.inode, False))
        if not files:
            goes = f"its stderr goes to {seen.link or 'what the agent may not see'}"
            return no_log(f"{goes}: if that ends up in a file, set log_path of the agent")
        return await _tail({"uid": seen.uid, "gid": seen.gid, "files": files})


async def _tail(asked: dict[str, Any]) -> dict[str, Any]:
    command = sys.executable, "-I", "-S", log_tail.__file__, json.dumps(asked)
    try:
        async with asyncio.timeout(WITHIN_S):
            status, out, _ = await output_of(*command, env={})
    except TimeoutError:
        return no_log(f"its file system has not answered within {WITHIN_S:g} s")
    except OSError as error:
        return no_log(f"{sys.executable}: {error.strerror}")
    head, _, data = out.partition(b"\n")
    try:
        found = json.loads(head)
    except ValueError:
        return no_log(f"the process that read it ended with status {status}")
    lines = log_lines(data.decode("utf-8", "replace"))
    return {"path": shown(found["path"]), "lines": lines, "why": shown(found["why"])}


def no_log(why: str) -> dict[str, Any]:
    return {"path": "", "lines": [], "why": why}
